"""An incident sets off the same policies however a server tells it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.incidents import lessons, variants

ROOT = Path(__file__).parents[3]
FOLDER = Path(os.environ.get("RESILIENCE_CORPUS", ROOT.parent / "shared" / "corpus")) / "replay"
Replayed = Callable[[Path], Any]
APART_S = 60            # so much may another pace move the moment of a firing


def healthy(name: str, t: float) -> float:
    """What a replica that is well says."""
    if name.endswith("_total"):
        return 0.0 if "preempt" in name or "gate" in name else 1_000 + 160 * t
    gauges = {lessons.RUNNING: 8 + t // 10 % 3, lessons.WAITING: t // 10 % 2, "up": 1.0}
    return gauges[name] if name in gauges else 0.3 + t % 70 / 1_000


# The mean of a full and an empty replica looks well, so that one is told apart.
BESIDE = {"engine-imbalance"}
VARIANTS: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "elsewhere, lossy": (lambda s: variants.lossy(variants.elsewhere(s)), set()),
    "every 30 s, some late": (lambda s: variants.late(variants.every(30)(s)), set()),
    "beside a healthy one, unsteady": (
        lambda s: variants.unsteady(variants.beside(healthy)(s)), BESIDE),
    # Of two clusters with the same addresses, or pods that were scraped without `instance`.
    "beside one that another label tells": (
        variants.beside(healthy, "pod", ("llm-0", "llm-1")), BESIDE),
}
STORIES = {
    name: lessons.text_of(lesson, lessons.DRESSES["engine"])
    for name, lesson in lessons.LESSONS.items() if "engine" in lesson.dresses
} | {
    path.name.removesuffix(".om.txt"): path.read_text(encoding="utf-8")
    for path in (sorted(FOLDER.glob("*.om.txt")) if FOLDER.is_dir() else [])
    if len(path.read_text(encoding="utf-8").splitlines()) > 40      # five samples tell no story
}


@pytest.mark.parametrize("name", STORIES)
def test_the_same_policies_fire(replay: Replayed, tmp_path: Path, name: str) -> None:
    def told(how: str, story: str) -> Any:
        text = tmp_path / f"{how}.om.txt"
        text.write_text(story, encoding="utf-8")
        return replay(text)

    expected = told("as it was", STORIES[name])
    for variant, (change, more) in VARIANTS.items():
        found = told(variant, change(variants.Story.of(STORIES[name])).text())
        fired = found.fired()
        assert set(fired) - more == set(expected.fired()) - more, variant
        for policy, at_s in expected.fired().items():
            assert abs(fired[policy] - at_s) <= APART_S, (variant, policy, fired)
            assert found.firings(policy) <= expected.firings(policy), (variant, policy)
