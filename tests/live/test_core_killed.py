"""Processes of the server that end: its clients get an answer or an end, and the state is true."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from resilience.cores.capture import processes
from resilience.cores.client import HttpCore
from resilience.cores.process import ServerProcess
from resilience.errors import CoreUnreachableError
from tests.live import serving as kit

pytestmark = pytest.mark.live
END_S, FULL_S = 90.0, 300.0
ENDLESS = kit.TOKENS_MAX
# What PyTorch, vLLM's kernels, C++, OpenMP and Python say of an allocation that failed; that of a
# new thread's stack is one.
OUT_OF_MEMORY = re.compile(
    r"alloc failed|[Cc]an(no|')t allocate|bad_alloc|MemoryError|Thread creation failed"
    r"|can't start new thread")


@pytest.fixture
def mortal(new_server: Callable[..., ServerProcess]) -> ServerProcess:
    return new_server()


def child(server: ServerProcess, *names: str) -> int:
    found = {p["name"]: p["pid"] for p in processes(server.pid)}
    return int(next(pid for name, pid in found.items() if any(n in name for n in names)))


def kill_engine(server: ServerProcess) -> None:
    """End the engine process as the kernel would."""
    os.kill(child(server, "Engine"), signal.SIGKILL)


def kill_worker(server: ServerProcess) -> None:
    """End the worker as the kernel does when memory is out: it is the process that holds most."""
    os.kill(child(server, "Worker", "worker"), signal.SIGKILL)


@pytest.mark.parametrize("harm", [kill_engine, kill_worker])
def test_the_server_says_why_or_ends_and_nothing_hangs(
    mortal: ServerProcess, harm: Any, connect: Any, eventually: Any
) -> None:
    api, late = connect(mortal.url), connect(mortal.url)
    with ThreadPoolExecutor(3) as pool, HttpCore(mortal.url, mortal.token) as core:
        answers = [pool.submit(kit.how_it_ended, api, "long", ENDLESS) for _ in range(2)]
        eventually(lambda: api.metric("vllm:num_requests_running") == 2)
        harm(mortal)
        answers.append(pool.submit(kit.how_it_ended, late, "late", ENDLESS))
        ends = [a.result(timeout=END_S) for a in answers]
        assert all(map(kit.is_told, ends)), ends
        ends_or_says_so(mortal, core)
    assert not child_lives(mortal)


def test_memory_that_runs_out_in_the_worker_ends_requests_and_nothing_hangs(
    mortal: ServerProcess, connect: Any, eventually: Any
) -> None:
    """An allocation of the worker fails for real: its address space may not grow any more."""
    api = connect(mortal.url)
    with HttpCore(mortal.url, mortal.token) as core:
        kit.starve(child(mortal, "Worker", "worker"))
        prompts = (f"{n} " + "memory " * 500 for n in count())
        eventually(lambda: kit.how_it_ended(api, next(prompts), 2) != "length", FULL_S)
        ends_or_says_so(mortal, core)
    assert not child_lives(mortal)
    assert OUT_OF_MEMORY.search(mortal.log.read_text(errors="replace"))


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
        if server.exit_code is not None and not kit.in_group(server.pgid):
            return False
        time.sleep(0.2)
    return True
