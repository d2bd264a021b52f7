"""Processes of the server that end: its clients get an answer or an end, and the state is true."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from resilience.cores.capture import processes
from resilience.cores.client import HttpCore
from resilience.cores.process import ServerProcess
from resilience.cores.vllm.launch import start
from resilience.errors import CoreUnreachableError
from resilience.model import EngineConfig

pytestmark = pytest.mark.live
READY_S = 240.0
END_S = 90.0
# What PyTorch, vLLM's kernels, C++ and Python say of an allocation that failed.
OUT_OF_MEMORY = re.compile(r"alloc failed|[Cc]an(no|')t allocate|bad_alloc|MemoryError")


def load_conftest() -> ModuleType:
    path = Path(__file__).with_name("conftest.py")
    spec = importlib.util.spec_from_file_location("live_conftest", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


live: Any = load_conftest()


@pytest.fixture
def mortal(tiny_model: Any, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of its own, which the test ends."""
    process = start(
        tiny_model.arguments(live.free_port()), EngineConfig(), tmp_path / "state",
        env=tiny_model.environment,
    )
    try:
        process.wait_ready(READY_S)
        yield process
    finally:
        process.stop(20.0)


def child(server: ServerProcess, *names: str) -> int:
    found = {p["name"]: p["pid"] for p in processes(server.pid)}
    return int(next(pid for name, pid in found.items() if any(n in name for n in names)))


def ask(api: Any, prompt: str = "long", tokens: int = 3_000) -> int:
    """Return the status of one long request; -1 when the connection ended."""
    try:
        return int(api.complete(prompt, tokens).status_code)
    except httpx.HTTPError:
        return -1


def kill_engine(server: ServerProcess) -> None:
    """End the engine process as the kernel would."""
    os.kill(child(server, "Engine"), signal.SIGKILL)


def kill_worker(server: ServerProcess) -> None:
    """End the worker as the kernel does when memory is out: it is the process that holds most."""
    os.kill(child(server, "Worker", "worker"), signal.SIGKILL)


@pytest.mark.parametrize("harm", [kill_engine, kill_worker])
def test_the_server_says_why_or_ends_and_nothing_hangs(
    mortal: ServerProcess, harm: Any
) -> None:
    api, late = live.Api(mortal.url), live.Api(mortal.url)
    with (
        closing(api.client), closing(late.client), ThreadPoolExecutor(3) as pool,
        HttpCore(mortal.url, mortal.token) as core,
    ):
        answers = [pool.submit(ask, api) for _ in range(2)]
        live.eventually(lambda: api.metric("vllm:num_requests_running") == 2)
        harm(mortal)
        answers.append(pool.submit(ask, late))
        statuses = [a.result(timeout=END_S) for a in answers]
        assert all(status == -1 or status >= 500 for status in statuses), statuses
        ends_or_says_so(mortal, core)
    assert not child_lives(mortal)


def test_memory_that_runs_out_in_the_worker_ends_requests_and_nothing_hangs(
    mortal: ServerProcess,
) -> None:
    """An allocation of the worker fails for real: its address space may not grow any more."""
    api = live.Api(mortal.url)
    with closing(api.client), HttpCore(mortal.url, mortal.token) as core:
        live.serving.starve(child(mortal, "Worker", "worker"))
        prompts = (f"{n} " + "memory " * 500 for n in count())
        live.eventually(lambda: ask(api, next(prompts), 2) != 200, END_S)
        ends_or_says_so(mortal, core)
    assert OUT_OF_MEMORY.search(mortal.log.read_text(errors="replace"))
    assert not child_lives(mortal)


def ends_or_says_so(server: ServerProcess, core: HttpCore) -> None:
    ends_s = time.monotonic() + END_S
    while server.exit_code is None and core.is_healthy(deadline_ms=1_000):
        assert time.monotonic() < ends_s, "a server without an engine says that it is well"
    if server.exit_code is not None:
        with pytest.raises(CoreUnreachableError):
            core.actual(deadline_ms=1_000)


def child_lives(server: ServerProcess) -> bool:
    """Say whether some process of the server is left a while after the end."""
    ends_s = time.monotonic() + END_S
    while time.monotonic() < ends_s:
        if server.exit_code is not None and not live.serving.in_group(server.pgid):
            return False
        time.sleep(0.2)
    return True
