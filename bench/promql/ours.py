"""Measure the evaluator in a process of its own; prints one JSON object.

`ours.py range RECORDING QUERIES START STEP COUNT [ANSWERS]`: all queries on one recording, of which
the metrics that they name are loaded, as a dry run does.
`ours.py cold RECORDING EXPR START END STEP`: one expression, only its metrics loaded.
`ours.py many RECORDING QUERIES START END STEP COUNT`: as many varied policies, together.
"""

from __future__ import annotations

import gc
import itertools
import json
import resource
import sys
import time
from pathlib import Path

gc.set_threshold(100_000, 20, 100)  # as the command line does
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "engine"))

from resilience.arrays import keep_freed_memory  # noqa: E402
from resilience.errors import PromQLError  # noqa: E402
from resilience.promql import kernel  # noqa: E402
from resilience.promql.evaluate import range_queries, range_query  # noqa: E402
from resilience.promql.names import name_test  # noqa: E402
from resilience.promql.parser import parse  # noqa: E402
from resilience.sources.recording import read  # noqa: E402


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def ranges(recording: str, queries: str, start: str, end: str, step: str, out: str = "") -> None:
    """Evaluate every query; `before` has what comes first: interpreter with imports, reading the
    queries, reading the recording."""
    import numpy as np

    marks = [0.0, time.process_time()]
    plans = {name: parse(expr) for name, expr in json.loads(Path(queries).read_text())}
    marks.append(time.process_time())
    store = read(Path(recording), name_test(plans.values())).store
    view = store.view()
    marks.append(time.process_time())
    before = [b - a for a, b in itertools.pairwise(marks)]
    times: dict[str, float] = {}
    wall: dict[str, float] = {}
    for name, plan in plans.items():
        cpu, clock = time.process_time(), time.perf_counter()
        found = range_query(plan, view, int(start), int(end), int(step))
        times[name], wall[name] = time.process_time() - cpu, time.perf_counter() - clock
        if out:
            labels = np.array([json.dumps(dict(x)) for x in found.labels])
            present = found.present if found.present is not None else np.ones_like(found.values)
            np.savez(Path(out) / f"{name}.npz", labels=labels, values=found.values,
                     present=present.astype(bool))
    print(json.dumps({
        "before": before, "cpu": times, "wall": wall, "peak_mib": peak_mib(),
        "kernel": kernel.active() is not None, "series": store.series_count,
    }))


def cold(recording: str, expr: str, start: str, end: str, step: str) -> None:
    """Evaluate one expression, loading only the metrics that it names."""
    plan = parse(expr)
    view = read(Path(recording), name_test([plan])).store.view()
    found = range_query(plan, view, int(start), int(end), int(step))
    print(json.dumps({"series": len(found.labels), "cpu": time.process_time(),
                      "peak_mib": peak_mib()}))


def many(recording: str, queries: str, start: str, end: str, step: str, count: str) -> None:
    """Evaluate `count` policies: the queries with thresholds of their own."""
    pairs = json.loads(Path(queries).read_text())
    plans = [parse(varied(pairs[i % len(pairs)][1], i)) for i in range(int(count))]
    view = read(Path(recording), name_test(plans)).store.view()
    found = range_queries(plans, view, int(start), int(end), int(step))
    errors = [str(f) for f in found if isinstance(f, PromQLError)]
    print(json.dumps({"cpu": time.process_time(), "peak_mib": peak_mib(), "errors": errors}))


def varied(expr: str, i: int) -> str:
    return f"({expr}) > {i / 7:.3f}"


if __name__ == "__main__":
    keep_freed_memory()
    {"range": ranges, "cold": cold, "many": many}[sys.argv[1]](*sys.argv[2:])
