"""The core contract over a live vLLM server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from resilience.cores.client import HttpCore
from tests.contract.core_suite import CoreContract, Subject

pytestmark = pytest.mark.live


class TestLiveVllmCore(CoreContract):
    @pytest.fixture
    def subject(self, core: HttpCore, driver: Any) -> Iterator[Subject]:
        """A lease is counted on the server's own clock, so here time has to pass."""

        def let_pass_ms(ms: int) -> None:
            time.sleep(ms / 1000)

        yield Subject(core, driver.epoch, let_pass_ms)
