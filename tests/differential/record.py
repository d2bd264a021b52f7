"""Record golden answers from a real Prometheus: `python record.py PROMETHEUS_BINARY`.

Prints what differs from ours and is not in known_differences.json; exit code 1 if anything does.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "engine")]

from tests.differential import cases, compare, data, reference  # noqa: E402


def record(case: cases.Case, binary: str) -> int:
    """Ask the server, write the golden file, return the number of unexplained differences."""
    store = data.store_of(case.series).view()
    answers: dict[str, compare.Points | str] = {}
    bad = 0
    with tempfile.TemporaryDirectory() as folder, reference.running(binary, Path(folder)) as server:
        server.write(case.series)
        for expr in case.expressions:
            span = (case.start_ms, case.end_ms, case.step_ms)
            answers[expr] = compare.theirs(server.query_range(expr, *span))
            why = cases.unexplained(expr, compare.ours(expr, store, *span), answers[expr])
            if why is not None:
                bad += 1
                print(f"{expr}\n    {why}")
    number = ".".join(map(str, reference.version(binary) or ()))
    cases.write_golden(case, number, answers)
    empty = sum(1 for a in answers.values() if not a)
    errors = sum(1 for a in answers.values() if isinstance(a, str))
    print(f"{case.name}: {len(answers)} expressions, {empty} empty, {errors} errors, {bad} differ")
    return bad


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    found = [cases.own(), cases.corpus()]
    return 1 if sum(record(case, sys.argv[1]) for case in found if case is not None) else 0


if __name__ == "__main__":
    sys.exit(main())
