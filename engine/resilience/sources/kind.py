"""What a kind of metric source says about itself: one value a kind, named in the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resilience.model import Source


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A kind of source. `example` is the part of an Engine document that selects it.

    `keeps_samples` False: the engine records what queries returned, for there are no samples.
    """

    name: str
    doc: str
    example: str
    keeps_samples: bool
    open: Callable[..., Source]
