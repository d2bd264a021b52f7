"""What parses, what does not, and where the message points."""

from __future__ import annotations

import pytest

from resilience.errors import PromQLError
from resilience.promql.parser import parse
from resilience.promql.plan import Selector, selectors, unparse
from resilience.promql.signatures import SWITCH_ON


def refused(text: str) -> PromQLError:
    with pytest.raises(PromQLError) as caught:
        parse(text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "canonical", "kind"),
    [
        ("up", "up", "vector"),
        ("1_000", "1000", "scalar"),
        ("0x_53", "83", "scalar"),
        ("0x1F", "31", "scalar"),
        ("017", "15", "scalar"),
        (".5e-3", "0.0005", "scalar"),
        ("inF", "+Inf", "scalar"),
        ("5m", "300", "scalar"),
        ("-1^2", "-(1 ^ 2)", "scalar"),
        ("-a * b", "(-a) * b", "vector"),
        ("2^3^2", "2 ^ (3 ^ 2)", "scalar"),
        ("a or b and c", "a or (b and c)", "vector"),
        ("a - b - c", "(a - b) - c", "vector"),
        ("+a", "a", "vector"),
        ("x[20]", "x[20s]", "matrix"),
        ("x offset -5m", "x offset -5m", "vector"),
        ("x @ -10", "x @ -10.000", "vector"),
        ("x @ 1m40s offset 50", "x @ 100.000 offset 50s", "vector"),
        ("x @ start()", "x @ start()", "vector"),
        ("x[5m:]", "x[5m:]", "matrix"),
        ("(a + b)[5m:30s] offset 1m", "(a + b)[5m:30s] offset 1m", "matrix"),
        ("SUM BY (a,b,) (x)", "sum by (a, b) (x)", "vector"),
        ("sum(x) without ()", "sum without () (x)", "vector"),
        ("topk(3, x)", "topk(3, x)", "vector"),
        ("a / ON (x) GROUP_LEFT (y) b", "a / on (x) group_left (y) b", "vector"),
        ("a == bool b", "a == bool b", "vector"),
        ("a * ignoring () group_right (c) b", "a * ignoring () group_right (c) b", "vector"),
        ('{"a.b", c="d"}', '{"a.b", c="d"}', "vector"),
        ('{"a.b"="d"}', '{"a.b"="d"}', "vector"),
        ("x{a=`\\d+`}", 'x{a="\\\\d+"}', "vector"),
        ('"a\\tb"', '"a\\tb"', "string"),
        ("'it\\'s'", '"it\'s"', "string"),
        ("x # comment\n + y", "x + y", "vector"),
        ("sum", "sum", "vector"),
        ("by{on='x'}", '{"by", on="x"}', "vector"),
        ("and and or", '{"and"} and {"or"}', "vector"),
        ("offset[5m] offset 5m", '{"offset"}[5m] offset 5m', "matrix"),
        ('{"bool"}', '{"bool"}', "vector"),
        ('{"a","b"}', '{"a", __name__="b"}', "vector"),
        ('{"a",__name__!="b"}', '{"a", __name__!="b"}', "vector"),
        ("bool", None, None),
        ("on{a='b'}", None, None),
        ("by by", None, None),
        ("inf{a='b'}", None, None),
        ("a{__name__!='b'}", None, None),
        ("a:b:c{}", "a:b:c", "vector"),
        ("sum by (a:b, :c) (x)", 'sum by ("a:b", ":c") (x)', "vector"),
        ("sum by (inf) (x)", None, None),
        ('sum by ("inf") (x{nan="1"})', 'sum by ("inf") (x{"nan"="1"})', "vector"),
        ("a + on (NaN) b", None, None),
        ("10 - on () x", "10 - x", "vector"),
        ("10 - on (a) x", None, None),
    ],
)
def test_parses_to(text: str, canonical: str | None, kind: str | None) -> None:
    if canonical is None:
        refused(text)
        return
    plan = parse(text)
    assert unparse(plan) == canonical
    assert plan.type == kind
    assert parse(canonical) == plan


@pytest.mark.parametrize(
    ("text", "kind", "line", "column", "message", "suggestion"),
    [
        ("", "parse", 1, 1, "no expression found", None),
        ("sum(x", "parse", 1, 4, "unclosed `(`", "add the missing `)`"),
        ("x{a='b'", "parse", 1, 2, "unclosed `{`", "add the missing `}`"),
        ("x)", "parse", 1, 2, "unexpected `)`: nothing is open", None),
        ("(x]", "parse", 1, 3, "unexpected `]`: `(` is still open", "close it with `)` first"),
        ("rat(x[5m])", "parse", 1, 1, "unknown function `rat`", "did you mean `rate`?"),
        ("a +\n  sume(b)", "parse", 2, 3, "unknown function `sume`", "did you mean `sum`?"),
        ("rate(x)", "type", 1, 6,
         "argument 1 of `rate` must be a range vector, not an instant vector",
         "add a range, as in `x[5m]`"),
        ("abs(x[5m])", "type", 1, 5,
         "argument 1 of `abs` must be an instant vector, not a range vector",
         "wrap it, as in `rate(…)` or `avg_over_time(…)`, or drop the range"),
        ("x[5m] > 1", "type", 1, 1, "`>` needs scalars or instant vectors, not a range vector",
         "wrap it, as in `rate(…)`"),
        ("rate(x[5m], 1)", "type", 1, 1, "`rate` takes 1 argument, not 2", None),
        ("round()", "type", 1, 1, "`round` takes 1 to 2 arguments, not 0", None),
        ("sum(1)", "type", 1, 5,
         "the aggregated argument of `sum` must be an instant vector, not a scalar",
         "wrap it, as in `vector(…)`"),
        ("topk(x, y)", "type", 1, 6,
         "the parameter of `topk` must be a scalar, not an instant vector",
         "wrap it, as in `scalar(…)`"),
        ("1 > 2", "type", 1, 3, "a comparison of two scalars must use `bool`", "write `> bool`"),
        ("a + bool b", "type", 1, 3, "`bool` can only be used with comparisons", None),
        ("a and 1", "type", 1, 3, "`and` is only for instant vectors", None),
        ("a + on(x) 1", "type", 1, 3, "matching labels are only for two instant vectors", None),
        ("a and on(x) group_left b", "type", 1, 3,
         "`and` cannot have `group_left` or `group_right`", None),
        ("a * on(x) group_left(x) b", "type", 1, 3,
         "label `x` is in `on` and in the group clause", None),
        ("{}", "type", 1, 1,
         "a selector needs at least one matcher that excludes the empty value", "name a metric"),
        ("x{a='1' or b='2'}", "unsupported", 1, 9, "`or` between matchers is not PromQL",
         "write `=~\"a|b\"` or join two selectors with `or`"),
        ("x{a=b}", "parse", 1, 5, "the value of label `a` is a quoted string", 'write `a="b"`'),
        ("x{a=='b'}", "parse", 1, 4, "a matcher has a single `=`", "write `=`"),
        ("x{a=~'('}", "parse", 1, 6, "bad regex `(`: missing )", None),
        ("x = 1", "parse", 1, 3, "unexpected `=`: it does not compare", "write `==`"),
        ("0x" + "f" * 300, "parse", 1, 1, "bad number `0x" + "f" * 38 + "`", None),
        ("x[" + "9" * 30 + "s]", "parse", 1, 3,
         "duration `" + "9" * 30 + "s` is out of range", None),
        ("x[5min]", "parse", 1, 3, "bad number or duration `5min`", "did you mean `5m`?"),
        ("x[1m1h]", "parse", 1, 3,
         "`1m1h` is not a duration: write units from large to small, as in `1h30m`", None),
        ("x[0s]", "parse", 1, 3, "a range must be longer than 0", None),
        ("x[3 m]", "parse", 1, 5, "unexpected `m`: a duration has no spaces, as in `5m`", None),
        ("x offset 1h[5m]", "parse", 1, 12, "`offset` must come after the range",
         "write `metric[5m] offset 1h`"),
        ("rate(x[5m]) offset 1m", "parse", 1, 13,
         "only a selector or a subquery can have `offset`", None),
        ("sum(x)[5m]", "type", 1, 7, "a range `[…]` is only allowed after a selector",
         "a subquery needs a colon, as in `[5m:1m]`"),
        ("x[5m+1m]", "unsupported", 1, 5,
         "duration expressions are experimental and not supported",
         "write the duration itself, as in `5m`"),
        ("x[5m] anchored", "unsupported", 1, 7,
         "the modifier `anchored` is experimental and not supported", None),
        ("rate(x[5m] anchored)", "unsupported", 1, 12,
         "the modifier `anchored` is experimental and not supported", None),
        ("a + on (x) fill (0) b", "unsupported", 1, 12,
         "the modifier `fill` is newer than Prometheus 3.5 and experimental",
         "join with `or` instead"),
        ("x smoothed", "unsupported", 1, 3,
         "the modifier `smoothed` is experimental and not supported", None),
        ("info(x)", "unsupported", 1, 1, "function `info` is experimental and not supported", None),
        ("limitk(1, x)", "unsupported", 1, 1,
         "aggregation `limitk` is experimental and not supported", None),
        ("mad_over_time(x[5m])", "unsupported", 1, 1,
         "function `mad_over_time` is experimental and not switched on", SWITCH_ON),
        ("x > $limit", "parse", 1, 5, "unexpected `$`: a dashboard variable is not PromQL",
         "write the value in its place"),
        ("x > 5 && y > 5", "parse", 1, 7, "unexpected character `&`", "write `and`"),
        ("x > 5 || y > 5", "parse", 1, 7, "unexpected character `|`", "write `or`"),
        ("x > “5”", "parse", 1, 5, "unexpected `“`", "use straight quotes, `\"` or `'`"),
        ('x{a="b', "parse", 1, 5, 'unterminated string, it starts with "', None),
        ("'\\q'", "parse", 1, 1, "unknown escape `\\q` in a string",
         "double the backslash, or use backticks"),
        ("a b", "parse", 1, 3,
         "unexpected `b`: the expression should end or go on with an operator", None),
    ],
)
def test_refuses_with_a_place(
    text: str, kind: str, line: int, column: int, message: str, suggestion: str | None
) -> None:
    error = refused(text)
    assert (error.message, error.suggestion) == (message, suggestion)
    assert (error.kind, error.line, error.column) == (kind, line, column)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 20_000 + "x" + ")" * 20_000, "(" * 20_000, "-" * 20_000 + "x", "abs(" * 6_000 + "x",
        " or ".join(["x"] * 5_000), "+".join(["1"] * 4_000), "^".join(["2"] * 3_000),
        "x" * 1_000_000, "x{" + "a='b'," * 20_000 + "}", "sum(" * 101 + "x" + ")" * 101,
        " or ".join(["x"] * 300), "- " * 200 + "x", "x" + "[5m:1m]" * 3_000,
    ],
    ids=range(13),
)
def test_long_or_deep_input_is_refused(text: str) -> None:
    assert refused(text).kind in ("limit", "type")


@pytest.mark.parametrize("tail", ["x", "_", "e", ".5x", "e5x", "_1x", "."])
def test_a_long_number_that_ends_badly_is_not_tried_in_all_ways(tail: str) -> None:
    message = refused("1" * 60_000 + tail).message
    assert message == f"bad number or duration `{'1' * 40}`" or "out of range" in message


def test_reasonable_chains_and_nesting_are_fine() -> None:
    parse(" or ".join(["x"] * 150))
    parse("abs(" * 60 + "x" + ")" * 60)


def test_experimental_functions_can_be_switched_on() -> None:
    assert parse("mad_over_time(x[5m])", experimental=True).type == "vector"
    assert parse("double_exponential_smoothing(x[5m], 0.5, 0.5)", experimental=True)


def test_the_error_without_it_says_how_to_switch_it_on() -> None:
    for name in ("double_exponential_smoothing", "holt_winters"):
        hint = refused(f"{name}(x[5m], 0.5, 0.5)").suggestion or ""
        assert "--enable-feature=promql-experimental-functions" in hint
        assert "enable_features: [promql-experimental-functions]" in hint
    assert "it is `double_exponential_smoothing` now" in hint


def test_selectors_are_listed_once_with_their_reach() -> None:
    plan = parse("rate(x{a='b'}[5m] offset 1m) / rate(x{a='b'}[5m] offset 1m) + y")
    first, second = selectors(plan)
    assert (first.metric_name, first.range_ms, first.offset_ms) == ("x", 300_000, 60_000)
    assert [m.name for m in first.matchers] == ["__name__", "a"]
    assert isinstance(second, Selector) and second.range_ms == 0


def test_equal_plans_are_one_key() -> None:
    assert len({parse("sum by(a)(x)"), parse("SUM (x) BY (a)"), parse("(sum by (a) ((x)))")}) == 1


def test_the_same_error_can_be_raised_again() -> None:
    assert refused("x{").message == refused("x{").message
    assert refused("x{") is not refused("x{")


@pytest.mark.parametrize(
    ("text", "column", "suggestion"),
    [
        ("a > 90%", 8, "`%` is the remainder of a division: write a share as 0.9"),
        ("a => 5", 3, "write `>=`"),
        ("a =< 5", 3, "write `<=`"),
        ("a > = 5", 5, "write `>=`, without a blank"),
        ("a === 5", 5, "write `==`"),
        ("a ≥ 5", 3, "write `>=`"),
        ("a \u00d7 2 > 5", 3, "write `*`"),
        ("a \u2013 b > 5", 3, "write `-`"),
        ("a > 5 for 5m", 7, "`for: 5m` is a field of its own"),
        ("(a > 5 for 5m)", 8, "`for: 5m` is a field of its own"),
        ("sum(a) > 5 by (b)", 12, "`by (…)` stands at the aggregation"),
        ("a * group_left (c) b > 5", 5, "write `on (…)` or `ignoring (…)` before `group_left`"),
        ("sum by b (a) > 5", 8, "write `(b)`"),
        ("a > 1,000", 6, "write the number without commas: `1000`"),
        ("a > 5, b > 6", 6, "write `or` or `and` between conditions"),
        ("a > 1k", 5, "write `1e3`"),
        ("a > 16GiB", 5, "write `16 * 2^30`"),
        ("rate(a[5M]) > 1", 8, "write `5m` for minutes"),
        ("rate(a[1H]) > 1", 8, "did you mean `1h`?"),
        ("mean(a) > 1", 1, "did you mean `avg`?"),
        ("percentile(95, a) > 1", 1, "did you mean `quantile`?"),
        ("p95(a) > 1", 1, "write `histogram_quantile(0.95, …)` over buckets"),
    ],
)
def test_says_what_another_language_meant(text: str, column: int, suggestion: str) -> None:
    error = refused(text)
    assert error.column == column
    assert suggestion in (error.suggestion or ""), error
