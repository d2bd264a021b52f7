"""What every kind of core declares about itself; one suite walks all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from resilience.model import Core


@dataclass(frozen=True, slots=True)
class CoreKind:
    """One kind of serving core. `params` is a frozen dataclass, `example` its fields as YAML;
    `connect(params)` returns a model.Core and does no I/O before its first call."""

    name: str
    doc: str
    params: type
    example: str
    connect: Callable[[Any], Core]
