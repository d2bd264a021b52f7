"""The recorded incidents of the corpus: the shipped rules fire where the note says, and only there.

Each lesson is also a small recording of our own (lessons.py), which needs no corpus.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilience.model import State

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(os.environ.get("RESILIENCE_CORPUS", ROOT.parent / "shared" / "corpus")) / "replay"
# recording -> policy -> between which seconds it first fires
EXPECTED: dict[str, dict[str, tuple[int, int]]] = {
    "01_vllm2731_hang": {
        "kv-pressure": (0, 30), "queue-growth": (0, 60), "stalled-engine": (190, 240),
    },
    "03_llmscaler391_wedge": {"wedged-queue": (480, 610), "kv-pressure": (1000, 1100)},
    "05_vllm37307_ramp": {"kv-slope": (20, 40)},
    "07_vllm50425_orphan_kv": {
        "orphaned-kv": (410, 470), "kv-pressure": (405, 430), "queue-growth": (400, 430),
        "kv-slope": (200, 390),
    },
    "09_dp_two_engines": {"engine-imbalance": (55, 90), "kv-pressure": (0, 30)},
    "11_counter_reset_restart": {"engine-restarted": (680, 720)},
}
TEXTS = sorted(FOLDER.glob("*.om.txt")) if FOLDER.is_dir() else []
pytestmark = pytest.mark.skipif(not TEXTS, reason=f"no recordings at {FOLDER}: RESILIENCE_CORPUS")


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name.removesuffix(".om.txt"))
def test_the_rules_fire_where_the_note_says(replay: Callable[[Path], Any], text: Path) -> None:
    found = replay(text)
    expected = EXPECTED.get(text.name.removesuffix(".om.txt"))
    if expected is None:
        return                           # more exist than are shown; it could be read and replayed
    fired = found.fired()
    assert set(fired) == set(expected)
    for policy, (low, high) in expected.items():
        assert low <= fired[policy] <= high, (policy, fired)


def test_the_full_engine_is_named(replay: Callable[[Path], Any]) -> None:
    text = FOLDER / "09_dp_two_engines.om.txt"
    if not text.is_file():
        pytest.skip("this recording is not in the corpus")
    replayed = replay(text)
    for policy in ("kv-pressure", "engine-imbalance"):
        found = [d for d in replayed.of(policy) if d.to_state is State.FIRING]
        assert {dict(d.labels)["engine"] for d in found} == {"0"}
