"""Whatever the text: a plan or one PromQLError with a place inside it, and plans round-trip."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from resilience.errors import PromQLError  # noqa: E402
from resilience.promql.parser import parse  # noqa: E402
from resilience.promql.plan import unparse, walk  # noqa: E402
from tests.differential import generator  # noqa: E402

WORDS = (
    "sum", "rate", "by", "without", "on", "group_left", "bool", "offset", "and", "or", "x", "a:b",
    "(", ")", "[", "]", "{", "}", ",", "=", "=~", "!~", "==", "<", "+", "-", "^", "@", ":", "5m",
    "1h30m", "1", "0x", "1e9", ".5", "NaN", "Inf", '"a"', "'b'", "`c`", '"\\', "start()", "#", "\n",
    "é", "\x00", "$", "anchored", "le", "__name__", "{{", "5m:1m", "\u202e",
)
PIECES = st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join)


def check(text: str) -> None:
    try:
        plan = parse(text)
    except PromQLError as error:
        lines = text.split("\n")
        assert 1 <= error.line <= len(lines)
        assert 1 <= error.column <= len(lines[error.line - 1]) + 1
        assert "\n" not in str(error) and str(error)
        return
    assert parse(unparse(plan)) == plan
    assert all(0 <= node.pos <= len(text) for node in walk(plan))


@settings(max_examples=500)
@given(st.one_of(st.text(max_size=60), PIECES))
def test_any_text_is_a_plan_or_one_error(text: str) -> None:
    check(text)


@settings(max_examples=300)
@given(st.data())
def test_valid_expressions_with_one_wound(draw: Any) -> None:
    text = generator.expression(lambda options: draw.draw(st.sampled_from(options)))
    parse(text, experimental=True)
    at = draw.draw(st.integers(0, len(text)))
    check(text[:at] + draw.draw(st.sampled_from(WORDS)) + text[at + draw.draw(st.integers(0, 2)) :])
