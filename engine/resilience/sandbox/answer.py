"""The engine's side of the answer: everything that a worker sends is hostile until checked here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NoReturn

from resilience.model import UDF_OUTCOMES
from resilience.sandbox.limits import (
    ACTIONS_MAX,
    DETAIL_CHARS_MAX,
    LOG_BYTES_MAX,
    RESULT_BYTES_MAX,
    RESULT_DEPTH_MAX,
    RESULT_VALUES_MAX,
    SAFE_INTEGER,
)

FROM_WORKER = frozenset(UDF_OUTCOMES) - {"QUARANTINED", "TIMEOUT", "CRASH", "SECCOMP_KILL"}
_KEYS = {"outcome", "result", "detail", "log"}


@dataclass(frozen=True, slots=True)
class Rules:
    """What a result may hold. `action_types` None: any type.

    `judge` looks at a result that passed all else, and raises ValueError to refuse it.
    """

    action_types: Collection[str] | None = None
    keys: frozenset[str] = frozenset({"actions", "state", "note"})
    judge: Callable[[Any], object] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A checked answer. `result` is JSON data with `actions`, for outcome `ok` only."""

    outcome: str
    result: Any = None
    detail: str | None = None
    log: str = ""


class Rejected(Exception):
    """The body is no answer; the message says why."""


def read_answer(body: bytes, rules: Rules) -> Answer:
    """Return the answer in `body`, or one with outcome BAD_RESULT or OUTPUT_LIMIT. Never raises."""
    try:
        return _checked(_parse(body), rules)
    except Rejected as error:
        return Answer("BAD_RESULT", None, str(error))


def _parse(body: bytes) -> Any:
    try:
        text = body.decode("utf-8")
        _check_depth(text)
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        raise Rejected("the worker's frame is not valid JSON") from None


def _check_depth(text: str) -> None:
    """Refuse deep nesting before the parser recurses; brackets inside texts count too."""
    if text.count("[") + text.count("{") > 4 * RESULT_VALUES_MAX:
        raise Rejected("the result is nested too deeply or has too many values")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Rejected("a mapping of the result has the same key twice")
    return made


def _constant(name: str) -> NoReturn:
    raise Rejected("a number of the result is not finite or too large")


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant)


def _checked(reply: Any, rules: Rules) -> Answer:
    if not isinstance(reply, dict) or set(reply) != _KEYS:
        raise Rejected("the worker's frame has the wrong keys")
    outcome, result, detail, log = (reply[k] for k in ("outcome", "result", "detail", "log"))
    if not isinstance(outcome, str) or outcome not in FROM_WORKER:
        raise Rejected("the worker's frame has an unknown outcome")
    if not (detail is None or isinstance(detail, str)) or not isinstance(log, str):
        raise Rejected("the worker's frame has the wrong types")
    detail = None if detail is None else one_line(detail)
    log = _clean_log(log)
    if outcome != "ok":
        return Answer(outcome, None, detail, log)
    check_values(result)
    try:
        check_result(result, rules)
    except Rejected as error:
        return Answer("BAD_RESULT", None, str(error), log)
    return Answer("ok", result, None, log)


def check_values(value: Any) -> None:
    """Check depth, number, size and kind of all values, without recursion; raises Rejected."""
    stack: list[tuple[Any, int]] = [(value, 0)]
    count = size = 0
    while stack:
        item, depth = stack.pop()
        count += 1
        size += len(item) if isinstance(item, str) else 1
        if depth > RESULT_DEPTH_MAX or count > RESULT_VALUES_MAX or size > RESULT_BYTES_MAX:
            raise Rejected("the result is nested too deeply or has too many values")
        if isinstance(item, dict):
            for key in item:
                check_scalar(key)
            size += sum(map(len, item))
            stack.extend((v, depth + 1) for v in item.values())
        elif isinstance(item, list):
            stack.extend((v, depth + 1) for v in item)
        else:
            check_scalar(item)


def check_scalar(item: Any) -> None:
    """Refuse numbers that readers of JSON disagree about, and texts that are not Unicode."""
    if isinstance(item, str):
        if any("\ud800" <= c <= "\udfff" for c in item):
            raise Rejected("a text of the result is not valid Unicode")
    elif isinstance(item, int | float) and not _safe_number(item):
        raise Rejected("a number of the result is not finite or too large")


def _safe_number(number: float) -> bool:
    return abs(number) <= SAFE_INTEGER if isinstance(number, int) else math.isfinite(number)


def check_result(result: Any, rules: Rules) -> None:
    """Check the shape that every result has; raises Rejected with what to write."""
    if not isinstance(result, dict):
        raise Rejected("a UDF returns a mapping: write `return {\"actions\": […]}`")
    for key in result:
        if key not in rules.keys:
            raise Rejected(f"the result has the unknown key `{one_line(key, 60)}`; "
                           f"known are {', '.join(sorted(rules.keys))}")
    actions = result.get("actions")
    if not isinstance(actions, list):
        raise Rejected("the result has no list `actions`; an empty list proposes nothing")
    if len(actions) > ACTIONS_MAX:
        raise Rejected(f"the result proposes {len(actions)} actions, at most {ACTIONS_MAX}")
    if not isinstance(result.get("note", ""), str):
        raise Rejected("`note` of the result is a text")
    for index, action in enumerate(actions):
        _check_action(index, action, rules)
    if rules.judge is not None:
        try:
            rules.judge(result)
        except ValueError as error:
            raise Rejected(str(error)) from None


def _check_action(index: int, action: Any, rules: Rules) -> None:
    kind = action.get("type") if isinstance(action, dict) else None
    if not isinstance(kind, str):
        raise Rejected(f"action {index} is not a mapping with a `type`")
    if rules.action_types is not None and kind not in rules.action_types:
        known = ", ".join(sorted(rules.action_types))
        shown = one_line(kind, 60)
        raise Rejected(f"action {index} has the unknown type `{shown}`; known: {known}")


def one_line(text: str, limit: int = DETAIL_CHARS_MAX) -> str:
    """Return `text` without control characters, cut to `limit` characters."""
    shown = "".join(c if c.isprintable() else " " for c in text[:limit])
    return shown if len(text) <= limit else shown[:-1] + "…"


def _clean_log(log: str) -> str:
    return "".join(
        c if c.isprintable() or c in "\n\t" else " " for c in log[: LOG_BYTES_MAX + 64]
    )
