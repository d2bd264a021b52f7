"""The one place where the live engine reads a clock."""

from __future__ import annotations

import time


class SystemClock:
    """model.Clock over the operating system's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
