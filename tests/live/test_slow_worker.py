"""A worker that stands still while the core looks at its memory: it is late, and nothing else."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from resilience.model import HealthSettings
from tests.live import serving as kit

pytestmark = pytest.mark.live
LATE_S = 10  # for the answer, once it was asked


def test_an_answer_that_a_worker_owes_is_not_taken_for_a_steps(server: Any, api: Any) -> None:
    (pid,) = kit.of_engine(server.pid, "VLLM::Worker")
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(HealthSettings().every_ms / 1_000 + LATE_S)
    finally:
        os.kill(pid, signal.SIGCONT)
    for _ in range(3):
        assert api.complete("x", 4).json()["usage"]["completion_tokens"] == 4
    kit.eventually(lambda: api.client.get("/resilience/health").json()["status"] == "well")
