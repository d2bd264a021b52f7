"""The core contract over a live vLLM server."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from resilience.cores.client import HttpCore

pytestmark = pytest.mark.live
PATH = Path(__file__).parents[1] / "contract" / "core_suite.py"


def load_suite() -> Any:
    spec = importlib.util.spec_from_file_location("live_core_suite", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


suite = load_suite()

if TYPE_CHECKING:

    class Contract:
        """Stands for the suite's class, which is loaded by path."""
else:
    Contract = suite.CoreContract


class TestLiveVllmCore(Contract):
    @pytest.fixture
    def subject(self, core: HttpCore, driver: Any) -> Iterator[Any]:
        """A lease is counted on the server's own clock, so here time has to pass."""

        def let_pass_ms(ms: int) -> None:
            time.sleep(ms / 1000)

        yield suite.Subject(core, driver.epoch, let_pass_ms)
