"""Resilience as code for LLM serving: the public names, for authors of policies and plug-ins.

The names are lazy, so that importing the package inside a serving process loads nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False           # `typing` takes longer to import than all the rest of this
if TYPE_CHECKING:
    from typing import Any

    from resilience.errors import ResilienceError
    from resilience.model import (
        Bundle,
        Claim,
        Decision,
        EngineConfig,
        Finding,
        Policy,
        Reason,
        State,
        Truth,
    )

__version__ = "0.1.0"
__all__ = [
    "Bundle",
    "Claim",
    "Decision",
    "EngineConfig",
    "Finding",
    "Policy",
    "Reason",
    "ResilienceError",
    "State",
    "Truth",
    "__version__",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "ResilienceError":
        return import_module("resilience.errors").ResilienceError
    if name in __all__:
        return getattr(import_module("resilience.model"), name)
    raise AttributeError(f"module `resilience` has no attribute `{name}`")
