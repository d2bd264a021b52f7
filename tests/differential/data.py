"""Generated series for comparisons: every shape that real servers export, and the odd ones.

All random numbers come from one seed, so golden results recorded elsewhere hold here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from resilience.model import Labels, labels_of
from resilience.promql import regex
from resilience.promql.plan import Aggregate, Binary, Call, Plan, Selector, String, walk
from resilience.promql.storage import STALE, Floats, Ints
from resilience.sources.store import Group, MemoryStore

START_MS = 1_793_491_200_000
SPAN_MS = 3_600_000
INTERVAL_MS = 15_000
BOUNDS = ("0.1", "0.5", "1", "2.5", "10", "+Inf")
# As Go reads numbers: some are none, one is out of range.
ODD_BOUNDS = ("0.5", "0X1.8p+1", "0x_9p0", "1_0", "1__1", "0x10", "0b1", " 7", "1e400", "+Inf")

Series = tuple[Labels, Ints, Floats]


def times(rng: np.random.Generator, first_ms: int = START_MS) -> Ints:
    """Return scrape times with the jitter of a real scraper."""
    count = SPAN_MS // INTERVAL_MS
    jitter = np.where(rng.random(count) < 0.25, rng.integers(-40, 41, count), 0)
    grid = first_ms + np.arange(count) * INTERVAL_MS
    return np.asarray(grid + int(rng.integers(0, 9000)) + jitter, dtype=np.int64)


def counter(rng: np.random.Generator, count: int, whole: bool = True) -> Floats:
    steps = rng.poisson(7, count).astype(float) if whole else rng.random(count) * 3
    values = np.cumsum(steps)
    for at in rng.integers(5, count, rng.integers(0, 3)):
        values[at:] -= values[at - 1] if values[at - 1] <= values[at:].min() else 0
    return values


def gauge(rng: np.random.Generator, count: int) -> Floats:
    level = rng.choice([0.5, 20.0, 4e9])
    values = level * (1 + 0.3 * np.sin(np.arange(count) / 17) + 0.2 * rng.standard_normal(count))
    return np.asarray(np.round(values) if rng.random() < 0.4 else values)


def family() -> Iterator[Series]:
    """Yield the standard set: counters, gauges, histograms, gaps, stale ends, odd values."""
    rng = np.random.default_rng(35)
    for i, pod in enumerate("abcd"):
        t = times(rng, START_MS + (600_000 if pod == "d" else 0))
        n = len(t)
        base = {"pod": pod, "job": "vllm", "zone": f"z{i % 2}"}
        for code in ("ok", "error"):
            yield labels_of({**base, "__name__": "req_total", "code": code}), t, counter(rng, n)
        yield labels_of({**base, "__name__": "tokens_total"}), t, counter(rng, n, False)
        yield labels_of({**base, "__name__": "queue"}), t, gauge(rng, n)
        yield labels_of({**base, "__name__": "usage"}), t, rng.random(n)
        yield labels_of({**base, "__name__": "limit", "kind": "soft"}), t, np.full(n, 8.0 + i)
        yield from histogram(rng, {**base, "__name__": "ttft"}, t)
        keep = rng.random(n) < 0.7
        yield labels_of({**base, "__name__": "sparse"}), t[keep], gauge(rng, n)[keep]
        yield labels_of({**base, "__name__": "flappy"}), t, _flappy(rng, n)
    t = times(rng)
    odd = rng.choice([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e308, -1e308, 5e-324, 1.5], len(t))
    yield labels_of({"__name__": "odd", "pod": "a"}), t, odd
    holes = np.where(rng.random(len(t)) < 0.5, math.nan, 2)
    yield labels_of({"__name__": "odd", "pod": "b"}), t, holes
    yield labels_of({"__name__": "http.requests", "k8s.pod": "a-1"}), t, counter(rng, len(t))
    yield labels_of({"__name__": "single"}), t[:1], np.array([3.0])
    yield labels_of({"__name__": "info", "pod": "a", "version": "1.2"}), t, np.ones(len(t))
    for i, bound in enumerate(ODD_BOUNDS):
        counts = np.arange(len(t), dtype=np.float64) * (i + 1)
        yield labels_of({"__name__": "oddly_bucket", "le": bound}), t, counts


def _flappy(rng: np.random.Generator, count: int) -> Floats:
    values = gauge(rng, count)
    for at in rng.integers(1, count - 1, 4):
        values[at : at + int(rng.integers(1, 3))] = STALE
    return values


def histogram(rng: np.random.Generator, base: dict[str, str], t: Ints) -> Iterator[Series]:
    shares = rng.dirichlet(np.ones(len(BOUNDS)))
    hits = rng.multinomial(rng.poisson(9, len(t)), shares)
    counts = np.cumsum(np.cumsum(hits, axis=1), axis=0).astype(float)
    name = base["__name__"]
    for i, bound in enumerate(BOUNDS):
        yield labels_of({**base, "__name__": f"{name}_bucket", "le": bound}), t, counts[:, i]
    yield labels_of({**base, "__name__": f"{name}_count"}), t, counts[:, -1]
    yield labels_of({**base, "__name__": f"{name}_sum"}), t, np.cumsum(rng.random(len(t)) * 9)


def fitting(plans: Iterable[Plan]) -> Iterator[Series]:
    """Yield series that the selectors of `plans` find: right names, labels and shapes."""
    wanted: dict[str, list[dict[str, str]]] = {}
    for plan in plans:
        shared = {n: f"{n}-0" for n in sorted(_grouping(plan)) if n not in ("le", "__name__")}
        found = [n for n in walk(plan) if isinstance(n, Selector) and n.metric_name]
        for node in reversed(found):
            shared.update(_demanded(node))
        for node in found:
            labels = {**shared, **_demanded(node)}
            have = wanted.setdefault(node.metric_name or "", [])
            if len(have) < 8 and labels not in have:
                have.append(labels)
    rng = np.random.default_rng(350)
    seen: set[Labels] = set()
    for name, label_sets in sorted(wanted.items()):
        for labels in label_sets:
            for twin in range(2):
                made = {**labels, "twin": str(twin)} if twin else labels
                yield from _shaped(rng, {**made, "__name__": name}, seen)


def _demanded(selector: Selector) -> dict[str, str]:
    """Return labels that satisfy the positive matchers of a selector, as far as is easy."""
    labels: dict[str, str] = {}
    for m in selector.matchers:
        if m.name != "__name__" and m.op == "=" and m.value:
            labels[m.name] = m.value
        elif m.name != "__name__" and m.op == "=~":
            for guess in (m.value.split("|")[0].strip("()^$"), "x", "200", "500", "a/b", "x-1"):
                if regex.test(m)(guess) and guess:
                    labels[m.name] = guess
                    break
    return labels


def _shaped(
    rng: np.random.Generator, labels: dict[str, str], seen: set[Labels]
) -> Iterator[Series]:
    t = times(rng)[::2]
    name = labels["__name__"]
    bounds = BOUNDS if name.endswith("_bucket") else (labels.get("le", ""),)
    for bound in bounds:
        made = labels_of({**labels, "le": bound})
        if made not in seen:
            seen.add(made)
            grows = name.endswith(("_total", "_count", "_sum", "_bucket"))
            yield made, t, counter(rng, len(t)) if grows else gauge(rng, len(t))


def _grouping(plan: Plan) -> set[str]:
    names: set[str] = set()
    for node in walk(plan):
        if isinstance(node, Aggregate):
            names |= set(node.grouping)
        elif isinstance(node, Binary) and node.matching is not None:
            names |= {*node.matching.labels, *node.matching.include}
        elif isinstance(node, Call) and node.function == "label_replace":
            source = node.args[3]
            names |= {source.value} if isinstance(source, String) and source.value else set()
    return names


def store_of(series: Iterable[Series]) -> MemoryStore:
    """Put series into a store; those with equal times share a group."""
    groups: dict[bytes, tuple[Ints, list[Labels], list[Floats]]] = {}
    for labels, t, values in series:
        clock = np.asarray(t, dtype=np.int64)
        entry = groups.setdefault(clock.tobytes(), (clock, [], []))
        entry[1].append(labels)
        entry[2].append(np.asarray(values, dtype=np.float64))
    return MemoryStore.from_groups([
        Group(t, np.ones(len(t), dtype=np.int64), tuple(labels), np.array(rows))
        for t, labels, rows in groups.values()
    ])
