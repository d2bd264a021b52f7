"""Series and files as the importers' tests write them down."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from resilience.model import Labels, labels_of
from resilience.sources.openmetrics import is_openmetrics, read_text
from resilience.sources.series import Series


def name(text: str, **labels: str) -> Labels:
    return labels_of({"__name__": text, **labels})


def series(labels: Labels, *points: tuple[int, float]) -> Series:
    times = np.array([t for t, _ in points], np.int64)
    return Series(labels, times, np.array([v for _, v in points], np.float64))


def points(one: Series) -> list[tuple[int, float]]:
    return list(zip(one.times_ms.tolist(), one.values.tolist(), strict=True))


def write(folder: Path, text: str | bytes, file: str = "x") -> Path:
    path = folder / file
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def text_of(path: Path) -> dict[Labels, list[tuple[int, float]]]:
    found, _ = read_text(path, openmetrics=is_openmetrics(path))
    return {one.labels: points(one) for one in found}
