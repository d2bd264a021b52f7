"""What of an Engine document reaches the running gate when a bundle is applied."""

from __future__ import annotations

from typing import Any, cast

from resilience.app.operations import FIXED_AT_START, TOLD_TO_THE_GATE
from resilience.gate.config import GateConfig
from resilience.model import EngineConfig


class Read:
    """An Engine configuration that notes which of its fields are read."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(EngineConfig(), name)


def test_a_change_of_whatever_the_gate_is_made_of_is_told_or_said_to_wait() -> None:
    read = Read()
    GateConfig.from_engine(cast(EngineConfig, read))
    assert read.names - set(TOLD_TO_THE_GATE) - set(FIXED_AT_START) == set()
