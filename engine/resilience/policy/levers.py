"""Levers: the names of what claims pull, and how far the safety belts let them be pulled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from resilience import knobs
from resilience.model import EngineConfig, Labels

CONCURRENCY = "throttle.max_concurrency"


@lru_cache(maxsize=4_096)
def lever(knob: str, scope: Labels) -> str:
    """Return the name of what a claim pulls, for quarantine: the knob and where."""
    where = knobs.scope_text(scope)
    return f"{knob}{{{where}}}" if where else knob


def floors(config: EngineConfig, capacities: Mapping[str, float]) -> dict[str, float]:
    """Return the least value of each lever: what must stay of the capacity, core's floor.

    A knob whose capacity the core does not report has no floor.
    """
    safety = config.safety
    if not safety.enabled:
        return {}
    found = {
        name: max(1.0, math.floor(capacity * (1 - safety.capacity_removed) + 1e-9))
        for name, capacity in capacities.items()
        if (knob := knobs.knob(name)) is not None and knob.fold_name == "min"
    }
    capacity = capacities.get(CONCURRENCY)
    if capacity is not None and config.tiers:
        least = max(found[CONCURRENCY], math.floor(capacity * safety.core_floor + 1e-9))
        core = (("tier", config.tiers[0].name),)
        found[CONCURRENCY] = found[lever(CONCURRENCY, core)] = least
    return found
