"""The shipped rules, and what they do on a recording: imported and dry-run as the commands do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from resilience.app import dryrun
from resilience.app.bundles import check_sources, read_sources
from resilience.cli import resilience
from resilience.model import Bundle, Decision, State
from resilience.sources.recording import read

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Replay:
    """What the rules decided; `start_ms` is the recording's first sample."""

    start_ms: int
    decisions: tuple[Decision, ...]

    def fired(self) -> dict[str, int]:
        """Return policy -> the second at which it first fired."""
        found: dict[str, int] = {}
        for d in self.decisions:
            if d.to_state is State.FIRING and d.from_state is not State.FIRING:
                found.setdefault(d.policy, (d.t_ms - self.start_ms) // 1_000)
        return found

    def firings(self, policy: str) -> int:
        """Return how often a policy has begun to fire."""
        return sum(d.to_state is State.FIRING and d.from_state is not State.FIRING
                   for d in self.of(policy))

    def of(self, policy: str) -> list[Decision]:
        return [d for d in self.decisions if d.policy == policy]


@pytest.fixture(scope="session")
def shipped_bundle() -> Bundle:
    return check_sources(read_sources(ROOT / "rules")).bundle


@pytest.fixture
def replay(shipped_bundle: Bundle, tmp_path: Path) -> Callable[[Path], Replay]:
    """Return a call that imports a text with `record import` and dry-runs the shipped rules."""

    def go(text: Path) -> Replay:
        out = tmp_path / f"{text.name}.parquet"
        done = CliRunner().invoke(resilience, ["record", "import", str(text), "--out", str(out)])
        assert done.exit_code == 0, done.output
        recording = read(out)
        decisions: list[Decision] = []
        dryrun.run(shipped_bundle, recording, on_decision=decisions.append)
        return Replay(recording.meta.start_ms, tuple(decisions))

    return go
