"""Writes a report's page: its style and script lie beside `report/page.py`."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from resilience.errors import UsageError
from resilience.report.page import page
from resilience.report.summary import Report

BEGINS = b"<!doctype html"


def check_place(path: Path) -> None:
    """Raise UsageError where a page cannot be written: better before a long run than after it."""
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder `{path.parent}` for the page `{path.name}`; make it")
    if path.exists() and not path.is_file():          # replaced as a whole, a device would be gone
        raise UsageError(f"the page `{path}` cannot be written: it is no regular file")
    if path.exists() and not _is_page(path):
        raise UsageError(f"`{path}` is no HTML page and would be lost: give `--html` another name")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"the page `{path}` cannot be written: its folder is read-only")


def _is_page(path: Path) -> bool:
    """Say whether a page may take its place: it is one, or empty."""
    with suppress(OSError), path.open("rb") as file:
        begun = file.read(len(BEGINS)).lower()
        return begun in (b"", BEGINS)
    return False


def write_page(path: Path, report: Report) -> int:
    """Write the page to `path` as a whole or not at all; returns its size in bytes.

    Raises UsageError if it cannot be written.
    """
    folder = files("resilience") / "report"
    css = (folder / "page.css").read_text(encoding="utf-8")
    script = (folder / "page.js").read_text(encoding="utf-8")
    body = page(report, css, script).encode("utf-8", errors="replace")
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_bytes(body)
        os.replace(fresh, path)
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise UsageError(f"the page `{path}` cannot be written: {reason}") from error
    return len(body)
