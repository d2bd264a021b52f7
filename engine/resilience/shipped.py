"""The one place that knows the two homes of shipped data: a checkout and the wheel."""

from __future__ import annotations

from pathlib import Path


def shipped(kind: str) -> Path:
    """Return the folder of shipped `kind`: "schemas", "rules" or "udfs"."""
    here = Path(__file__).resolve()
    packaged = here.parent / "_shipped" / kind
    return packaged if packaged.is_dir() else here.parents[2] / kind
