"""What the histograms of the catalogue measure, and where their buckets end.

A share of requests under a limit can only be read at a bucket's bound. The bounds of vLLM are
those of 0.31 to 0.33, which a server may override; the gate's are our own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

Measure: TypeAlias = Literal[
    "end_to_end", "first_token", "inter_token", "queue", "prefill", "decode", "inference",
]
MEASURES: tuple[Measure, ...] = (
    "end_to_end", "first_token", "inter_token", "queue", "prefill", "decode", "inference",
)


@dataclass(frozen=True, slots=True)
class Histogram:
    """`measure`: which part of a request's time. `bounds_s`: upper bounds, seconds,
    growing."""

    measure: Measure
    bounds_s: tuple[float, ...]


_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)
_INTER_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)
_REQUEST = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)
_GATE_FIRST = (
    0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0,
    60.0,
)
_GATE_REQUEST = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)
_GATE_QUEUE = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_GATE_TOKEN = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0)


@cache
def known() -> dict[str, Histogram]:
    """Return histogram base name -> what it measures."""
    vllm: dict[str, tuple[Measure, tuple[float, ...]]] = {
        "time_to_first_token_seconds": ("first_token", _FIRST_TOKEN),
        "inter_token_latency_seconds": ("inter_token", _INTER_TOKEN),
        "request_time_per_output_token_seconds": ("inter_token", _INTER_TOKEN),
        "e2e_request_latency_seconds": ("end_to_end", _REQUEST),
        "request_queue_time_seconds": ("queue", _REQUEST),
        "request_inference_time_seconds": ("inference", _REQUEST),
        "request_prefill_time_seconds": ("prefill", _REQUEST),
        "request_decode_time_seconds": ("decode", _REQUEST),
    }
    return {
        **{f"vllm:{name}": Histogram(*what) for name, what in vllm.items()},
        "resilience_gate_ttft_seconds": Histogram("first_token", _GATE_FIRST),
        "resilience_gate_request_seconds": Histogram("end_to_end", _GATE_REQUEST),
        "resilience_gate_queue_seconds": Histogram("queue", _GATE_QUEUE),
        "resilience_gate_time_per_token_seconds": Histogram("inter_token", _GATE_TOKEN),
    }


def le_values(bound_s: float) -> tuple[str, ...]:
    """Return how exporters write a bound as a label: Python's say `1.0`, Go's say `1`."""
    return tuple(dict.fromkeys((f"{bound_s:.15g}", repr(float(bound_s)))))
