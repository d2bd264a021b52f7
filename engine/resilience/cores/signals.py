"""What the adaptive limiter looks at, read from vLLM's own metrics in the same process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from resilience.gate.limiter import Signals
from resilience.gate.state import GateState

logger = logging.getLogger("vllm.resilience")

INTERVAL_S = 1.0
WAITING = "vllm:num_requests_waiting"
STARTED = "vllm:time_to_first_token_seconds_count"
GAPS = ("vllm:inter_token_latency_seconds_sum", "vllm:inter_token_latency_seconds_count")
KV_USAGE = "vllm:kv_cache_usage_perc"
NAMES = (WAITING, STARTED, *GAPS, KV_USAGE)


class SignalReader:
    """Turns counters into what happened since the last look.

    vLLM reports a request's queue time when it has ended, which is too late to steer by. Little's
    law gives the present one: those that wait, over those that start in a second.
    """

    def __init__(self, registry: Any, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock_s = clock_s
        self._before = self._values()
        self._started_s = self._looked_s = clock_s()

    def read(self) -> Signals:
        now_s, values = self._clock_s(), self._values()
        before, self._before = self._before, values
        started = values[STARTED] - before[STARTED]
        since_s = now_s - (self._looked_s if started else self._started_s)
        if started:
            self._started_s = now_s
        self._looked_s = now_s
        gaps = values[GAPS[1]] - before[GAPS[1]]
        spent_s = values[GAPS[0]] - before[GAPS[0]]
        return Signals(
            queue_time_ms=1000 * values[WAITING] * since_s / max(1.0, started),
            time_per_token_ms=1000 * spent_s / gaps if gaps > 0 else None,
            kv_usage=values[KV_USAGE],
        )

    def _values(self) -> dict[str, float]:
        """Return the sum of each series over its labels (models, engines); usage is the largest."""
        found: dict[str, float] = {name: 0.0 for name in NAMES}
        for family in self._registry.restricted_registry(NAMES).collect():
            for sample in family.samples:
                if sample.name == KV_USAGE:
                    found[KV_USAGE] = max(found[KV_USAGE], sample.value)
                elif sample.name in found:
                    found[sample.name] += sample.value
        return found


async def feed(state: GateState, reader: SignalReader, interval_s: float = INTERVAL_S) -> None:
    """Tell the limiter every interval how the server did, for as long as the server runs, and let
    the gate tidy up when nobody asks it for anything."""
    failed = False
    while True:
        await asyncio.sleep(interval_s)
        try:
            state.tidy()
            if state.snapshot().limiter is not None:
                state.adapt(reader.read())
            failed = False
        except Exception:  # the limit stays where it is; the next interval tries again
            if not failed:
                logger.exception("resilience: the adaptive limit was not moved")
            failed = True
