"""What `make bench-ladder` prints is a ladder that `check` takes and `get ladder` shows."""

from __future__ import annotations

from bench.core import ladder_document
from resilience import registry
from resilience.model import Rung, SecondEngineSettings
from resilience.policy.check import check

HEAD = "apiVersion: resilience/v1\nkind: Engine\nmetadata: {name: e}\nspec:\n"
SETTINGS = SecondEngineSettings(
    "torch", "ahead", 2, "float32", memory_mebibytes=900, start_timeout_ms=240_000, stop_after_ms=0
)
LADDER = (
    Rung("small", "model", model="org/s: 8", context=512, tools=True),
    Rung("own", "engine", model="/m", context=512, timeout_ms=30_000, engine=SETTINGS),
    Rung("other", "engine", model="/m", timeout_ms=9_000, engine=SecondEngineSettings()),
    Rung("cpu", "url", model="no", url="http://127.0.0.1:8001", timeout_ms=2_000),
    Rung("stored", "cached", max_age_ms=60_000, max_bytes=2 * 1024 * 1024),
    Rung("sorry", "template", text="We are busy: \"later\", please {again} # soon"),
)


def read(text: str) -> tuple[Rung, ...]:
    found = check([("engine.yaml", text)], {}, registry.catalogue("actions"))
    assert found.bundle is not None and not found.errors, found.findings
    return found.bundle.config.ladder


def test_a_ladder_comes_back_as_it_was() -> None:
    assert read(HEAD + "\n".join(ladder_document.lines(LADDER, {}))) == LADDER


def test_costs_become_the_fields_that_get_ladder_shows() -> None:
    cost = ladder_document.Cost(rate=1.5, tokens_s=36.4, p50_s=0.2, p99_s=0.9004, quality=0.7128)
    small, *rest = read(HEAD + "\n".join(ladder_document.lines(LADDER, {"small": cost})))
    assert (small.throughput, small.p99_ms, small.quality) == (36.0, 900, 0.71)
    assert tuple(rest) == LADDER[1:]
