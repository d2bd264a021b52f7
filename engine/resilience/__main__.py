"""The front door of the command: Ctrl-C ends it cleanly also while the rest is imported."""

from __future__ import annotations

import os

INTERRUPTED = 130
SAID = b"interrupted\n"

try:
    import signal
except KeyboardInterrupt:       # no handler yet
    os.write(2, SAID)
    os._exit(INTERRUPTED)

TYPE_CHECKING = False           # each import before the handler is set is time for a traceback
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn


def main() -> NoReturn:
    """Import the command line and run it."""
    known = signal.getsignal(signal.SIGINT)
    ours = known is signal.default_int_handler       # a background job of a shell ignores SIGINT
    if ours:
        signal.signal(signal.SIGINT, _leave)
    import gc

    gc.disable()                                     # all that imports make is kept
    from resilience.cli import main as run

    try:
        if ours:
            signal.signal(signal.SIGINT, known)
        run()
    except KeyboardInterrupt:                        # before or after the command itself
        _leave(signal.SIGINT, None)
    finally:
        gc.freeze()                                  # at the end nothing has to be looked for
        if ours:                                     # the interpreter's end would show a traceback
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    os.write(2, SAID)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
