"""The engine's side of the core's HTTP face: whatever answers there, it is a CoreError."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from resilience.cores.client import HttpCore
from resilience.errors import CoreError, CoreFencedError
from resilience.model import Actual, Capabilities, Desired, Effective, KnobCapability

ACTUAL = Actual(3, 7, {"throttle.max_concurrency": {"": Effective(4, "p", 900)}})
CAPABILITIES = Capabilities(
    "vllm", "0.32.0", {"cache.max_running": KnobCapability("subclass", None, 32, 1)},
    ("reset_prefix_cache",), ("m",), (), 3, 7,
)
CHANGE = {
    "number": 1, "age_ms": 5, "scope": {}, "from": "closed", "to": "open", "policy": "p", "why": "",
}
BREAKERS = {"life": "a1", "events": [CHANGE], "breakers": {}}

Call = Callable[[HttpCore], object]
CALLS: dict[str, Call] = {
    "capabilities": lambda core: core.capabilities(deadline_ms=1_000),
    "put": lambda core: core.put_desired(Desired(1, 1), deadline_ms=1_000),
    "actual": lambda core: core.actual(deadline_ms=1_000),
    "breakers": lambda core: core.breakers(deadline_ms=1_000),
    "impulse": lambda core: core.impulse("k", "reset", None, epoch=1, deadline_ms=1_000),
}


def core_that_says(status: int, body: Any) -> HttpCore:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    transport = httpx.MockTransport(lambda request: httpx.Response(status, content=raw))
    return HttpCore("http://core", "t" * 20, transport=transport)


def test_the_cores_documents_are_read_as_they_were_written() -> None:
    shown = {**CAPABILITIES.to_json(), "gate": {}}
    assert core_that_says(200, shown).capabilities(deadline_ms=1_000) == CAPABILITIES
    assert core_that_says(200, ACTUAL.to_json()).actual(deadline_ms=1_000) == ACTUAL
    assert core_that_says(200, BREAKERS).breakers(deadline_ms=1_000) == BREAKERS


def spoiled(body: dict[str, Any]) -> list[Any]:
    """Return `body` without each field, with each of the wrong type, and with one too many."""
    free = {"value", "baseline"}
    return [
        *({k: v for k, v in body.items() if k != name} for name in body),
        *({**body, name: [["x"]] if name not in ("dropped", "impulses", "models") else 7}
          for name in body.keys() - free),
        {**body, "surprise": 1},
    ]


def inside(body: dict[str, Any], field: str, *path: str) -> list[Any]:
    """Return `body` with each spoiled form of what lies at `path` below `field`."""
    if not path:
        return [{**body, field: inner} for inner in [*spoiled(body[field]), 5]]
    return [{**body, field: inner} for inner in inside(body[field], *path)]


WRONG = [
    *(("actual", b) for b in spoiled(ACTUAL.to_json())),
    *(("actual", b) for b in inside(
        ACTUAL.to_json(), "effective", "throttle.max_concurrency", "")),
    *(("put", b) for b in spoiled(ACTUAL.to_json())),
    *(("capabilities", b) for b in spoiled(CAPABILITIES.to_json())),
    *(("capabilities", b) for b in inside(CAPABILITIES.to_json(), "knobs", "cache.max_running")),
    ("capabilities", {**CAPABILITIES.to_json(), "version": 2}),
    ("impulse", {}),
    *(("breakers", {**BREAKERS, "events": [CHANGE, event]})
      for name in CHANGE.keys() - {"why"}
      for event in ({**CHANGE, name: None}, {**CHANGE, name: True})),
    *(("breakers", body) for body in ({}, {"life": "a1"}, {**BREAKERS, "events": {}},
                                      {**BREAKERS, "life": 7}, {**BREAKERS, "events": [7]})),
]


@pytest.mark.parametrize(("call", "body"), WRONG)
def test_a_document_of_another_shape_is_one_clear_error(call: str, body: Any) -> None:
    with pytest.raises(CoreError, match="strange answer: .*; engine and server"):
        CALLS[call](core_that_says(200, body))


@pytest.mark.parametrize("call", sorted(CALLS))
@pytest.mark.parametrize(("status", "body"), [
    (200, b"<html>"), (200, []), (200, b""), (500, {"error": "x"}), (500, {"error": {}}),
    (409, {"error": {"epoch": "x"}}), (409, {"error": {"epoch": None, "generation": []}}),
    (404, {}), (302, {}), (401, []),
])
def test_any_answer_is_a_core_error(call: str, status: int, body: Any) -> None:
    with pytest.raises(CoreError):
        CALLS[call](core_that_says(status, body))


def test_a_newer_epoch_is_told() -> None:
    body = {"error": {"message": "older", "epoch": 9, "generation": 2}}
    with pytest.raises(CoreFencedError) as caught:
        core_that_says(409, body).actual(deadline_ms=1_000)
    assert (caught.value.epoch, caught.value.generation) == (9, 2)
