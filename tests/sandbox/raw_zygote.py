"""A zygote whose files run *without* the language layer: plain Python in the real locked worker.

Only tests start it, as the module of a runner's settings: the product has no such mode. What the
attacks import is imported before the lock, so that it is the kernel that stops them.
"""

from __future__ import annotations

import _thread
import ast
import ctypes
import gc
import mmap
import os
import resource
import signal
import socket
import time
from typing import Any

from resilience.sandbox import zygote
from resilience.sandbox.budget import Run
from resilience.sandbox.denials import Denial
from resilience.sandbox.lock import Lock
from resilience.sandbox.program import functions_of
from resilience.sandbox.worker import Runnable

PRELOADED = (_thread, ctypes, gc, mmap, os, resource, signal, socket, time)


def load_raw(file: str, text: str) -> tuple[Runnable | None, list[list[Any]], list[Denial]]:
    """Return what runs `text` as ordinary Python."""
    code = compile(text, file, "exec", dont_inherit=True)

    def run(function: str, context: Any, budget: Run, names: dict[str, Any]) -> Any:
        scope: dict[str, Any] = {}
        exec(code, scope)
        return scope[function](context)

    rows = [[f.name, f.line, f.column, f.callable] for f in functions_of(ast.parse(text))]
    return run, rows, []


def main(control: int, bundle: int, hello: int, engine: int, lock: Lock) -> None:
    """As the product's, with the other loader."""
    zygote.main(control, bundle, hello, engine, lock, load_raw)
