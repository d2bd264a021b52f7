"""Imports NumPy with one thread, and says what becomes of freed memory.

NumPy's matrix library starts a thread for each processor, which spin for a tenth of a second
of CPU at import; no matrix is multiplied here. The environment stays as it was, for the server
that is started from it. Who needs arrays imports them from here, so that this comes first, and what
only checks policies never pays for it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

_THREADS = "OPENBLAS_NUM_THREADS"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def _import_numpy() -> None:
    if "numpy" in sys.modules or _THREADS in os.environ:
        return
    os.environ[_THREADS] = "1"
    try:
        import_module("numpy")
    finally:
        del os.environ[_THREADS]


_import_numpy()
import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

__all__ = ["NDArray", "keep_freed_memory", "np", "npt"]


def keep_freed_memory() -> None:
    """Let the allocator keep what is freed instead of giving it back and asking again.

    For a program that ends with its query: pages that come fresh from the system cost more than
    most of what is done with them. Nothing happens where the allocator is not GNU's.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 64 * 2**20)
    mallopt(_M_TRIM_THRESHOLD, 256 * 2**20)
