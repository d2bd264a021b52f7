"""The ladder on a real vLLM: an adapter, a stored answer, a template, in turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from resilience.cores.client import HttpCore
from resilience.model import Claim, EngineConfig, Rung

pytestmark = pytest.mark.live
MakeClaim = Callable[..., Claim]
SORRY = Rung("sorry", "template", text="please come back later")


@pytest.fixture
def climb(core: HttpCore) -> Iterator[Callable[..., None]]:
    """Return a function that gives the running gate these rungs; they go at the end."""

    def give(*rungs: Rung) -> None:
        core.configure_gate(replace(EngineConfig(), ladder=rungs), deadline_ms=5_000)

    yield give
    give()


def test_each_kind_of_rung_answers_in_its_turn(
    api: Any, driver: Any, claim: MakeClaim, served_names: Any, climb: Callable[..., None]
) -> None:
    adapter = served_names[1]
    style = Rung("style", "lora", model=adapter, context=64, timeout_ms=60_000)
    climb(style, Rung("stored", "cached"), SORRY)
    before = api.complete("the ladder", 200).json()
    driver.hold(claim("route.model", {"to": "ladder", "share": 1.0}),
                claim("throttle.max_concurrency", 0, tier="core"))
    first = api.complete("the ladder", 4)
    assert (first.json()["model"], first.headers["x-resilience-rung"]) == (adapter, "style")
    stored = api.complete("the ladder", 200, tier="core")
    assert stored.json()["choices"][0]["text"] == before["choices"][0]["text"]
    assert stored.headers["x-resilience-cached"] == "true"
    last = api.complete("another", 200, tier="core")
    assert last.json()["choices"][0]["text"] == SORRY.text
    with api.stream("another", 200) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert json.loads(lines[0])["choices"][0]["text"] == SORRY.text and lines[-1] == "[DONE]"
    for rung in ("style", "stored", "sorry"):
        assert api.metric("resilience_gate_rungs_total", rung=rung, outcome="served") >= 1
    driver.hold()
    assert "x-resilience-rung" not in api.complete("the ladder", 4).headers
