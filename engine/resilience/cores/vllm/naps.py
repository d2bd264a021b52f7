"""How vLLM's processes wait for each other where they compute on the cores that all others use.

The engine process and its worker hand each step over through shared memory, and each waits for the
other with `sched_yield` alone, up to a second after the last step. Beside a GPU nobody misses those
cores. On a CPU they are the cores of the API server, of the gate and of the policy engine, and the
scheduler of Linux 6.18 can leave to these a hundredth of one: docs/decisions/0013.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from itertools import count
from typing import Any

NAP_S = 50e-6
YIELDS = 20  # a step of a real model on a CPU takes a hundred times as long as these and the nap
VARIABLE = "RESILIENCE_NAPS"
NAME = "sched_yield"

logger = logging.getLogger("vllm.resilience")
_waits = count(1)


def wait() -> None:
    """Give the core away, and now and then for long enough that others get one for certain."""
    if next(_waits) % YIELDS:
        os.sched_yield()
    else:
        time.sleep(NAP_S)


def install(environ: Mapping[str, str] = os.environ) -> bool:
    """Let this process nap while it waits, where vLLM computes on the CPU; returns whether it does.

    `RESILIENCE_NAPS=off` leaves vLLM as it is. Never raises: a vLLM whose way to wait has moved
    waits as before, and its log says so.
    """
    if environ.get(VARIABLE, "").lower() == "off":
        return False
    try:
        from vllm.platforms import current_platform

        if not current_platform.is_cpu():
            return False
        from vllm.distributed.device_communicators import shm_broadcast
    except Exception as error:
        return _as_before(str(error))
    return put_into(shm_broadcast)


def put_into(module: Any) -> bool:
    """Let the waits of vLLM's `module` of shared memory be ours; returns whether they are."""
    if not callable(getattr(module, NAME, None)):
        return _as_before(f"`{NAME}` has moved")
    setattr(module, NAME, wait)
    return True


def _as_before(why: str) -> bool:
    logger.warning("resilience: vLLM's processes wait for each other without naps: %s", why)
    return False
