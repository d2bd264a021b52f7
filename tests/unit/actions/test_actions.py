"""What each built-in action asks for."""

from __future__ import annotations

from typing import Any

import pytest

from resilience import registry
from resilience.model import ClaimSpec, ImpulseSpec, UdfSpec
from resilience.policy.kinds import Planned


@pytest.mark.parametrize(
    ("name", "raw", "planned"),
    [
        (
            "throttle", {"max_concurrency": 8, "tier": "core"},
            Planned((ClaimSpec("throttle.max_concurrency", 8, (("tier", "core"),)),)),
        ),
        (
            "throttle", {"max_concurrency": 8.0},
            Planned((ClaimSpec("throttle.max_concurrency", 8),)),
        ),
        (
            "cache_degrade", {"prefix_enabled": False, "step_tokens": 9},
            Planned((ClaimSpec("cache.prefix_enabled", False), ClaimSpec("cache.step_tokens", 9))),
        ),
        (
            "cache_degrade", {"max_running": 4, "excess": "drain", "kv_blocks": 64},
            Planned((ClaimSpec("cache.admit_running", 4), ClaimSpec("cache.kv_blocks", 64))),
        ),
        (
            "cache_degrade", {"max_running": 4, "kv_blocks_soft": 9, "batching": "static",
                              "mode": "stream"},
            Planned((ClaimSpec("cache.max_running", 4), ClaimSpec("cache.kv_blocks_soft", 9),
                     ClaimSpec("cache.batching", "static"), ClaimSpec("cache.mode", "stream"))),
        ),
        (
            "fallback_model", {"to": "small", "share": "12.5%", "tier": "core"},
            Planned((ClaimSpec("route.model", {"to": "small", "share": 0.125},
                               (("tier", "core"),)),)),
        ),
        (
            "fallback_model", {"to": "small"},
            Planned((ClaimSpec("route.model", {"to": "small", "share": 1.0}),)),
        ),
        (
            "reset_prefix_cache", {},
            Planned(impulses=(ImpulseSpec("reset_prefix_cache", {"preempt": False}),)),
        ),
        (
            "pause", {}, Planned(impulses=(
                ImpulseSpec("pause", {"mode": "keep", "for_ms": 30_000}),)),
        ),
        ("resume", {}, Planned(impulses=(ImpulseSpec("resume", {}),))),
        (
            "drain", {"for": "1m", "abort_after": "45s"}, Planned(impulses=(
                ImpulseSpec("drain", {"for_ms": 60_000, "abort_after_ms": 45_000}),)),
        ),
        (
            "abort_requests", {"older_than": "2m", "state": "running"}, Planned(impulses=(
                ImpulseSpec("abort_requests", {
                    "state": "running", "older_than_ms": 120_000, "limit": 100}),)),
        ),
        (
            "capture_incident", {}, Planned(impulses=(
                ImpulseSpec("capture_incident", {"duration_ms": 60_000}),)),
        ),
        (
            "udf_call", {"function": "f"}, Planned(udf=UdfSpec("f", 3_000)),
        ),
        (
            "udf_call",
            {"function": "f", "timeout": "250ms", "metrics": {"b": "up", "a": "up[1m]"},
             "params": {"x": [1]}, "on_error": "hold"},
            Planned(udf=UdfSpec("f", 250, (("a", "up[1m]"), ("b", "up")), {"x": [1]}, "hold")),
        ),
        ("metric_emit", {"name": "x"}, Planned((ClaimSpec("metric.x", 1.0),))),
        ("metric_emit", {"name": "x", "value": 3}, Planned((ClaimSpec("metric.x", 3.0),))),
    ],
)
def test_plan(name: str, raw: dict[str, Any], planned: Planned) -> None:
    kind = registry.catalogue("actions")[name]
    found = kind.plan(kind.build(raw))
    assert found == planned
    for claim in found.claims:
        assert type(claim.value) is not float or claim.knob.startswith("metric.")
