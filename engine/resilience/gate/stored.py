"""Stored answers for the ladder's rung `cached`: bounded, and each tenant sees only its own.

Only an answer that an equal request would have got again is stored: temperature 0, one choice, no
tools, all of it at once. What is equal is told by the whole body but for how the answer is sent.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilience.gate.rungs import TEXT_PATHS, has_tools, is_plain

ANSWER_MAX = 256 * 1024
USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")
ENTRY_COST = 256                        # what a small entry takes beside its bytes
_HOW_SENT = ("stream", "stream_options", "user", "priority", "request_id")
_MAY_REPEAT = re.compile(rb'"temperature"\s*:\s*-?0(?:\.0*)?\s*[,}]')


def may_repeat(body: bytes) -> bool:
    """Say whether a body could be deterministic, without parsing it."""
    return _MAY_REPEAT.search(body) is not None


def key_of(tenant: str, path: str, fields: Mapping[str, Any]) -> bytes | None:
    """Return what equal requests of one tenant share; None for one that may not be stored."""
    temperature = fields.get("temperature")
    if path not in TEXT_PATHS or isinstance(temperature, bool) or temperature != 0:
        return None
    if has_tools(fields) or not is_plain(fields):
        return None
    kept = {name: value for name, value in fields.items() if name not in _HOW_SENT}
    try:
        text = json.dumps([tenant, path, kept], sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class Stored:
    """One answer: its JSON as it was sent, what of it a stream tells, and when it was sent
    (monotonic ms). `end` is its finish_reason."""

    body: bytes
    text: str
    model: str
    t_ms: int
    end: str = "stop"
    usage: Mapping[str, int] | None = None


def stored_of(body: bytes, path: str, t_ms: int) -> Stored | None:
    """Return what can be stored of a whole answer: one finished choice of plain text."""
    try:
        found = json.loads(body)
        (choice,) = found["choices"]
        text = choice["text"] if path == "/v1/completions" else choice["message"]["content"]
        end, model = choice["finish_reason"], found["model"]
        is_whole = end in ("stop", "length")
        usage = _counts(found.get("usage"))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not is_whole or not isinstance(text, str) or not isinstance(model, str):
        return None
    return Stored(body, text, model, t_ms, end, usage)


def _counts(usage: Any) -> Mapping[str, int] | None:
    """Return the token counts; what is told beside them is no part of a stream told again."""
    if not isinstance(usage, dict):
        return None
    return {name: usage[name] for name in USAGE if isinstance(usage.get(name), int)}


class Answers:
    """The newest answers within `bytes_max`; those used longest ago go first."""

    def __init__(self, bytes_max: int, max_age_ms: int) -> None:
        self.bytes_max = bytes_max
        self.max_age_ms = max_age_ms
        self.bytes = 0
        self._kept: OrderedDict[bytes, Stored] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, key: bytes, answer: Stored) -> None:
        """Keep an answer, at the cost of the oldest ones; one that is too large is not kept."""
        self._drop(key)
        if len(answer.body) > ANSWER_MAX or _size(answer) > self.bytes_max:
            return
        self._kept[key] = answer
        self.bytes += _size(answer)
        while self.bytes > self.bytes_max:
            self._drop(next(iter(self._kept)))

    def get(self, key: bytes, now_ms: int) -> Stored | None:
        """Return the answer to an equal request, unless it is too old."""
        found = self._kept.get(key)
        if found is None:
            return None
        if now_ms - found.t_ms > self.max_age_ms:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return found

    def _drop(self, key: bytes) -> None:
        gone = self._kept.pop(key, None)
        if gone is not None:
            self.bytes -= _size(gone)


def _size(answer: Stored) -> int:
    return len(answer.body) + len(answer.text) + ENTRY_COST
