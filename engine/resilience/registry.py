"""What can be extended, and how a name becomes an object.

Each kind of extension has one explicit tuple of dotted names (`package.module:attribute`), which
are imported on use, and one entry-point group for third parties. A name that two providers claim
is an error, whoever they are.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from resilience.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BUILT_INS: dict[str, tuple[str, ...]] = {
    "actions": (
        "resilience.actions.throttle:THROTTLE",
        "resilience.actions.breaker:BREAKER",
        "resilience.actions.adaptive_limit:ADAPTIVE_LIMIT",
        "resilience.actions.cache_degrade:CACHE_DEGRADE",
        "resilience.actions.fallback_model:FALLBACK_MODEL",
        "resilience.actions.reset_prefix_cache:RESET_PREFIX_CACHE",
        "resilience.actions.pause:PAUSE",
        "resilience.actions.resume:RESUME",
        "resilience.actions.drain:DRAIN",
        "resilience.actions.abort_requests:ABORT_REQUESTS",
        "resilience.actions.capture_incident:CAPTURE_INCIDENT",
        "resilience.actions.udf_call:UDF_CALL",
        "resilience.actions.metric_emit:METRIC_EMIT",
        "resilience.actions.notify:NOTIFY",
    ),
    "kinds": (
        "resilience.policy.kinds:POLICY",
        "resilience.policy.kinds:ENGINE",
        "resilience.policy.kinds:SLO",
    ),
    "sources": (
        "resilience.sources.embedded:EMBEDDED",
        "resilience.sources.prometheus:PROMETHEUS",
    ),
    "cores": (
        "resilience.cores.vllm.kind:VLLM",
        "resilience.cores.torch.kind:TORCH",
        "resilience.cores.simulated.core:SIMULATED",
    ),
}


def load(dotted: str) -> Any:
    """Import `package.module:attribute` and return the attribute."""
    module, _, attribute = dotted.partition(":")
    return getattr(import_module(module), attribute)


@cache
def provided(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of third parties in `group`."""
    if not any(map(_may_extend, sys.path)):
        return ()
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


@cache
def _may_extend(folder: str) -> bool:
    """Whether a distribution in `folder` may have entry points for us.

    importlib.metadata takes a tenth of a second over hundreds of installed packages; hardly ever
    does one of them extend us, so a look for our name into each list of entry points comes first.
    """
    try:
        names = os.listdir(folder or ".")
    except NotADirectoryError:
        return True                                  # an archive: let importlib look into it
    except OSError:
        return False
    lists = (os.path.join(folder, n, "entry_points.txt") for n in names
             if n.endswith((".dist-info", ".egg-info")))
    return any(_names_us(path) for path in lists)


def _names_us(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return b"[resilience." in file.read()
    except OSError:
        return False


@cache
def catalogue(group: str) -> dict[str, Any]:
    """Return name -> object of `group`: the built-ins, then entry points `resilience.<group>`.

    Every object has a `name`. Raises UsageError when two providers claim one name.
    """
    found: dict[str, Any] = {}
    for dotted in BUILT_INS[group]:
        _add(found, group, load(dotted), dotted)
    for point in provided(f"resilience.{group}"):
        _add(found, group, point.load(), point.value)
    return found


def _add(found: dict[str, Any], group: str, item: Any, origin: str) -> None:
    if item.name in found:
        raise UsageError(f"two providers claim `{item.name}` in {group}, one is `{origin}`")
    found[item.name] = item
