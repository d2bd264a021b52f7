"""The front door of the command: Ctrl-C ends it cleanly also while the rest is imported."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """Import the command line and run it."""
    known = signal.getsignal(signal.SIGINT)
    if known is signal.default_int_handler:          # a background job of a shell ignores SIGINT
        signal.signal(signal.SIGINT, _leave)
    from resilience.cli import main as run

    if known is signal.default_int_handler:
        signal.signal(signal.SIGINT, known)
    run()


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
