"""vLLM's processes nap while they wait for each other, on a CPU only, and never at vLLM's cost."""

from __future__ import annotations

import logging
import os
import time
from types import SimpleNamespace

import pytest

from resilience.cores.vllm import naps

# vLLM and PyTorch warn about themselves while they are imported.
pytestmark = pytest.mark.filterwarnings("ignore")


def test_who_waits_looks_again_at_once_and_sleeps_every_so_often(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []
    monkeypatch.setattr(os, "sched_yield", lambda: did.append("yield"))
    monkeypatch.setattr(time, "sleep", lambda s: did.append("nap"))
    for _ in range(5 * naps.YIELDS):
        naps.wait()
    assert did.count("nap") == 5
    assert did.count("yield") == 5 * (naps.YIELDS - 1)


def test_a_vllm_whose_way_to_wait_has_moved_waits_as_before_and_says_so(
    caplog: pytest.LogCaptureFixture
) -> None:
    module = SimpleNamespace(cpu_relax=lambda: None)
    with caplog.at_level(logging.WARNING, "vllm.resilience"):
        assert not naps.put_into(module)
    assert vars(module).keys() == {"cpu_relax"}
    assert "without naps: `sched_yield` has moved" in caplog.text


def test_an_operator_leaves_vllm_as_it_is() -> None:
    assert not naps.install({naps.VARIABLE: "off"})


@pytest.mark.parametrize("on_cpu", [True, False])
def test_only_a_vllm_that_computes_on_the_cpu_naps(
    on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed", exc_type=ImportError)
    from vllm import platforms
    from vllm.distributed.device_communicators import shm_broadcast

    before = vars(shm_broadcast)[naps.NAME]
    monkeypatch.setattr(shm_broadcast, naps.NAME, before)
    monkeypatch.setattr(
        platforms, "_current_platform", SimpleNamespace(is_cpu=lambda: on_cpu), raising=False)
    assert naps.install({}) is on_cpu
    assert vars(shm_broadcast)[naps.NAME] is (naps.wait if on_cpu else before)
