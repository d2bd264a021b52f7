"""Real Prometheus 3 and VictoriaMetrics servers: what they answer, and what is read from them."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from resilience.cli.query import command as query_command
from resilience.errors import SourceError
from resilience.model import (
    Json,
    PrometheusAccess,
    QueryResult,
    Sample,
    labels_of,
)
from resilience.sources.importers import import_paths, save
from resilience.sources.importers_prometheus import needs_of, record
from resilience.sources.prometheus import PrometheusSource
from resilience.sources.recording import RecordingSource, read
from resilience.sources.scrape import Scraper
from resilience.sources.store import MemoryStore
from tests.live import metric_servers as kit
from tools.ports import free_port

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
DEADLINE_MS = 60_000

EXPRS = (
    "kv",
    'kv{model="b"} > 0.5',
    "sum by (model) (rate(requests_total[5m]))",
    "max_over_time(kv[10m])",
    "absent(nothing)",
    "nothing",
    "scalar(count(kv))",
    "time()",
    '"text"',
    "requests_total[1m]",
    "histogram_quantile(0.9, sum by (le) (rate(latency_bucket[5m])))",
)


@pytest.fixture(scope="module")
def recorded(history: Any, tmp_path_factory: pytest.TempPathFactory) -> RecordingSource:
    out = tmp_path_factory.mktemp("recording") / "r.parquet"
    save(out, import_paths([history.text]))
    return RecordingSource(read(out))


def ask(source: PrometheusSource | RecordingSource, expr: str, t_ms: int) -> QueryResult:
    seq = source.seq()
    return source.query([expr], t_ms, seq=seq, deadline_ms=DEADLINE_MS)[expr]


def plain(result: QueryResult) -> Any:
    """Return a result without what may differ in the last bit, in one order."""
    samples = [(s.labels, float(f"{s.value:.12g}")) for s in result.samples]
    ranges = [(r.labels, r.times_ms, r.values) for r in result.ranges]
    body = (result.kind, sorted(map(repr, samples)), sorted(map(repr, ranges)), result.text)
    return (*body, result.error)


# --- the source --------------------------------------------------------------------------------


@pytest.mark.parametrize("expr", EXPRS)
def test_prometheus_answers_as_the_recording_does(
    history: Any, source: PrometheusSource, recorded: RecordingSource, expr: str
) -> None:
    first = history.start_ms
    for t_ms in (first + 600_000, first + kit.BLOCK_MS + 60_123, history.end_ms):
        assert plain(ask(source, expr, t_ms)) == plain(ask(recorded, expr, t_ms))


def test_a_wrong_expression_is_the_server_s_error(history: Any, source: PrometheusSource) -> None:
    result = ask(source, "kv + on () kv", history.end_ms)
    assert "execution" in (result.error or "")
    assert "parse error" in (ask(source, "kv +", history.end_ms).error or "")


def test_names_and_version(source: PrometheusSource, monkeypatch: pytest.MonkeyPatch) -> None:
    # The data ends up to two hours ago, where the last whole block does.
    monkeypatch.setattr("resilience.sources.prometheus.NAMES_WITHIN_S", 3 * 3600)
    assert source.metric_names(deadline_ms=DEADLINE_MS) >= {"kv", "latency_bucket"}
    assert source.version(deadline_ms=DEADLINE_MS).startswith("3.")


def test_a_query_that_is_too_large_is_an_error(
    history: Any, tmp_path: Path, recorded: RecordingSource
) -> None:
    """And a recording asks for less at a time until it fits."""
    shutil.copytree(history.blocks, tmp_path / "data")
    running = kit.prometheus(tmp_path, "", "--query.max-samples=900")
    source = PrometheusSource(PrometheusAccess(running.url, timeout_ms=DEADLINE_MS))
    try:
        assert "too many samples" in (ask(source, "kv[2h]", history.end_ms).error or "")
        summary = record(
            source, needs_of(["kv"]), history.start_ms + kit.BLOCK_MS, history.end_ms,
            tmp_path / "r.parquet",
        )
    finally:
        source.close()
        running.stop()
    assert summary.series == 4
    assert summary.samples > 4 * 400


def test_a_server_that_is_still_starting_or_gone(tmp_path: Path) -> None:
    running = kit.prometheus(tmp_path)
    source = PrometheusSource(PrometheusAccess(running.url, timeout_ms=DEADLINE_MS))
    assert ask(source, "up", 0).error is None
    running.stop()
    assert "cannot reach" in (ask(source, "up", 0).error or "")
    with pytest.raises(SourceError):
        source.metric_names(deadline_ms=1_000)
    source.close()


# --- query -------------------------------------------------------------------------------------


def raw_data(prometheus: Any, kind: str, params: dict[str, Any]) -> Json:
    answer = httpx.get(
        f"{prometheus.url}/api/v1/{kind}", params=params, timeout=60, trust_env=False)
    return answer.json()["data"]


@pytest.mark.parametrize("expr", EXPRS)
@pytest.mark.parametrize("where", ["prometheus", "recording"])
def test_query_prints_exactly_the_api_s_data(
    history: Any, prometheus: Any, tmp_path: Path, expr: str, where: str
) -> None:
    if where == "prometheus":
        target = ["--prometheus", prometheus.url]
    else:
        save(tmp_path / "r.parquet", import_paths([history.text]))
        target = ["--recording", str(tmp_path / "r.parquet")]
    t = history.end_ms / 1000
    shown = CliRunner().invoke(query_command, [expr, *target, "--at", str(t), "-o", "json"])
    assert shown.exception is None, shown.output
    assert canonical(json.loads(shown.stdout)) == canonical(
        raw_data(prometheus, "query", {"query": expr, "time": t})
    )
    if expr.endswith("]"):
        return
    times = {"start": t - 3600, "end": t, "step": 300}
    options = [word for k, v in times.items() for word in (f"--{k}", str(v))]
    shown = CliRunner().invoke(query_command, [expr, *target, *options, "-o", "json"])
    if expr.startswith('"'):
        return
    assert shown.exception is None, shown.output
    assert canonical(json.loads(shown.stdout)) == canonical(
        raw_data(prometheus, "query_range", {"query": expr, **times})
    )


def canonical(data: Json) -> Json:
    """Sort the series, and round values to 12 digits."""
    result = data["result"]
    if data["resultType"] in ("vector", "matrix"):
        for one in result:
            points = [one["value"]] if "value" in one else one["values"]
            for point in points:
                point[1] = f"{float(point[1]):.12g}"
        result = sorted(result, key=lambda one: json.dumps(one["metric"], sort_keys=True))
    return {**data, "result": result}


# --- the scraper -------------------------------------------------------------------------------

PAGE = b"""\
# HELP a_total Odd but legal.
# TYPE a_total counter
a_total{x="1"} 1
a_total{ x = "2" , } 2e0
a_total{job="own",instance="mine"} 3
b{le="+Inf",q="\\"\\\\\\n"} NaN
{"u.t f8",l="\xc3\xa9"} -0.5
c 1 1700000000000
"""


def has_page(samples: Sequence[Sample]) -> bool:
    """Say whether a scrape came through; of one that did not there are only its own series."""
    return any(("__name__", "b") in sample.labels for sample in samples)


def test_the_scraper_makes_the_series_that_prometheus_makes(tmp_path: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    target = f"127.0.0.1:{http.server_address[1]}"
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "vllm", "static_configs": [{"targets": [target]}]}],
    }
    running = kit.prometheus(tmp_path, json.dumps(config))
    theirs = PrometheusSource(PrometheusAccess(running.url))
    store = MemoryStore()
    scraper = Scraper(f"http://{target}/metrics", "vllm", target, store, DEADLINE_MS)
    expr = '{job="vllm", __name__!~"scrape_s.*"}'
    try:
        assert scraper.scrape(int(time.time() * 1000), DEADLINE_MS).error is None
        end = time.monotonic() + kit.READY_S
        while not has_page(found := ask(theirs, expr, int(time.time() * 1000)).samples):
            assert time.monotonic() < end, "Prometheus has not scraped"
            time.sleep(0.2)
    finally:
        theirs.close()
        running.stop()
        scraper.close()
        http.shutdown()
        http.server_close()
    ours = {labels for group in store.groups() for labels in group.labels}
    timed = labels_of({"__name__": "c", "job": "vllm", "instance": target})
    assert {s.labels for s in found} == ours - {timed}


# --- VictoriaMetrics ---------------------------------------------------------------------------


def test_victoriametrics_answers_too(
    history: Any, tmp_path: Path, recorded: RecordingSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resilience.sources.prometheus.NAMES_WITHIN_S", 3 * 3600)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = [
        kit.program("victoria-metrics"),
        f"-storageDataPath={tmp_path / 'data'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-search.latencyOffset=0s",
    ]
    running = kit.Running(arguments, url, "/health", tmp_path / "log")
    source = PrometheusSource(PrometheusAccess(url, timeout_ms=DEADLINE_MS))
    try:
        lines = [_in_milliseconds(line) for line in history.text.read_text().splitlines()[:-1]]
        body = "\n".join(lines).encode()
        sent = httpx.post(f"{url}/api/v1/import/prometheus", content=body, timeout=60)
        assert sent.status_code == 204
        httpx.get(f"{url}/internal/force_flush", timeout=60)
        for expr in ('kv{model="a"}', "sum by (model) (requests_total)", "nothing"):
            t_ms = history.end_ms
            assert plain(ask(source, expr, t_ms)) == plain(ask(recorded, expr, t_ms))
        assert "kv" in source.metric_names(deadline_ms=DEADLINE_MS)
        assert ask(source, "kv +", history.end_ms).error is not None
        summary = record(
            source, needs_of(["kv"]), history.start_ms + kit.BLOCK_MS, history.end_ms,
            tmp_path / "r.parquet",
        )
        assert summary.series == 4
    finally:
        source.close()
        running.stop()


def _in_milliseconds(line: str) -> str:
    series, _, seconds = line.rpartition(" ")
    return f"{series} {round(float(seconds) * 1000)}"
