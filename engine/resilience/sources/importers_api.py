"""Saved answers of Prometheus' HTTP API, as series.

`query=metric[range]` gives raw samples. `query_range` gives one value a step, from which rates
cannot be rebuilt; such an answer looks the same but for its times, so times on one common grid are
taken for resampled unless the user knows better.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from resilience.errors import RecordingError
from resilience.samples import Json, Labels, labels_of
from resilience.sources.api_json import ApiError, data_of, milliseconds, number, warnings_of
from resilience.sources.series import Series, merge_series

GUESS = (
    "its times lie on one grid, as `query_range` gives them: taken for resampled; if it came from "
    "`query=metric[range]`, say that it is raw"
)
FILE_MAX = 1024 * 1024 * 1024


def read_api(path: Path, *, raw: bool | None = None) -> tuple[list[Series], bool, list[str]]:
    """Return series, whether their samples are raw, and notes; raises RecordingError.

    `raw` None: decide by the times. Instant vectors are never raw: their time is the query's.
    """
    body = _load(path)
    try:
        data = data_of(body)
        notes = [f"the server warned: {text}" for text in warnings_of(body)]
        if data["resultType"] == "vector":
            notes.append("an instant vector: one value a series, at the time of the query")
            return [_instant(one) for one in data["result"]], bool(raw), notes
        if data["resultType"] != "matrix":
            raise ApiError(f"a {data['resultType']} holds no series")
        series, skipped = _matrix(data["result"])
    except ApiError as error:
        raise RecordingError(f"`{path}`: {error}") from None
    except (LookupError, TypeError, AttributeError, ValueError):
        raise RecordingError(f"`{path}`: the answer's series are malformed") from None
    if skipped:
        notes.append(f"{skipped} native histogram samples are left out")
    if not series:
        notes.append("the answer is empty: no series at all")
    if raw is None:
        raw = not on_grid(series)
        if series and not raw:
            notes.append(GUESS)
    return series, raw, notes


def _load(path: Path) -> dict[str, Json]:
    try:
        if path.stat().st_size > FILE_MAX:
            raise RecordingError(f"`{path}` is larger than {FILE_MAX >> 20} MiB: save it in parts")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        raise RecordingError(f"cannot read `{path}` as UTF-8 text") from None
    # People keep a note of where an answer came from in front of it.
    lines = text.split("\n")
    skipped = next((i for i, line in enumerate(lines) if not line.startswith("//")), 0)
    try:
        body = json.loads("\n".join(lines[skipped:]))
    except RecursionError:
        raise RecordingError(f"`{path}` is nested too deeply") from None
    except json.JSONDecodeError as error:
        place = f"{path}:{error.lineno + skipped}:{error.colno}"
        raise RecordingError(f"{place}: not JSON: {error.msg.lower()}") from None
    if not isinstance(body, dict):
        raise RecordingError(f"`{path}` is JSON but no answer of Prometheus' API")
    if "resultType" in body:                   # a data object alone, as `query -o json` prints it
        body = {"data": body}
    return body if "status" in body or "data" not in body else {**body, "status": "success"}


def _labels(one: dict[str, Any]) -> Labels:
    return labels_of({str(k): str(v) for k, v in one["metric"].items()})


def _instant(one: dict[str, Any]) -> Series:
    if "value" not in one and "histogram" in one:
        raise ApiError("the answer holds native histograms, which are not supported")
    t, value = one["value"]
    return Series(_labels(one), np.array([milliseconds(t)], np.int64), np.array([number(value)]))


def _matrix(result: list[dict[str, Any]]) -> tuple[list[Series], int]:
    found: list[Series] = []
    skipped = 0
    for one in result:
        skipped += len(one.get("histograms") or ())
        points = [(milliseconds(t), number(v)) for t, v in one.get("values") or ()]
        if points:
            times = np.array([t for t, _ in points], np.int64)
            values = np.array([v for _, v in points], np.float64)
            found.append(merge_series([Series(_labels(one), times, values)]))
    return found, skipped


def on_grid(series: list[Series]) -> bool:
    """Return whether all samples lie on one grid, as `query_range` gives them.

    Raw samples of several targets differ by some milliseconds, and so do those of one target from
    scrape to scrape. A lone time proves nothing: it counts as a grid.
    """
    if not series:
        return False
    times = np.unique(np.concatenate([one.times_ms for one in series]))
    steps = np.diff(times)
    step = int(steps.min(initial=np.iinfo(np.int64).max))
    return not bool((steps % step).any()) and step >= 100
