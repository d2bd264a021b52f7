"""Evaluated ahead or tick by tick, a dry run decides the same, byte for byte."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest

from resilience.app import columns, dryrun
from resilience.app.bundles import Sources, check_sources
from resilience.model import Decision, Labels, TriggerObservation, canonical_json, labels_of
from resilience.policy.state import EngineState
from resilience.promql.storage import ABSENT
from resilience.sources.recording import Recording, RecordingMeta
from resilience.sources.store import Group, MemoryStore

START_MS = 1_700_000_010_000
STEP_MS = 15_000
COLUMNS = 240

EXPRS = {
    "gauge": "queue > 10",
    "ratio": "sum by (pod) (rate(bad_total[2m])) / sum by (pod) (rate(all_total[2m])) > 0.5",
    "both": "queue > 10 and on (pod) cache > 0.5",
    "either": "queue > 30 or cache > 0.9",
    "unless": "queue > 10 unless on (pod) cache > 0.9",
    "absent": "absent(queue)",
    "bool": "queue > bool 10",
    "scalar": "scalar(sum(queue)) > bool 40",
    "top": "topk(1, queue) > 10",
    "start": "queue > queue @ start() + 1",
    "sorted": "sort_desc(queue) > 10",
    "late": "queue offset 2m > 20",
    "early": "queue offset -10s > 20",
    "early_rate": "sum by (pod) (rate(all_total[2m] offset -30s)) > 0.1",
    "fixed": "queue > queue @ 1700001500",
    "warm": "after > 10",
    "never": "nothing > 1",
    "clash": "label_replace(queue, 'pod', 'x', 'pod', '.*') > 0",
}
POLICY = """apiVersion: resilience/v1
kind: Policy
metadata: {{name: {name}}}
spec:
  interval: {interval}
  on_missing_metric: warn
  trigger:
    expr: "{expr}"
    for: 30s
    {ends}
    on_no_data: {blind}
    warm_up: {warm_up}
  actions: [{{type: throttle, tier: best-effort, max_concurrency: 4, lease: 30s}}]
  recovery: {{steps: [50%, 100%], every: 30s}}
  limits: {{cooldown: 1m, rate: [{{max: 8, per: 30m}}]}}
"""
# What may change a firing while its trigger and resolve say the same.
MOVING = {
    "stages": "  escalation:\n    - after: 2m\n      actions: [{type: cache_degrade, "
              "max_running: 8, lease: 30s}]\n",
    "guarded": "  guard: {expr: 'queue > 37', quarantine: 5m}\n",
    "verified": "  verify: {expr: 'queue < 8', within: 2m, on_failure: rollback}\n",
    "first": "  group: one\n  priority: 90\n",
    "second": "  group: one\n",
    "shadow": "  mode: shadow\n",
}
ENDS = ("keep_firing_for: 30s", 'resolve: {expr: "queue < 5", for: 30s}')
KINDS = ((0, "hold"), (1, "hold"), (0, "fire"), (1, "resolve"))


def _series(name: str, values: Sequence[float], **labels: str) -> tuple[Labels, Sequence[float]]:
    return labels_of({"__name__": name, "job": "vllm", **labels}), values


def _recording(columns: int = COLUMNS) -> Recording:
    """Two pods, one of which vanishes; a gap in all; NaN; a counter that stands still: the first
    `columns` of it."""
    steps = range(COLUMNS)
    gone = [ABSENT] * 40
    rows = [
        _series("queue", [20 + 19 * math.sin(i / 9) for i in steps], pod="a"),
        _series("queue", [*(float(i % 37) for i in range(120)), *gone,
                          *(12.0 for _ in range(80))], pod="b"),
        _series("cache", [0.4 + 0.6 * (i // 50 % 2) for i in steps], pod="a"),
        _series("cache", [math.nan if i % 60 > 50 else 0.7 for i in steps], pod="b"),
        _series("after", [50.0 if i > 220 else 0.0 for i in steps], pod="a"),
        _series("bad_total", [float(max(0, i - 100) * 3) for i in steps], pod="a"),
        _series("all_total", [float(min(i, 180) * 4) for i in steps], pod="a"),
    ]
    values = np.array([row for _, row in rows], dtype=float)
    values[:, 205:225] = ABSENT
    times = START_MS + np.arange(COLUMNS, dtype=np.int64) * STEP_MS
    seqs = np.arange(1, COLUMNS + 1, dtype=np.int64)
    times, seqs, values = times[:columns], seqs[:columns], values[:, :columns]
    group = Group(times, seqs, tuple(labels for labels, _ in rows), values)
    meta = RecordingMeta(
        "test", scrape_interval_ms=STEP_MS, start_ms=START_MS, end_ms=int(times[-1])
    )
    return Recording(MemoryStore.from_groups([group]), (), meta)


def _files() -> tuple[tuple[str, bytes], ...]:
    found: list[tuple[str, bytes]] = []
    for number, (key, expr) in enumerate(EXPRS.items()):
        for ends, blind in KINDS:
            name = f"{key}-{ends}-{blind}"
            text = POLICY.format(
                name=name, expr=expr, ends=ENDS[ends], blind=blind,
                interval=("30s", "20s")[number % 2], warm_up=1 + 4 * ends,
            )
            found.append((f"{name}.yaml", text.encode()))
    for number, (name, more) in enumerate(MOVING.items()):
        text = POLICY.format(
            name=name, expr=f"queue > {9 + number}", ends=ENDS[number % 2], blind="hold",
            interval=("30s", "20s")[number % 2], warm_up=1 + number % 3,
        ) + more
        found.append((f"{name}.yaml", text.encode()))
    return tuple(found)


def _cut_files() -> tuple[tuple[str, bytes], ...]:
    engine = """apiVersion: resilience/v1
kind: Engine
metadata: {name: engine}
spec: {limits: {claims: 2}}
"""
    files = [("engine.yaml", engine.encode())]
    for name, expr, tier, priority in (
        ("low", "queue > 10", "best-effort", 10), ("high", "queue{pod='a'} > 30", "core", 90),
    ):
        text = POLICY.format(
            name=name, expr=expr, ends=ENDS[0], blind="hold", interval="30s", warm_up=1,
        ).replace("best-effort", tier) + f"  priority: {priority}\n"
        files.append((f"{name}.yaml", text.encode()))
    return tuple(files)


class _Words:
    """What a watcher is told, as one word for each tick."""

    def __init__(self) -> None:
        self.ticks: dict[int, list[int]] = {}
        self.said: dict[str, dict[int, str]] = {}

    def began(self, state: EngineState) -> None:
        del state

    def decided(self, decision: Decision) -> None:
        del decision

    def ticked(self, t_ms: int, interval_ms: int) -> None:
        self.ticks.setdefault(interval_ms, []).append(t_ms)

    def saw(self, policy: str, t_ms: int, observation: TriggerObservation) -> None:
        truths = [(s.labels, s.truth, s.reason) for s in observation.series]
        self.said.setdefault(policy, {})[t_ms] = str((truths, observation.missing))

    def filled(self, policy: str, interval_ms: int) -> list[str]:
        last, found = "", list[str]()
        for t_ms in self.ticks[interval_ms]:
            last = self.said[policy].get(t_ms, last)
            found.append(last)
        return found


Run = tuple[list[str], dryrun.Outcome, _Words]


def _run(files: tuple[tuple[str, bytes], ...] | None = None, columns: int = COLUMNS) -> Run:
    decisions: list[str] = []
    words = _Words()
    outcome = dryrun.run(
        check_sources(Sources(files or _files())).bundle, _recording(columns), watcher=words,
        on_decision=lambda d: decisions.append(canonical_json(d.to_json())),
    )
    return decisions, outcome, words


def _run_by_tick(files: tuple[tuple[str, bytes], ...] | None = None) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dryrun, "_columns", lambda *_: {})
        return _run(files)


@pytest.fixture(scope="module")
def by_tick() -> Run:
    return _run_by_tick()


@pytest.mark.parametrize("block", [7, 2_048])
def test_ahead_is_the_same_as_tick_by_tick(
    block: int, by_tick: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "BLOCK_STEPS", block)
    ahead, found, words = _run()
    assert ahead == by_tick[0]
    assert len(ahead) > 200
    assert MOVING.keys() <= {json.loads(d)["policy"] for d in ahead}
    assert found == by_tick[1]
    for number, key in enumerate(EXPRS):
        for ends, blind in KINDS:
            name, interval_ms = f"{key}-{ends}-{blind}", (30_000, 20_000)[number % 2]
            assert words.filled(name, interval_ms) == by_tick[2].filled(name, interval_ms), name


@pytest.mark.parametrize("columns", [60, 118, 230])
def test_what_comes_later_changes_nothing(columns: int, by_tick: Run) -> None:
    """Live, there is nothing yet where an offset or a fixed time lies ahead of the tick."""
    end_ms = START_MS + (columns - 1) * STEP_MS
    until = [d for d in by_tick[0] if json.loads(d)["t_ms"] <= end_ms]
    assert _run(columns=columns)[0] == until
    assert {"early-0-hold", "early_rate-0-hold"} <= {json.loads(d)["policy"] for d in until}


def test_who_is_cut_for_the_number_of_claims_is_looked_at() -> None:
    """One that burns on makes room for a higher priority, and gets its claims back."""
    cut = _cut_files()
    ahead, found, _ = _run(cut)
    assert (ahead, found) == _run_by_tick(cut)[:2]
    low = [d for d in map(json.loads, ahead) if d["policy"] == "low"]
    moved = [d for d in low if d["from"] == d["to"] == "firing"]
    assert {len(d["claims_after"]) for d in moved} == {0, 1}
    assert all(d["inputs"] for d in moved)


def test_a_recorded_run_keeps_its_own_ticks() -> None:
    recording = _recording()
    event = {"type": "tick", "t_ms": START_MS, "interval_ms": 30_000, "seq": 1, "missed": 0}
    ticked = Recording(recording.store, (event,), recording.meta)
    bundle = check_sources(Sources(_files()[:1])).bundle
    assert dryrun.run(bundle, ticked).ticks == 1
