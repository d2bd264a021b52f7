"""The one place that knows the two homes of shipped data: a checkout and the wheel."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path


def shipped(kind: str) -> Traversable:
    """Return the folder of shipped `kind`: "schemas", "rules" or "udfs"."""
    packaged = files("resilience") / "_shipped" / kind
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / kind
