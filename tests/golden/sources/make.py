"""Makes the golden files of this folder anew: `make.py PROMTOOL`. Only for a change of format.

The block is made by Prometheus' own promtool from `samples.om`, the recording by ours.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from resilience.promql.storage import ABSENT, STALE
from resilience.sources.recording_format import Group, RecordingMeta
from resilience.sources.recording_write import write_file

HERE = Path(__file__).parent
ODD = (0.0, -0.0, 1e300, -1e-300, float("nan"), float("inf"))
T0 = 1_764_430_000_000


def text() -> str:
    """Return series that need every branch of the chunk format."""
    rng = np.random.default_rng(1)
    rows: list[tuple[str, int, float]] = []
    times = T0 + np.cumsum(rng.choice([15_000, 15_001, 14_990, 47_000, 400_000, 1_200_000], 150))
    for i, t in enumerate(times.tolist()):
        rows.append(("noise", t, float(rng.random())))
        rows.append(('counter{le="+Inf"}', t, float(i // 3)))
        rows.append(('odd{l="é"}', t, ODD[i % len(ODD)]))
    rows.append(("lone", T0, 1.0))
    rows.append(("far", T0, 2.0))
    rows.append(("far", T0 + 1, 3.0))
    rows.append(("far", T0 + 7_000_000, 4.0))
    names = sorted({name for name, _, _ in rows})
    lines = [
        f"{name} {value!r} {t / 1000:.3f}" for n in names for name, t, value in rows if name == n
    ]
    return "\n".join([*lines, "# EOF", ""])


def main(promtool: str) -> None:
    (HERE / "samples.om").write_text(text())
    folder = HERE / "blocks"
    shutil.rmtree(folder, ignore_errors=True)
    kind = ["tsdb", "create-blocks-from", "--max-block-duration=20d", "openmetrics"]
    subprocess.run([promtool, *kind, HERE / "samples.om", folder], check=True)
    values = np.array([[1.0, ABSENT, STALE], [np.nan, -0.0, np.inf]])
    labels = [(("__name__", "b"), ("x", "1")), (("__name__", "a"),)]
    times = np.array([T0, T0 + 1_000, T0 + 2_000])
    group = Group(list(labels), times, np.array([1, 2, 3]), values)
    events = [
        {"type": "state", "state": {}},
        {"type": "tick", "t_ms": T0, "interval_ms": 1_000, "seq": 1, "missed": 0},
        {"type": "query", "t_ms": T0, "results": []},
        {"type": "tick", "t_ms": T0 + 1_000, "interval_ms": 1_000, "seq": 2, "missed": 0},
    ]
    meta = RecordingMeta("resilience", "0.1.0", 1_000, start_ms=T0, end_ms=T0 + 2_000, revision="r")
    write_file(HERE / "recording_v1.parquet", [group], events, meta)


if __name__ == "__main__":
    main(sys.argv[1])
