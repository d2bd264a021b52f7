"""Runs one command for as long as its owner lives: `python -m resilience.cores.keeper COMMAND…`.

The owner holds the other end of standard input. When it closes, however the owner ended, the
command is asked to end and then made to, with all processes of its group; so nothing is left of a
second engine when the server is gone, and nothing of its workers when only its first process died.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

GRACE_S = 8.0
PR_SET_PDEATHSIG = 1


def main(command: Sequence[str]) -> int:
    """Run the command; returns its exit code, or 128 and the number of the signal that ended it."""
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=_end_with_this
    )
    signal.signal(signal.SIGTERM, lambda *_: end(child))
    threading.Thread(target=_end_with_owner, args=(child,), daemon=True).start()
    code = child.wait()
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return code if code >= 0 else 128 - code


def end(child: subprocess.Popen[bytes]) -> None:
    """Ask the command to end; after a while its whole group is made to."""
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGTERM)
    timer = threading.Timer(GRACE_S, _kill, (child,))
    timer.daemon = True
    timer.start()


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _end_with_owner(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1024):
        pass
    end(child)


def _end_with_this() -> None:
    """Let the kernel ask the command to end if this process is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
