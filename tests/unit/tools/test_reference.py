"""The reference pages in docs/ are what the code says now."""

from __future__ import annotations

import re

import pytest

from tools import reference

PAGES = reference.pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_current(name: str) -> None:
    file = reference.FOLDER / name
    assert file.is_file() and file.read_text(encoding="utf-8") == PAGES[name], \
        "run `python -m tools.reference`"


def test_no_page_is_left_over() -> None:
    assert {p.name for p in reference.FOLDER.glob("*.md")} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_every_row_of_a_table_has_its_cells(name: str) -> None:
    for table in re.findall(r"(?m)(?:^\|.*\n)+", PAGES[name]):
        cells = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(cells) == 1, table.splitlines()[0]


def test_every_code_says_how_it_is_silenced_or_is_an_error() -> None:
    from resilience.policy.codes import CODES

    for code, what in CODES.items():
        (part,) = re.findall(rf"(?s)### `{code}`\n(.*?)(?=\n##|\Z)", PAGES["codes.md"])
        assert (f"resilience: ignore {code} until" in part) == (what.severity != "error")
