"""What runs in vLLM's workers: timing an allocation there, and giving memory back.

vLLM sends these functions to each worker by reference, so they import nothing of vLLM.
"""

from __future__ import annotations

import ctypes
import gc
import time
from contextlib import suppress
from typing import Any


def time_allocation(worker: Any, size: int) -> float:
    """Return the seconds that allocating and writing `size` bytes on the worker's device takes."""
    import torch

    device = getattr(worker, "device", None) or torch.device("cpu")
    begun = time.perf_counter()
    block = torch.empty(max(1, size), dtype=torch.uint8, device=device)
    block.fill_(0)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def reclaim(worker: Any) -> None:
    """Collect garbage and give unused memory back to the device and to the machine."""
    collect()
    import torch

    if getattr(getattr(worker, "device", None), "type", "cpu") == "cuda":
        torch.cuda.empty_cache()


def collect() -> None:
    """Collect this process's garbage; where the C library can, return free memory to the system."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
