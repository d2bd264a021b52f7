"""The core contract over the simulated core and over the vLLM core in one process.

The same suite runs over a live vLLM server in tests/live/test_core_contract.py.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from resilience.cores.simulated.core import SimulatedCore

TESTS = Path(__file__).parents[1]


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


suite: Any = load("core_suite", TESTS / "contract" / "core_suite.py")
rig: Any = load("cores_rig", TESTS / "unit" / "cores" / "rig.py")

if TYPE_CHECKING:

    class Contract:
        """Stands for the suite's class, which is loaded by path."""
else:
    Contract = suite.CoreContract


class TestSimulatedCore(Contract):
    @pytest.fixture
    def subject(self) -> Any:
        now = [5_000]

        def let_pass_ms(ms: int) -> None:
            now[0] += ms

        return suite.Subject(SimulatedCore(lambda: now[0]), 3, let_pass_ms)


class TestVllmCoreInOneProcess(Contract):
    @pytest.fixture
    def subject(self) -> Iterator[Any]:
        built = rig.Rig()

        def let_pass_ms(ms: int) -> None:
            built.clock.now += ms

        yield suite.Subject(built.core(), 3, let_pass_ms)
        built.close()
