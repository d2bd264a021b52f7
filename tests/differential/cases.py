"""What is compared: sets of expressions with their series and steps, and the recorded answers."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience.errors import PromQLError
from resilience.model import digest16, labels_of
from resilience.promql.parser import parse
from resilience.promql.plan import Plan, walk
from tests.differential import data, generator
from tests.differential.compare import Points, difference

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden" / "promql"
SHARED = HERE.parents[2] / "shared"
CORPUS = Path(os.environ.get("RESILIENCE_CORPUS", SHARED / "corpus"))
SEED, RANDOM_COUNT = 20261129, 500
KNOWN = json.loads((HERE / "known_differences.json").read_text(encoding="utf-8"))
_VARIABLE = re.compile(r"\$\{?(?:__rate_interval|__interval|__range|interval|rate_interval)\}?")


@dataclass(frozen=True)
class Case:
    """One set: `series` to load, `expressions` to ask at start, start + step, … end."""

    name: str
    series: Sequence[data.Series]
    expressions: Sequence[str]
    start_ms: int
    end_ms: int
    step_ms: int


def own() -> Case:
    """Hand-written expressions for each feature, and random ones from a fixed seed."""
    lines = (HERE / "expressions.txt").read_text(encoding="utf-8").splitlines()
    written = [line for line in lines if line and not line.startswith("#")]
    drawn = generator.expressions(SEED, RANDOM_COUNT)
    return Case(
        "own", _sorted(data.family()), [*written, *drawn],
        data.START_MS + 900_000, data.START_MS + 3_500_000, 260_000,
    )


def corpus() -> Case | None:
    """The public expressions of the corpus and their parts, on series made to fit them."""
    path = CORPUS / "exprs.jsonl"
    if not path.exists():
        return None
    plans: list[Plan] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = _VARIABLE.sub("5m", json.loads(line)["expr"])
        try:
            plans.append(parse(text))
        except PromQLError:
            continue
    parts = dict.fromkeys(
        n.text for p in plans for n in walk(p) if n.type in ("vector", "scalar")
    )
    return Case(
        "corpus", _sorted(data.fitting(plans)), list(parts),
        data.START_MS + 1_200_000, data.START_MS + 3_300_000, 700_000,
    )


def _sorted(series: Iterable[data.Series]) -> list[data.Series]:
    return sorted(series, key=lambda s: s[0])


def unexplained(expr: str, got: Points | str, wanted: Points | str) -> str | None:
    """Return a difference that the list of known ones does not explain."""
    found = difference(got, wanted)
    if found is None:
        return None
    for known in KNOWN:
        if re.search(known["pattern"], expr) and _allowed(known["allow"], got, wanted):
            return None
    return found


def _allowed(allow: str, got: Points | str, wanted: Points | str) -> bool:
    if allow == "their error":
        return isinstance(wanted, str) and not isinstance(got, str)
    if allow.startswith("our error: "):
        return got == allow.removeprefix("our error: ") and wanted == {}
    if isinstance(got, str) or isinstance(wanted, str):
        return False
    if allow == "their NaN":
        return difference(_where_numbers(got, wanted), _where_numbers(wanted, wanted)) is None
    if allow == "their lack":
        return difference(_where_both(got, wanted), wanted) is None
    if allow == "other labels":
        return difference(_without_labels(got), _without_labels(wanted)) is None
    return difference(got, wanted, float(allow)) is None


def _where_numbers(found: Points, wanted: Points) -> Points:
    """Leave out the points that are NaN in `wanted`."""
    return {
        labels: {
            t: v for t, v in line.items() if not math.isnan(wanted.get(labels, {}).get(t, 0.0))
        }
        for labels, line in found.items()
    }


def _where_both(found: Points, wanted: Points) -> Points:
    """Leave out the points that `wanted` lacks."""
    both = {
        labels: {t: v for t, v in line.items() if t in wanted.get(labels, {})}
        for labels, line in found.items()
    }
    return {labels: line for labels, line in both.items() if line}


def _without_labels(found: Points) -> Points:
    """Return the values of each step, from the smallest on, in place of series."""
    steps: dict[int, list[float]] = {}
    for line in found.values():
        for t, value in line.items():
            steps.setdefault(t, []).append(value)
    points: Points = {}
    for t, values in steps.items():
        for rank, value in enumerate(sorted(values, key=lambda v: (math.isnan(v), v))):
            points.setdefault((("rank", str(rank)),), {})[t] = value
    return points


# --- recorded answers ---


def write_golden(case: Case, version: str, answers: dict[str, Points | str]) -> None:
    body = {
        "prometheus": version,
        "answers": {digest16(expr): _packed(case, answer) for expr, answer in answers.items()},
    }
    text = json.dumps(body, separators=(",", ":"), sort_keys=True)
    GOLDEN.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(GOLDEN / f"{case.name}.json.gz", "wb", mtime=0) as file:
        file.write(text.encode())


def read_golden(case: Case) -> dict[str, Points | str]:
    """Return the recorded answers of those expressions that have one."""
    with gzip.open(GOLDEN / f"{case.name}.json.gz", "rt", encoding="utf-8") as file:
        answers = json.load(file)["answers"]
    return {
        expr: _unpacked(case, answers[digest16(expr)])
        for expr in case.expressions if digest16(expr) in answers
    }


def _packed(case: Case, answer: Points | str) -> Any:
    if isinstance(answer, str):
        return answer
    return [
        [dict(labels), {str((t - case.start_ms) // case.step_ms): repr(v) for t, v in line.items()}]
        for labels, line in sorted(answer.items())
    ]


def _unpacked(case: Case, body: Any) -> Points | str:
    if isinstance(body, str):
        return body
    start, step = case.start_ms, case.step_ms
    return {
        labels_of(labels): {start + int(i) * step: float(v) for i, v in line.items()}
        for labels, line in body
    }
