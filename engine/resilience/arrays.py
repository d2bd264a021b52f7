"""Imports NumPy with one thread.

Its matrix library starts a thread for each processor at import, which spin for a tenth of a second
of CPU; no matrix is multiplied here. The environment stays as it was, for the server that is
started from it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

_THREADS = "OPENBLAS_NUM_THREADS"


def _import_numpy() -> None:
    if "numpy" in sys.modules or _THREADS in os.environ:
        return
    os.environ[_THREADS] = "1"
    try:
        import_module("numpy")
    finally:
        del os.environ[_THREADS]


_import_numpy()
