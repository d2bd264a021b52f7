"""Templates and regexes as Go has them, and constants that can never be evaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from resilience.errors import PromQLError
from resilience.promql import regex
from resilience.promql.constants import impossible
from resilience.promql.lexer import Source
from resilience.promql.parser import parse
from resilience.promql.relabel import by_label, expand
from resilience.promql.vector import Vec

GROUPS = regex.compiled("(?P<a>[ab])(c)?(?P<_>)")


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("$1", "b"), ("${1}", "b"), ("$0", "b"), ("$2|", "|"), ("$a", "b"), ("${a}b", "bb"),
        ("$ab", ""), ("$1a", ""), ("${1}a", "ba"), ("$$", "$"), ("$$1", "$1"), ("$$$1", "$b"),
        ("$", "$"), ("${", "${"), ("${1", "${1"), ("${}", "${}"), ("$ 1", "$ 1"),
        ("${1 }", "${1 }"),
        ("$-1", "$-1"), ("$9", ""), ("$none.", "."), ("$_|$_a|${_}b", "||b"),
        ("$01", ""), ("${01}x", "x"), ("$00", ""), ("$100000000000 $1", " b"),
        ("$1é", ""), ("${é}$é.$1", ".b"), ("$1٣", ""), ("$1½", "b½"), ("$1²", "b²"), ("$1Ⅷ", "bⅧ"),
        ("plain", "plain"), ("", ""),
    ],
)
def test_templates_are_filled_as_go_fills_them(template: str, filled: str) -> None:
    assert expand(template, GROUPS.fullmatch("b")) == filled


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        (r"\C", "invalid escape sequence"), (r"a\Cb", "invalid escape sequence"),
        (r"(?P<é>a)", "invalid named capture"), ("(", "missing"),
        (r"\\C", None), (r"\Q\C\E", None), (r"\Qa", None), (r"b|\Qa\\", None), (r"\Q\E\\Q", None),
        (r"(?P<n>a)", None), (r"\pL\z", None), ("[[:alpha:]]", None),
    ],
)
def test_regexes_are_those_of_go(pattern: str, problem: str | None) -> None:
    found = regex.problem(pattern)
    assert found is None if problem is None else problem in (found or "")


@pytest.mark.parametrize("compile_", [regex.compiled, regex.substitution])
def test_the_length_of_a_regex_is_what_was_written(compile_: Callable[[str], Any]) -> None:
    longest = "a" * regex.PATTERN_MAX
    assert regex.problem(longest, compile_) is None
    wanted = f"it has {regex.PATTERN_MAX + 1} characters, the limit is {regex.PATTERN_MAX}"
    assert regex.problem(longest + "a", compile_) == wanted


def test_a_quoted_part_may_go_on_to_the_end() -> None:
    assert regex.compiled(r"b|\Qa.").fullmatch("a.")
    assert not regex.compiled(r"b|\Qa.").fullmatch("ab")


@pytest.mark.parametrize(
    ("expr", "column", "reason"),
    [
        ('label_replace(up, "", "$1", "a", "b")', 19, "destination label of `label_replace` is"),
        ('label_replace(up, "x", "$1", "a", "(")', 35, "bad regex `(` in `label_replace`: missing"),
        ('label_join(up, "", ",", "a")', 16, "destination label of `label_join` is empty"),
        ('label_join(up, "x", ",", "a", "")', 31, "source label of `label_join` is empty"),
        ('sum(count_values("", up))', 18, "label name of `count_values` is empty"),
        ("topk(NaN, up)", 6, "parameter of `topk` is no number of series"),
        ("bottomk(1e20, up)", 9, "parameter of `bottomk` is no number of series"),
        ("topk(-3, up)", 0, ""), ("topk(-1e300, up)", 0, ""), ("topk(-Inf, up)", 0, ""),
        ('label_replace(up, "a-b", "", "", "")', 0, ""),
        ('count_values("a b", up)', 0, ""),
    ],
)
def test_constants_that_cannot_be_are_found_before_anything_runs(
    expr: str, column: int, reason: str
) -> None:
    found = [(Source(expr).place(node.pos)[1], why) for node, why in impossible(parse(expr))]
    assert [place for place, _ in found] == ([column] if column else [])
    assert all(reason in why for _, why in found)


@pytest.mark.parametrize(
    ("expr", "canonical"),
    [
        ("x offset 1.0009", "x offset 1s"), ("x offset -1.0009", "x offset -1s"),
        ("x[0.0019]", "x[1ms]"), ("x[1.9999999]", "x[1s999ms]"), ("x @ 0.0005", "x @ 0.001"),
        ("x @ -0.0005", "x @ -0.001"), ("x @ 0.0004", "x @ 0.000"),
        ("x @ 1e15", "x @ 9007199254740.992"), ("1e-400", "0"),
    ],
)
def test_numbers_are_cut_as_prometheus_does(expr: str, canonical: str) -> None:
    assert parse(expr).text == canonical


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        ("x[0.0001]", "a range must be longer than a millisecond"),
        ("x[0]", "a range must be longer than 0"),
        ("x[5m:0.0001]", "a subquery step must be longer than a millisecond"),
        ("x @ 1e300", "a time of `1e300` is out of range"),
        ("1e400", "number `1e400` is out of range"),
        ("x > 1e309", "number `1e309` is out of range"),
    ],
)
def test_numbers_are_bounded_as_prometheus_does(expr: str, message: str) -> None:
    with pytest.raises(PromQLError) as refused:
        parse(expr)
    assert message in refused.value.message


@pytest.mark.parametrize(
    "rising",
    [
        ["a2", "a10"], ["a", "a1"], ["2", "10", "a"], ["007", "8"], ["1.2", "1.10"],
        ["\u00b2", "\u00b9"], ["9" * 4_999, "9" * 5_000], ["1" + "0" * 5_000, "2" + "0" * 5_000],
    ],
)
def test_labels_are_sorted_with_numbers_as_numbers_however_long(rising: list[str]) -> None:
    vec = Vec([(("n", text),) for text in reversed(rising)], np.zeros((len(rising), 1)))
    assert [labels[0][1] for labels in by_label(vec, ["n"], False).labels] == rising
