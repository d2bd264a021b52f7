"""Label values that no series has: a pattern after `=`, a glob after `=~`, a dashboard's variable.

Such a matcher parses, selects nothing, and the policy is blind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from resilience.policy import catalogue
from resilience.policy.lint_view import Remark, View
from resilience.policy.words import nearest
from resilience.promql.plan import Matcher

# `$` before a letter is nothing else: in a regular expression nothing can follow the end.
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_][\w.:]*\})|\[\[\w+\]\]|\{\{.*?\}\}")
_PATTERN = re.compile(r"\.[*+]|^[\w./:-]+(?:\|[\w./:-]+)+$")
_GLOB = re.compile(r"^(?:[\w/:-]|\\\.)*[\w/:-]\*$")
_WHOLE = re.compile(r"[0-9]+")
# Their client writes a bucket's bound as a float, as Prometheus 3 does with every bound.
_FLOATS = frozenset({"vllm", "sglang"})
_FINISHED = frozenset({"stop", "length", "abort", "error", "repetition"})


def values(view: View) -> Iterator[Remark]:
    """Say of each matcher whose value cannot be met what was meant."""
    for selector in view.selectors:
        known = catalogue.lookup(selector.metric_name or "")
        for matcher in selector.matchers:
            if matcher.name == "__name__":
                continue
            found = _written(matcher) or (known and (
                _bound(matcher, known) or _reason(matcher, known)))
            if found:
                yield Remark(selector, "label-value", *found)


_Said = tuple[str, str]


def _written(matcher: Matcher) -> _Said | None:
    """Judge the text alone."""
    name, op, value = matcher.name, matcher.op, matcher.value
    variable = _VARIABLE.search(value)
    if variable is not None:
        what = "of a template" if variable.group().startswith("{") else "of a dashboard"
        return (f"`{variable.group()}` in `{name}` is a variable {what}: nobody fills it in here, "
                "and no series has it", "write the value in its place")
    if op in ("=", "!=") and _PATTERN.search(value):
        return (f"`{op}` compares `{name}` with `{value}` as a plain text",
                f"a pattern needs `{'=~' if op == '=' else '!~'}`")
    if op in ("=~", "!~") and _GLOB.match(value):
        return (f"`*` repeats the character before it: `{value}` is a pattern of regular "
                "expressions, for the whole value", f"write `{value[:-1]}.*`")
    return None


def _bound(matcher: Matcher, known: catalogue.Known) -> _Said | None:
    """A bucket is found by the text of its bound."""
    if matcher.name != "le" or matcher.op != "=" or known.part != "bucket":
        return None
    value = matcher.value
    if known.metric.stack in _FLOATS and _WHOLE.fullmatch(value):
        return (f"no bucket has `le=\"{value}\"`: bounds are written as floats",
                f"write `le=\"{value}.0\"`")
    try:
        float(value)
    except ValueError:
        return (f"`{value}` is no bound of a bucket", f"write a number{_unit(known)} or `+Inf`")
    return None


def _unit(known: catalogue.Known) -> str:
    return f" of {known.metric.unit}" if known.metric.unit else ""


def _reason(matcher: Matcher, known: catalogue.Known) -> _Said | None:
    """Why vLLM ends a request is one of a few words; one that is like none of them may be new."""
    value = matcher.value
    if known.metric.stack != "vllm" or matcher.name != "finished_reason" or matcher.op != "=" \
            or value in _FINISHED:
        return None
    meant = nearest(value, _FINISHED, 0.75)
    return (f"`finished_reason` is never `{value}`: selects nothing", f"did you mean `{meant}`?") \
        if meant else None
