"""The live case: 1,000 policies each second on one server's series; prints one JSON object."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "engine"))

import numpy as np  # noqa: E402

from resilience.promql.evaluate import instant  # noqa: E402
from resilience.promql.parser import parse  # noqa: E402
from resilience.promql.truth import compile_trigger, observe  # noqa: E402
from resilience.samples import Labels, QueryResult, labels_of  # noqa: E402
from resilience.sources.store import MemoryStore  # noqa: E402

POLICIES, HISTORY_S, TICKS = 1_000, 3_600, 30


def series(labels_file: Path) -> tuple[Labels, ...]:
    """Return about 500 series: one pod's, and more models of the same server."""
    one = json.loads(labels_file.read_text())[0]
    found = [
        labels_of({**labels, "engine": str(e), "pod": f"{labels['pod']}-{e}"})
        for e in range(4) for labels in one
    ]
    return tuple(dict.fromkeys(found))


def expressions(queries_file: Path) -> list[str]:
    """The trigger expressions with thresholds of their own, some with another matcher."""
    pairs = json.loads(queries_file.read_text())
    found: list[str] = []
    for i in range(POLICIES):
        expr = pairs[i % len(pairs)][1]
        if i % 3 == 1:
            expr = expr.replace("requests_waiting", 'requests_waiting{engine="1"}')
            expr = expr.replace("_bucket[", '_bucket{engine="2"}[')
        found.append(f"({expr}) > {i / 7:.3f}")
    return found


def main(labels_file: str, queries_file: str) -> None:
    labels = series(Path(labels_file))
    rng = np.random.default_rng(1)
    store = MemoryStore(retention_ms=HISTORY_S * 1000)
    values = rng.random(len(labels)) * 100
    for second in range(HISTORY_S):
        values = values + rng.random(len(labels))
        store.append(second * 1000, labels, values)
    triggers = [compile_trigger(e) for e in expressions(Path(queries_file))]
    queries = list(dict.fromkeys(q for t in triggers for q in t.queries))
    plans = [parse(q) for q in queries]
    scrape = evaluate = judge = 0.0
    answers: list[QueryResult] = []
    for second in range(HISTORY_S, HISTORY_S + TICKS):
        start = time.process_time()
        values = values + rng.random(len(labels))
        store.append(second * 1000, labels, values)
        stored = time.process_time()
        answers = instant(plans, store.view(), second * 1000)
        known = dict(zip(queries, answers, strict=True))
        evaluated = time.process_time()
        for trigger in triggers:
            observe(trigger, known, second * 1000, 3_000)
        judged = time.process_time()
        scrape += stored - start
        evaluate += evaluated - stored
        judge += judged - evaluated
    print(json.dumps({
        "series": len(labels), "policies": len(triggers), "queries": len(queries),
        "append_ms": scrape / TICKS * 1e3, "evaluate_ms": evaluate / TICKS * 1e3,
        "observe_ms": judge / TICKS * 1e3,
        "core_share": (scrape + evaluate + judge) / TICKS,
        "errors": sum(1 for a in answers if a.error is not None),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }))


if __name__ == "__main__":
    main(*sys.argv[1:])
