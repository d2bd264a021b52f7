"""The budget of one run: steps, log, and denials that end it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from resilience.sandbox.limits import LOG_BYTES_MAX, STEPS_MAX


class Denied(BaseException):
    """The run is over. Not an Exception, so that `except Exception` in a UDF lets it pass."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message


class Run:
    """What one call of a UDF may still spend.

    `stop` is told of the first denial and may end the process at once; if it returns (or is
    absent), Denied unwinds the UDF, and `denied` keeps the first one should the UDF swallow it.
    """

    __slots__ = ("_log_left", "_stop", "denied", "file", "log", "steps_left")

    def __init__(
        self, file: str, steps: int = STEPS_MAX, stop: Callable[[Denied], None] | None = None
    ) -> None:
        self.file = file
        self._stop = stop
        self.restart(steps)

    def restart(self, steps: int = STEPS_MAX) -> None:
        """Have everything to spend again."""
        self.steps_left = steps
        self.denied: Denied | None = None
        self.log: list[str] = []
        self._log_left = LOG_BYTES_MAX

    def step(self) -> bool:
        """Count one step. True, so that it can stand before `and` and in an `if`."""
        self.steps_left -= 1
        if self.steps_left < 0:
            self._end(Denied("STEP_LIMIT", f"more than {STEPS_MAX:,} steps"))
        return True

    def spend(self, steps: int) -> None:
        """Count the work of one host call, for example the items that it copies."""
        self.steps_left -= steps
        if self.steps_left < 0:
            self._end(Denied("STEP_LIMIT", f"more than {STEPS_MAX:,} steps"))

    def deny(self, message: str) -> NoReturn:
        """End the run as denied, with the place in the UDF before the message."""
        denied = Denied("RUNTIME_DENIED", message)
        if self.denied is None:
            self.denied = denied  # first of all: looking up the place may fail at the last frame
            denied.message = self.where() + message
        self._end(denied)

    def where(self) -> str:
        """Return `file:line:column: ` of the UDF code that is running, or an empty text."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        if frame is None:
            return ""
        return f"{self.file}:{frame.f_lineno}:{column_of(frame.f_code, frame.f_lasti)}: "

    def write_log(self, text: str) -> None:
        """Keep `text` while the log has room; the rest is cut, with one mark."""
        self.spend(len(text) // 32)
        if self._log_left <= 0:
            return
        size = len(text.encode("utf-8", "replace"))
        if size > self._log_left:
            text = text[: self._log_left // 4] + "… log cut\n"
        self._log_left -= size
        self.log.append(text)

    def _end(self, denied: Denied) -> NoReturn:
        if self.denied is None:
            self.denied = denied
        if self._stop is not None:
            self._stop(self.denied)
        raise self.denied


def column_of(code: object, offset: int) -> int:
    """Return the 1-based column of the instruction at `offset` of a code object."""
    positions = list(code.co_positions())  # type: ignore[attr-defined]
    index = offset // 2
    column = positions[index][2] if 0 <= index < len(positions) else None
    return (column or 0) + 1
