"""Fixtures over `rig.py`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from resilience.app.bus import Bus
from resilience.app.journal import MemoryJournal
from resilience.model import Claim, Journal, Json


def _load_rig() -> ModuleType:
    spec = importlib.util.spec_from_file_location("app_rig", Path(__file__).parent / "rig.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


kit = _load_rig()


@pytest.fixture(name="kit")
def kit_fixture() -> ModuleType:
    """The module itself: its classes, `sources` and `fire`."""
    return kit


@pytest.fixture
def clock() -> Any:
    return kit.HandClock()


@pytest.fixture
def core(clock: Any) -> Any:
    return kit.SmallCore(clock)


@pytest.fixture
def journal() -> Journal:
    return MemoryJournal()


@pytest.fixture
def bus(core: Any, journal: Journal, clock: Any) -> Bus:
    return Bus(core, journal, clock, jitter=lambda: 1.0)


@pytest.fixture
def rig(tmp_path: Path, core: Any, clock: Any) -> Iterator[Any]:
    made = kit.Rig(tmp_path / "state", core, clock)
    yield made
    made.close()


@pytest.fixture
def claim() -> Callable[..., Claim]:
    def make(
        policy: str = "p", knob: str = "cache.max_running", value: Json = 8, *,
        tier: str | None = None, ttl_ms: int = 30_000, keep: bool = False, priority: int = 50,
    ) -> Claim:
        scope = (("tier", tier),) if tier else ()
        return Claim(policy, "i1", "0", knob, scope, value, ttl_ms, keep, priority, "sha256:1")

    return make
