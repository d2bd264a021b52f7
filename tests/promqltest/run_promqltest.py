"""Run promqltest scripts against the evaluator: `python run_promqltest.py FILE…`.

Every instant eval runs at its time, again as the middle of a range query, and again with `@` at
other times, as upstream does. Prints how many passed, are out of scope (with reasons) and failed;
exit code 1 if any failed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "engine")]

import numpy as np  # noqa: E402

from resilience.errors import PromQLError  # noqa: E402
from resilience.model import Labels, QueryResult, Sample  # noqa: E402
from resilience.promql import regex  # noqa: E402
from resilience.promql.evaluate import RangeResult, instant, range_query  # noqa: E402
from resilience.promql.evaluation import Options  # noqa: E402
from resilience.promql.parser import parse  # noqa: E402
from resilience.promql.plan import Call, Plan, Selector, selectors, walk  # noqa: E402
from resilience.promql.rewrite import at_time  # noqa: E402
from resilience.promql.signatures import TIME_DEPENDENT  # noqa: E402
from resilience.promql.storage import Storage, is_stale  # noqa: E402
from resilience.sources.store import Group, MemoryStore  # noqa: E402
from tests.promqltest.script_format import (  # noqa: E402
    HISTOGRAM,
    NEWER,
    Clear,
    Eval,
    Load,
    Point,
    ScriptError,
    read,
    same,
)

# Upstream's test engine takes metric names off at the end of a query.
OPTIONS = Options(delayed_names=True)
AROUND_MS = 60_000
FAR_MS = 3_600_000_000


class Mismatch(Exception):
    """The result is not what the script expects."""


@dataclass
class Data:
    """The loaded series: samples by time, and which series hold native histograms."""

    samples: dict[Labels, dict[int, float]] = field(default_factory=dict)
    histograms: set[Labels] = field(default_factory=set)
    store: MemoryStore | None = None

    def load(self, command: Load) -> None:
        self.store = None
        # Within one load the last line of a series stands, as upstream has it.
        for labels, values in dict(command.series).items():
            self._add(labels, values, command.step_ms)
            if command.with_nhcb:
                self._note_nhcb(labels)

    def _add(self, labels: Labels, values: Sequence[Point], step_ms: int) -> None:
        series = self.samples.setdefault(labels, {})
        for i, value in enumerate(values):
            if value in (HISTOGRAM, NEWER):
                self.histograms.add(labels)
            elif isinstance(value, float):
                series.setdefault(i * step_ms, value)

    def _note_nhcb(self, labels: Labels) -> None:
        have = dict(labels)
        name = have.get("__name__", "")
        for suffix in ("_bucket", "_count", "_sum"):
            if name.endswith(suffix):
                base = {**have, "__name__": name.removesuffix(suffix)}
                base.pop("le", None)
                self.histograms.add(tuple(sorted(base.items())))

    def view(self) -> MemoryStore:
        """Build the store: series with the same times share a group."""
        if self.store is None:
            groups: dict[tuple[int, ...], list[Labels]] = {}
            for labels, points in self.samples.items():
                if points:
                    groups.setdefault(tuple(sorted(points)), []).append(labels)
            self.store = MemoryStore.from_groups([
                Group(
                    np.array(times, dtype=np.int64), np.ones(len(times), dtype=np.int64),
                    tuple(members),
                    np.array([[self.samples[m][t] for t in times] for m in members]),
                )
                for times, members in groups.items()
            ])
        return self.store

    def touches_histograms(self, plan: Plan) -> bool:
        return any(_matches(s, h) for s in selectors(plan) for h in self.histograms)


def _matches(selector: Selector, labels: Labels) -> bool:
    have = dict(labels)
    return all(regex.test(m)(have.get(m.name, "")) for m in selector.matchers)


@dataclass
class Tally:
    """What came of the evals of some scripts."""

    passed: int = 0
    out_of_scope: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


RULES = json.loads((HERE / "out_of_scope.json").read_text(encoding="utf-8"))


def run_file(path: Path, tally: Tally) -> None:
    """Run one script and add to `tally`."""
    data = Data()
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for command in read(text):
        if isinstance(command, Clear):
            data = Data()
        elif isinstance(command, Load):
            data.load(command)
        else:
            where = f"{path.name}:{command.line}"
            _run_eval(command, data, tally, where, _block(lines, command.line))


def _block(lines: Sequence[str], line: int) -> str:
    block: list[str] = []
    for text in lines[line:]:
        if not text.strip() or text.strip().startswith("#"):
            break
        block.append(text)
    return "\n".join(block)


def _run_eval(command: Eval, data: Data, tally: Tally, where: str, block: str) -> None:
    reason = _excused(command, data, block)
    if reason is not None:
        tally.out_of_scope[reason] += 1
        return
    try:
        _check(command, data)
    except Mismatch as mismatch:
        tally.failed.append(f"{where}: {command.expr}\n    {mismatch}")
    else:
        tally.passed += 1


def _excused(command: Eval, data: Data, block: str) -> str | None:
    """Return why an eval is out of scope, by the rules of out_of_scope.json."""
    error, touches = "", False
    try:
        touches = data.touches_histograms(parse(command.expr, experimental=True))
    except PromQLError as caught:
        error = caught.message if caught.kind == "unsupported" else ""
    for rule in RULES:
        if rule["where"] == "expected" and re.search(rule["pattern"], block):
            return str(rule["reason"])
        if rule["where"] == "error" and error and re.search(rule["pattern"], error):
            return str(rule["reason"])
        if rule["where"] == "series" and touches:
            return str(rule["reason"])
        if rule["where"] == "points" and any(NEWER in v for _, v in command.expected.series):
            return str(rule["reason"])
    return None


# --- one eval ---


def _check(command: Eval, data: Data) -> None:
    expected = command.expected
    try:
        plan = parse(command.expr, experimental=True)
    except PromQLError as error:
        if not expected.fail:
            raise Mismatch(f"does not parse: {error}") from None
        return
    view = data.view().view()
    if command.step_ms:
        _check_range(command, plan, view)
        return
    _check_instant(command, instant([plan], view, command.start_ms, options=OPTIONS)[0], "instant")
    if plan.type in ("matrix", "string"):
        return
    if not expected.ordered:
        _check_instant(command, _middle(plan, view, command.start_ms), "as range")
    if not any(isinstance(n, Call) and n.function in TIME_DEPENDENT for n in walk(plan)):
        fixed = at_time(plan, command.start_ms)
        for t_ms in (command.start_ms, command.start_ms + FAR_MS, command.start_ms - FAR_MS):
            if plan.type == "vector" and not expected.ordered:
                result = instant([fixed], view, t_ms, options=OPTIONS)[0]
                _check_instant(command, result, f"with @ at {t_ms} ms: {fixed.text}")


def _middle(plan: Plan, view: Storage, t_ms: int) -> QueryResult:
    """Evaluate a range around `t_ms` and return its middle step as an instant answer."""
    try:
        found = range_query(
            plan, view, t_ms - AROUND_MS, t_ms + AROUND_MS, AROUND_MS, options=OPTIONS
        )
    except PromQLError as error:
        return QueryResult(plan.text, error=error.message)
    samples = tuple(
        Sample(labels, float(found.values[i, 1]))
        for i, labels in enumerate(found.labels)
        if found.present is None or found.present[i, 1]
    )
    return QueryResult(plan.text, "scalar" if plan.type == "scalar" else "vector", samples)


def _check_error(command: Eval, error: str | None) -> bool:
    """Return whether the eval is settled: it failed as expected."""
    expected = command.expected
    if error is None:
        if expected.fail:
            raise Mismatch("expected an error, got a result")
        return False
    if not expected.fail:
        raise Mismatch(f"unexpected error: {error}")
    if expected.fail_message is not None and expected.fail_message.strip('"') != error:
        raise Mismatch(f"expected error `{expected.fail_message}`, got `{error}`")
    if expected.fail_regex is not None and not re.search(expected.fail_regex.strip('"'), error):
        raise Mismatch(f"expected error like `{expected.fail_regex}`, got `{error}`")
    return True


def _check_instant(command: Eval, result: QueryResult, how: str) -> None:
    expected = command.expected
    if how != "instant" and expected.fail and result.error is not None:
        return
    try:
        if _check_error(command, result.error):
            return
        if expected.text is not None:
            _equal(expected.text, result.text)
        elif expected.range_vector is not None:
            _check_matrix(command, result)
        elif expected.scalar is not None:
            _check_scalar(expected.scalar, result)
        else:
            _check_vector(command, result)
    except Mismatch as mismatch:
        raise Mismatch(f"{how}: {mismatch}") from None


def _equal(wanted: object, got: object) -> None:
    if wanted != got:
        raise Mismatch(f"expected {wanted!r}, got {got!r}")


def _check_scalar(wanted: float, result: QueryResult) -> None:
    if result.kind != "scalar":
        raise Mismatch(f"expected a scalar, got a {result.kind}")
    if len(result.samples) != 1 or result.samples[0].labels or not same(
        wanted, result.samples[0].value
    ):
        raise Mismatch(f"expected {wanted}, got {[(s.labels, s.value) for s in result.samples]}")


def _check_vector(command: Eval, result: QueryResult) -> None:
    if result.kind == "scalar":
        raise Mismatch("expected a vector, got a scalar")
    if any(len(values) != 1 for _, values in command.expected.series):
        raise Mismatch("an instant eval has one value for each series")
    wanted = [(labels, values[0]) for labels, values in command.expected.series]
    got = [(s.labels, s.value) for s in result.samples]
    if command.expected.ordered:
        _equal([labels for labels, _ in wanted], [labels for labels, _ in got])
    have = dict(got)
    _equal({labels for labels, _ in wanted}, set(have))
    if len(have) != len(got):
        raise Mismatch("the result has the same label set twice")
    for labels, value in wanted:
        if not isinstance(value, float) or not same(value, have[labels]):
            raise Mismatch(f"{dict(labels)}: expected {value}, got {have[labels]}")


def _check_matrix(command: Eval, result: QueryResult) -> None:
    assert command.expected.range_vector is not None
    start, _, step = command.expected.range_vector
    got = {r.labels: dict(zip(r.times_ms, r.values, strict=True)) for r in result.ranges}
    _check_points(command, got, start, step)


def _check_points(
    command: Eval, got: dict[Labels, dict[int, float]], start: int, step: int
) -> None:
    wanted = {
        labels: {start + i * step: v for i, v in enumerate(values) if isinstance(v, float)}
        for labels, values in command.expected.series
    }
    wanted = {labels: points for labels, points in wanted.items() if points}
    _equal(set(wanted), set(got))
    for labels, points in wanted.items():
        _equal(sorted(points), sorted(got[labels]))
        for t, value in points.items():
            if not same(value, got[labels][t]):
                raise Mismatch(f"{dict(labels)} at {t}: expected {value}, got {got[labels][t]}")


def _check_range(command: Eval, plan: Plan, view: Storage) -> None:
    try:
        found = range_query(
            plan, view, command.start_ms, command.end_ms, command.step_ms, options=OPTIONS
        )
    except PromQLError as error:
        _check_error(command, error.message)
        return
    _check_error(command, None)
    _check_points(command, _points(found), command.start_ms, command.step_ms)


def _points(found: RangeResult) -> dict[Labels, dict[int, float]]:
    return {
        s.labels: dict(zip(s.times_ms, s.values, strict=True))
        for s in found.series() if not is_stale(np.array(s.values)).any()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-q", "--quiet", action="store_true", help="print the last line only")
    options = parser.parse_args(arguments)
    total = Tally()
    for path in options.files:
        tally = Tally()
        try:
            run_file(path, tally)
        except (ScriptError, OSError, UnicodeDecodeError) as error:
            tally.failed.append(f"{path}: {error}")
        _add(total, tally)
        if not options.quiet:
            _report(path.name, tally)
    skipped = sum(total.out_of_scope.values())
    print(f"passed {total.passed}, out of scope {skipped}, failed {len(total.failed)}")
    return 1 if total.failed else 0


def _add(total: Tally, tally: Tally) -> None:
    total.passed += tally.passed
    total.out_of_scope += tally.out_of_scope
    total.failed += tally.failed


def _report(name: str, tally: Tally) -> None:
    skipped = sum(tally.out_of_scope.values())
    print(f"{name}: passed {tally.passed}, out of scope {skipped}, failed {len(tally.failed)}")
    for reason, count in sorted(tally.out_of_scope.items()):
        print(f"  out of scope {count}: {reason}")
    for failure in tally.failed:
        print(f"  failed {failure}")


if __name__ == "__main__":
    sys.exit(main())
