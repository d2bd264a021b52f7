"""A generated week of one server, and as many policies over it as one asks for.

The load has a daily wave and three incidents: queue growth on day 2, a scrape that fails for an
hour on day 4, a cache that fills on day 6. All from one seed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from resilience.model import Labels, labels_of
from resilience.promql.storage import ABSENT
from resilience.sources.recording import RecordingMeta, write
from resilience.sources.store import Group, MemoryStore

DAY_MS = 86_400_000
START_MS = 1_760_000_000_000 // 15_000 * 15_000
SCRAPE_MS = 15_000
SEED = 7
BUCKETS = ("0.1", "0.25", "0.5", "1", "2.5", "5", "10", "+Inf")
BASE = {"job": "vllm", "instance": "vllm-0:8000", "model_name": "m"}

Floats = NDArray[np.float64]

KINDS = (
    ("queue", "vllm:num_requests_waiting > {queue:.2f}", "vllm:num_requests_waiting < 4"),
    ("cache", "max by (model_name) (vllm:kv_cache_usage_perc) > {share:.4f}",
     "max by (model_name) (vllm:kv_cache_usage_perc) < 0.6"),
    ("ttft", "histogram_quantile(0.99, sum by (le) "
     "(rate(vllm:time_to_first_token_seconds_bucket[5m]))) > {seconds:.3f}", ""),
    ("stalled", "rate(vllm:generation_tokens_total[2m]) < {rate:.2f} "
     "and vllm:num_requests_running > 0", ""),
    ("errors", 'sum(rate(vllm:request_success_total{{finished_reason="abort"}}[5m])) / '
     "sum(rate(vllm:request_success_total[5m])) > {ratio:.4f}", ""),
)


def recording(path: Path, days: float = 7) -> None:
    """Write the week to `path`."""
    columns = int(days * DAY_MS // SCRAPE_MS)
    times = START_MS + np.arange(columns, dtype=np.int64) * SCRAPE_MS
    rows = dict(_series(columns))
    labels = tuple(labels_of({**BASE, **dict(key)}) for key in rows)
    values = np.stack(list(rows.values()))
    values[:, _between(columns, 4.0, 4.0 + 1 / 24)] = ABSENT
    seqs = np.arange(1, columns + 1, dtype=np.int64)
    store = MemoryStore.from_groups([Group(times, seqs, labels, values)])
    write(path, store, [], RecordingMeta("generated", scrape_interval_ms=SCRAPE_MS))


def _between(columns: int, from_day: float, to_day: float) -> slice:
    first, last = (int(d * DAY_MS // SCRAPE_MS) for d in (from_day, to_day))
    return slice(min(first, columns), min(last, columns))


def _series(columns: int) -> list[tuple[Labels, Floats]]:
    random = np.random.default_rng(SEED)
    day = np.arange(columns) * SCRAPE_MS / DAY_MS
    wave = 1 - np.cos(day * 2 * np.pi)
    load = 6 + 10 * wave + random.normal(0, 1.5, columns)
    load[_between(columns, 2.4, 2.5)] *= 4
    cache = np.clip(0.25 + 0.2 * wave + random.normal(0, 0.02, columns), 0, 1)
    cache[_between(columns, 6.5, 6.55)] = 0.97
    waiting = np.maximum(0, np.round(load - 24))
    gauges = {
        "vllm:num_requests_waiting": waiting,
        "vllm:num_requests_running": np.clip(np.round(load), 1, 24),
        "vllm:kv_cache_usage_perc": cache,
        "vllm:generation_tokens_total": np.cumsum(np.maximum(0, load) * 30 * 15),
        "vllm:prompt_tokens_total": np.cumsum(np.maximum(0, load) * 90 * 15),
        "vllm:num_preemptions_total": np.cumsum(random.poisson(cache * 0.2)),
    }
    found = [
        (labels_of({"__name__": name}), np.asarray(row, float)) for name, row in gauges.items()
    ]
    done = random.poisson(np.maximum(0, load))
    failed = random.binomial(done, np.where(waiting > 20, 0.2, 0.01))
    found += _histogram(done, 0.2 + waiting / 20)
    for reason, row in (("stop", done - failed), ("abort", failed)):
        found.append((
            labels_of({"__name__": "vllm:request_success_total", "finished_reason": reason}),
            np.cumsum(row).astype(float),
        ))
    return found


def _histogram(done: NDArray[np.int64], seconds: Floats) -> list[tuple[Labels, Floats]]:
    """Return the buckets of a latency whose mean follows `seconds`, as an exponential one."""
    shares = [1 - np.exp(-float(le) / seconds) for le in BUCKETS]
    return [
        (labels_of({"__name__": "vllm:time_to_first_token_seconds_bucket", "le": le}),
         np.cumsum(np.round(done * share)).astype(float))
        for le, share in zip(BUCKETS, shares, strict=True)
    ]


def rules(folder: Path, count: int = 100, interval: str = "15s") -> None:
    """Write `count` policies to `folder`, of five kinds, each with a threshold of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        name, expr, resolve = KINDS[number % len(KINDS)]
        n = number / count
        trigger = expr.format(
            queue=2 + 30 * n, share=0.6 + 0.35 * n, seconds=0.5 + 4 * n, rate=20 * n,
            ratio=0.02 + 0.2 * n,
        )
        (folder / f"{name}-{number:03d}.yaml").write_text(
            _policy(name, number, trigger, resolve, interval)
        )


def _policy(name: str, number: int, expr: str, resolve: str, interval: str) -> str:
    lines = [
        "apiVersion: resilience/v1",
        "kind: Policy",
        f"metadata: {{name: {name}-{number:03d}}}",
        "spec:",
        f"  interval: {interval}",
        "  trigger:",
        f"    expr: '{expr.replace(chr(39), chr(39) * 2)}'",
        "    for: 1m",
        "    on_no_data: hold",
    ]
    if resolve:
        lines.append(f"    resolve: {{expr: '{resolve}', for: 1m}}")
    lines += [
        "  actions:",
        "    - {type: throttle, tier: best-effort, lease: 30s, "
        f"max_concurrency: {4 + number % 8}}}",
    ]
    return "\n".join(lines) + "\n"
