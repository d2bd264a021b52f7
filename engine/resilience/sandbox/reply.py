"""The worker's side of the answer: a result checked and small, or why there is none.

The engine checks everything again (`answer.py`): what is written here is for honest UDFs, so that
their authors read what is wrong.
"""

from __future__ import annotations

import math
from typing import Any

from resilience.sandbox.budget import Denied, Run, column_of
from resilience.sandbox.limits import (
    DETAIL_CHARS_MAX,
    RESULT_BYTES_MAX,
    RESULT_DEPTH_MAX,
    RESULT_VALUES_MAX,
    SAFE_INTEGER,
)
from resilience.sandbox.texts import measure
from resilience.sandbox.values import MAPPINGS, kind_of
from resilience.sandbox.wire import frame

Reply = dict[str, Any]


class BadResult(Exception):
    """The returned value is no result; `outcome` says in which way."""

    def __init__(self, message: str, outcome: str = "BAD_RESULT") -> None:
        super().__init__(message)
        self.outcome = outcome


def plain(value: Any) -> Any:
    """Return `value` as plain JSON data; raises BadResult. Walks without recursion."""
    holder: list[Any] = [None]
    stack: list[tuple[Any, Any, Any, int]] = [(value, holder, 0, 0)]
    values = chars = 0
    while stack:
        item, parent, key, depth = stack.pop()
        values += 1
        chars += len(item) if type(item) is str else 1
        if depth > RESULT_DEPTH_MAX or values > RESULT_VALUES_MAX:
            raise BadResult("the result is nested too deeply or has too many values")
        if chars > RESULT_BYTES_MAX:
            raise BadResult(f"the result is larger than {RESULT_BYTES_MAX:,} bytes", "OUTPUT_LIMIT")
        parent[key] = _copy(item, stack, depth)
    return holder[0]


def _copy(item: Any, stack: list[tuple[Any, Any, Any, int]], depth: int) -> Any:
    kind = type(item)
    if kind in MAPPINGS:
        made: dict[str, Any] = {}
        for key in item:
            if type(key) is not str:
                raise BadResult(f"the keys of a result are texts, not {kind_of(key)}")
            made[key] = None
        stack.extend((v, made, k, depth + 1) for k, v in reversed(item.items()))
        return made
    if kind is list or kind is tuple:
        if len(item) > RESULT_VALUES_MAX:
            raise BadResult("the result is nested too deeply or has too many values")
        listed: list[Any] = [None] * len(item)
        stack.extend((item[i], listed, i, depth + 1) for i in reversed(range(len(item))))
        return listed
    return _scalar(item)


def _scalar(item: Any) -> Any:
    if item is None or type(item) in (bool, str):
        return item
    if type(item) is int and abs(item) <= SAFE_INTEGER:
        return item
    if type(item) is float and math.isfinite(item):
        return item
    if type(item) in (int, float):
        raise BadResult("a number of the result is not finite or too large")
    raise BadResult(f"{kind_of(item)} cannot be part of a result")


def ok(result: Any, run: Run) -> Reply:
    """Return the reply for a result that a UDF returned; the first denial wins over it."""
    if run.denied is not None:
        return denied(run.denied, run)
    try:
        body = plain(result)
        if len(frame(body)) > RESULT_BYTES_MAX:
            raise BadResult(f"the result is larger than {RESULT_BYTES_MAX:,} bytes", "OUTPUT_LIMIT")
    except BadResult as error:
        return _failed(error.outcome, str(error), run)
    except ValueError:
        return _failed("BAD_RESULT", "a text of the result is not valid Unicode", run)
    return {"outcome": "ok", "result": body, "detail": None, "log": _log(run)}


def denied(reason: Denied, run: Run) -> Reply:
    return _failed(reason.outcome, reason.message, run)


def raised(error: BaseException, run: Run) -> Reply:
    """Return the reply for an exception that left the UDF."""
    if run.denied is not None:
        return denied(run.denied, run)
    if isinstance(error, MemoryError):
        return _failed("MEMORY", "the UDF needs too much memory", run)
    return _failed("RUNTIME_DENIED", f"{_place(error, run.file)}{describe(error)}", run)


def describe(error: BaseException) -> str:
    """Return `KeyError: 'x'`; fixed for errors whose text differs between Python versions."""
    if isinstance(error, RecursionError):
        return "RecursionError: the recursion is too deep"
    try:
        measure(Run(""), error)
        text = str(error)
    except Exception:  # the text is only for a reader
        text = ""
    except Denied:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: BaseException, file: str) -> str:
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == file:
            place = f"{file}:{trace.tb_lineno}:{column_of(code, trace.tb_lasti)}: "
        trace = trace.tb_next
    return place


def clean(text: str, limit: int = DETAIL_CHARS_MAX) -> str:
    """Return `text` in one line without control characters, cut to `limit` characters."""
    shown = "".join(c if c.isprintable() else " " for c in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _failed(outcome: str, detail: str, run: Run) -> Reply:
    return {"outcome": outcome, "result": None, "detail": clean(detail), "log": _log(run)}


def _log(run: Run) -> str:
    return "".join(run.log).encode("utf-8", "replace").decode()
