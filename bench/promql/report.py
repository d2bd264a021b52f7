"""Tables of the benchmark, and the comparison of answers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

Results = dict[str, dict[str, Any]]


def table(queries: list[list[str]], results: Results) -> None:
    """Print CPU milliseconds for each expression, then sums, memory and ratios."""
    names = list(results)
    print(f"\n{'CPU ms':26}" + "".join(f"{n:>18}" for n in names))
    for name, _ in queries:
        row = "".join(f"{results[n]['cpu'][name] * 1000:18.1f}" for n in names)
        slower = _slower(name, results)
        print(f"{name:26}{row}{slower}")
    loads = (r["before"] * 1000 for r in results.values())
    print(f"{'start and load':26}" + "".join(f"{x:18.1f}" for x in loads))
    totals = {n: r["before"] + sum(r["cpu"].values()) for n, r in results.items()}
    print(f"{'sum CPU s':26}" + "".join(f"{t:18.2f}" for t in totals.values()))
    walls = (sum(r["wall"].values()) + r["before"] for r in results.values())
    print(f"{'sum wall s':26}" + "".join(f"{w:18.2f}" for w in walls))
    print(f"{'peak MiB':26}" + "".join(f"{r['peak_mib']:18.0f}" for r in results.values()))
    for other in names[1:]:
        print(f"{other} / ours, CPU: {totals[other] / totals['ours']:.1f}")
    print(f"compiled kernel: {'yes' if results['ours']['kernel'] else 'no'}")


def _slower(name: str, results: Results) -> str:
    reference = results.get("prometheus")
    if reference is None or results["ours"]["cpu"][name] <= reference["cpu"][name]:
        return ""
    return "  slower than Prometheus"


def exactness(queries: list[list[str]], answers: dict[str, Any], ours: Path) -> None:
    """Compare our points with Prometheus': missing, extra, largest relative difference."""
    if not answers:
        return
    heads = f"{'series':>8}{'points':>10}{'missing':>9}{'extra':>7}{'worst':>11}"
    print(f"\n{'against Prometheus':26}{heads}")
    for name, _ in queries:
        theirs = _their_points(json.loads(answers[name]))
        mine = _our_points(ours / f"{name}.npz", _grid(json.loads(answers[name])))
        missing = len(theirs.keys() - mine.keys())
        extra = len(mine.keys() - theirs.keys())
        both = theirs.keys() & mine.keys()
        worst = max((_difference(mine[k], theirs[k]) for k in both), default=0)
        series = len({labels for labels, _ in theirs})
        print(f"{name:26}{series:8}{len(theirs):10}{missing:9}{extra:7}{worst:11.1e}")


def _grid(body: Any) -> int:
    return 1_793_491_200_000


def _their_points(body: Any) -> dict[tuple[str, int], float]:
    found: dict[tuple[str, int], float] = {}
    for series in body["data"]["result"]:
        labels = json.dumps(dict(sorted(series["metric"].items())))
        for t, value in series["values"]:
            found[labels, round(t * 1000)] = float(value)
    return found


def _our_points(path: Path, start_ms: int) -> dict[tuple[str, int], float]:
    found = np.load(path)
    steps = found["values"].shape[1]
    step_ms = 1000 * round(_span_s(steps) / max(steps - 1, 1))
    points: dict[tuple[str, int], float] = {}
    for labels, values, present in zip(
        found["labels"].tolist(), found["values"], found["present"], strict=True
    ):
        for i in np.flatnonzero(present).tolist():
            points[labels, start_ms + i * step_ms] = float(values[i])
    return points


def _span_s(steps: int) -> int:
    import run

    return run.HOURS * 3600


def _difference(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    return abs(a - b) / max(abs(a), abs(b), 5e-324)


def extras(cold: Iterable[tuple[str, dict[str, Any]]], data: Any, live: dict[str, Any]) -> None:
    """Print the cold command lines and the live case."""
    print("\none policy, cold (start, load its metrics, evaluate):")
    for name, result in cold:
        print(f"  {name:24} {result['seconds']:.2f} s wall, {result['peak_mib']:.0f} MiB")
    print(f"recording: {data.recording.stat().st_size / 1e6:.1f} MB")
    print(
        f"\nlive: {live['policies']} policies ({live['queries']} queries) each second on "
        f"{live['series']} series: append {live['append_ms']:.1f} ms, evaluate "
        f"{live['evaluate_ms']:.1f} ms, truth {live['observe_ms']:.1f} ms = "
        f"{live['core_share']:.1%} of one core, {live['peak_mib']:.0f} MiB"
    )


def week(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    print(
        f"\n100 policies x 7 days of one server: ours {mine['cpu']:.2f} s CPU "
        f"({mine['seconds']:.2f} s wall), query_range {theirs['cpu']:.2f} s CPU "
        f"({theirs['seconds']:.2f} s wall): x{theirs['cpu'] / mine['cpu']:.1f} CPU, "
        f"x{theirs['seconds'] / mine['seconds']:.1f} wall"
    )
