"""Real Prometheus 3 and VictoriaMetrics servers: what they answer, and what is read from them.

The servers are found in the folder $RESILIENCE_REFERENCE_SERVERS or on the PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner

from resilience.app.bundles import Sources, check_sources, propose
from resilience.app.engine import Engine
from resilience.app.journal import SqliteJournal
from resilience.cli.query import command as query_command
from resilience.cli.record import command as record_command
from resilience.errors import SourceError
from resilience.model import (
    Decision,
    Json,
    PrometheusAccess,
    QueryResult,
    Reason,
    State,
    Truth,
    labels_of,
)
from resilience.promql.storage import is_absent
from resilience.sources import importers_prometheus
from resilience.sources.importers import import_paths, save
from resilience.sources.importers_prometheus import needs_of, record
from resilience.sources.prometheus import PrometheusSource
from resilience.sources.recording import RecordingSource, read
from resilience.sources.scrape import Scraper
from resilience.sources.store import MemoryStore

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

BLOCK_MS = 7_200_000
STEP_MS = 15_000
READY_S = 60.0
DEADLINE_MS = 20_000

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


def program(name: str) -> str:
    """Return the path of a reference server, or skip."""
    folder = os.environ.get("RESILIENCE_REFERENCE_SERVERS")
    for place in (f"{folder}/bin/{name}", f"{folder}/{name}") if folder else ():
        if os.access(place, os.X_OK):
            return place
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no `{name}`: set RESILIENCE_REFERENCE_SERVERS to a folder that holds it")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Running:
    """A server process that answers HTTP; killed when the test is done."""

    def __init__(self, arguments: list[str], url: str, ready: str, log: Path) -> None:
        self.url = url
        with log.open("wb") as sink:
            self._process = subprocess.Popen(arguments, stdout=sink, stderr=sink)
        self._wait(ready, log)

    def _wait(self, ready: str, log: Path) -> None:
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                if httpx.get(self.url + ready, timeout=2, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        self.stop()
        pytest.fail(f"the server did not start: {log.read_text()[-2000:]}")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def prometheus(folder: Path, config: str = "", *options: str) -> Running:
    port = free_port()
    file = folder / "prometheus.yml"
    file.write_text(config or "global: {scrape_interval: 1h}\n")
    arguments = [
        program("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=10y",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-admin-api",
        *options,
    ]
    return Running(arguments, f"http://127.0.0.1:{port}", "/-/ready", folder / "log")


@dataclass(frozen=True)
class Data:
    """One text with timestamps over two blocks, and the same as a Prometheus data folder."""

    text: Path
    blocks: Path
    start_ms: int
    end_ms: int


def pairs(values: Any, seconds: list[str]) -> Iterator[tuple[float, str]]:
    return zip(values, seconds, strict=True)


def exposition(start_ms: int, count: int) -> str:
    rng = np.random.default_rng(7)
    lines: list[str] = []
    for instance, offset in (("a:1", 1_234), ("b:1", 9_871)):
        times = start_ms + offset + np.arange(count) * STEP_MS + rng.integers(-20, 20, count)
        seconds = [f"{t / 1000:.3f}" for t in times]
        total = np.cumsum(rng.poisson(30, count)).astype(float)
        total[count // 2 :] -= total[count // 2]
        gauge = rng.random(count)
        gauge[count // 3] = np.nan
        for model, share in (("a", 1.0), ("b", 0.5)):
            own = f'instance="{instance}",job="vllm",model="{model}"'
            lines += [f"requests_total{{{own}}} {v * share} {t}" for v, t in pairs(total, seconds)]
            lines += [f"kv{{{own}}} {v * share} {t}" for v, t in pairs(gauge, seconds)]
            for le, part in (("0.1", 0.2), ("1", 0.7), ("+Inf", 1.0)):
                series = f'latency_bucket{{{own},le="{le}"}}'
                lines += [f"{series} {v * part} {t}" for v, t in pairs(total, seconds)]
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp("data")
    start_ms = (int(time.time() * 1000) // BLOCK_MS - 2) * BLOCK_MS
    count = 2 * BLOCK_MS // STEP_MS - 10
    text = folder / "all.om"
    text.write_text(exposition(start_ms, count))
    subprocess.run(
        [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", text, folder / "data"],
        check=True,
        capture_output=True,
    )
    return Data(text, folder / "data", start_ms, start_ms + count * STEP_MS)


@pytest.fixture(scope="module")
def server(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copytree(data.blocks, folder / "data")
    running = prometheus(folder)
    yield running
    running.stop()


@pytest.fixture
def source(server: Running) -> Iterator[PrometheusSource]:
    found = PrometheusSource(PrometheusAccess(server.url, timeout_ms=DEADLINE_MS))
    yield found
    found.close()


@pytest.fixture(scope="module")
def recorded(data: Data, tmp_path_factory: pytest.TempPathFactory) -> RecordingSource:
    out = tmp_path_factory.mktemp("recording") / "r.parquet"
    save(out, import_paths([data.text]))
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
    data: Data, source: PrometheusSource, recorded: RecordingSource, expr: str
) -> None:
    for t_ms in (data.start_ms + 600_000, data.start_ms + BLOCK_MS + 60_123, data.end_ms):
        assert plain(ask(source, expr, t_ms)) == plain(ask(recorded, expr, t_ms))


def test_a_wrong_expression_is_the_server_s_error(data: Data, source: PrometheusSource) -> None:
    result = ask(source, "kv + on () kv", data.end_ms)
    assert "execution" in (result.error or "")
    assert "parse error" in (ask(source, "kv +", data.end_ms).error or "")


def test_names_and_version(source: PrometheusSource, monkeypatch: pytest.MonkeyPatch) -> None:
    # The data ends up to two hours ago, where the last whole block does.
    monkeypatch.setattr("resilience.sources.prometheus.NAMES_WITHIN_S", 3 * 3600)
    assert source.metric_names(deadline_ms=DEADLINE_MS) >= {"kv", "latency_bucket"}
    assert source.version(deadline_ms=DEADLINE_MS).startswith("3.")


def test_a_query_that_is_too_large_is_an_error(
    data: Data, tmp_path: Path, recorded: RecordingSource
) -> None:
    """And a recording asks for less at a time until it fits."""
    shutil.copytree(data.blocks, tmp_path / "data")
    running = prometheus(tmp_path, "", "--query.max-samples=900")
    source = PrometheusSource(PrometheusAccess(running.url, timeout_ms=DEADLINE_MS))
    try:
        assert "too many samples" in (ask(source, "kv[2h]", data.end_ms).error or "")
        summary = record(
            source, needs_of(["kv"]), data.start_ms + BLOCK_MS, data.end_ms, tmp_path / "r.parquet"
        )
    finally:
        source.close()
        running.stop()
    assert summary.series == 4
    assert summary.samples > 4 * 400


def test_a_server_that_is_still_starting_or_gone(tmp_path: Path) -> None:
    running = prometheus(tmp_path)
    source = PrometheusSource(PrometheusAccess(running.url))
    assert ask(source, "up", 0).error is None
    running.stop()
    assert "cannot reach" in (ask(source, "up", 0).error or "")
    with pytest.raises(SourceError):
        source.metric_names(deadline_ms=1_000)
    source.close()


# --- recordings --------------------------------------------------------------------------------


def samples_of(path: Path) -> dict[Any, list[tuple[int, int]]]:
    """Return (time, bits) of each sample by series."""
    found: dict[Any, list[tuple[int, int]]] = {}
    for group in read(path).store.groups():
        for labels, row in zip(group.labels, group.values, strict=True):
            row = np.ascontiguousarray(row)
            there = ~is_absent(row)
            bits = np.where(np.isnan(row), 0, row.view(np.int64))[there]
            found[labels] = list(zip(group.times[there].tolist(), bits.tolist(), strict=True))
    return found


def test_blocks_and_text_make_the_same_recording(data: Data, tmp_path: Path) -> None:
    save(tmp_path / "text.parquet", import_paths([data.text]))
    save(tmp_path / "tsdb.parquet", import_paths([data.blocks]))
    assert samples_of(tmp_path / "text.parquet") == samples_of(tmp_path / "tsdb.parquet")
    assert read(tmp_path / "tsdb.parquet").meta.scrape_interval_ms == STEP_MS


def test_a_snapshot_is_read_and_deleted_samples_stay_deleted(
    data: Data, tmp_path: Path
) -> None:
    shutil.copytree(data.blocks, tmp_path / "data")
    running = prometheus(tmp_path)
    try:
        admin = f"{running.url}/api/v1/admin/tsdb"
        middle = (data.start_ms + BLOCK_MS // 2) / 1000
        times = {"start": middle, "end": middle + 600}
        chosen: dict[str, str | float] = {"match[]": 'kv{model="b"}', **times}
        assert httpx.post(f"{admin}/delete_series", params=chosen).status_code == 204
        name = httpx.post(f"{admin}/snapshot").json()["data"]["name"]
    finally:
        running.stop()
    whole = import_paths([data.text])
    rest = import_paths([tmp_path / "data" / "snapshots" / name])
    save(tmp_path / "whole.parquet", whole)
    save(tmp_path / "rest.parquet", rest)
    expected = samples_of(tmp_path / "whole.parquet")
    for labels, samples in expected.items():
        if ("__name__", "kv") in labels and ("model", "b") in labels:
            low, high = middle * 1000, middle * 1000 + 600_000
            expected[labels] = [s for s in samples if not low <= s[0] <= high]
    assert samples_of(tmp_path / "rest.parquet") == expected


def test_raw_samples_are_recorded_and_an_interrupted_call_goes_on(
    data: Data, source: PrometheusSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = needs_of(["rate(requests_total[5m])", 'kv{model="a"}', "nothing > 1"])
    out = tmp_path / "r.parquet"
    start_ms, end_ms = data.start_ms + 600_000, data.end_ms
    asked: list[str] = []
    real = importers_prometheus._fetch

    def failing(source: PrometheusSource, selector: str, low: int, high: int) -> Any:
        if len(asked) == 4:
            raise SourceError("the server went away")
        asked.append(selector)
        return real(source, selector, low, high)

    monkeypatch.setattr(importers_prometheus, "_fetch", failing)
    with pytest.raises(SourceError, match="went away"):
        record(source, need, start_ms, end_ms, out)
    assert not out.exists()
    monkeypatch.setattr(importers_prometheus, "_fetch", real)
    summary = record(source, need, start_ms, end_ms, out)
    assert summary.missing == ("nothing",)
    assert summary.meta.raw
    assert summary.meta.source_version.startswith("3.")
    save(tmp_path / "text.parquet", import_paths([data.text]))
    whole = samples_of(tmp_path / "text.parquet")
    low = start_ms - need.reach_ms
    wanted = {
        labels: [s for s in samples if low < s[0] <= end_ms]
        for labels, samples in whole.items()
        if dict(labels)["__name__"] == "requests_total"
        or (dict(labels)["__name__"], dict(labels)["model"]) == ("kv", "a")
    }
    assert samples_of(out) == wanted
    assert not (tmp_path / "r.parquet.parts").exists()


RULES = """\
apiVersion: resilience/v1
kind: Policy
metadata: {name: kv}
spec:
  interval: 15s
  on_missing_metric: warn
  trigger: {expr: 'max by (model) (kv) > 0.9', on_no_data: hold}
  actions: [{type: throttle, tier: best-effort, max_concurrency: 8}]
"""


def test_record_from_prometheus_on_the_command_line(
    data: Data, server: Running, tmp_path: Path
) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "kv.yaml").write_text(RULES)
    out = tmp_path / "r.parquet"
    arguments = ["--prometheus", server.url, str(tmp_path / "rules"), "--out", str(out)]
    times = ["--start", str(data.start_ms / 1000), "--end", str(data.end_ms / 1000)]
    result = CliRunner().invoke(record_command, [*arguments, *times, "-o", "json"])
    assert result.exception is None, result.output
    body = json.loads(result.stdout)
    assert (body["version"], body["series"], body["missing"]) == (1, 4, [])
    assert {dict(labels)["__name__"] for labels in samples_of(out)} == {"kv"}


# --- query -------------------------------------------------------------------------------------


def raw_data(server: Running, kind: str, params: dict[str, Any]) -> Json:
    answer = httpx.get(f"{server.url}/api/v1/{kind}", params=params, trust_env=False)
    return answer.json()["data"]


@pytest.mark.parametrize("expr", EXPRS)
@pytest.mark.parametrize("where", ["prometheus", "recording"])
def test_query_prints_exactly_the_api_s_data(
    data: Data, server: Running, tmp_path: Path, expr: str, where: str
) -> None:
    if where == "prometheus":
        target = ["--prometheus", server.url]
    else:
        save(tmp_path / "r.parquet", import_paths([data.text]))
        target = ["--recording", str(tmp_path / "r.parquet")]
    t = data.end_ms / 1000
    shown = CliRunner().invoke(query_command, [expr, *target, "--at", str(t), "-o", "json"])
    assert shown.exception is None, shown.output
    assert canonical(json.loads(shown.stdout)) == canonical(
        raw_data(server, "query", {"query": expr, "time": t})
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
        raw_data(server, "query_range", {"query": expr, **times})
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
    running = prometheus(tmp_path, json.dumps(config))
    theirs = PrometheusSource(PrometheusAccess(running.url))
    store = MemoryStore()
    scraper = Scraper(f"http://{target}/metrics", "vllm", target, store)
    expr = '{job="vllm", __name__!~"scrape_s.*"}'
    try:
        assert scraper.scrape(int(time.time() * 1000), 5_000).error is None
        end = time.monotonic() + READY_S
        while not (found := ask(theirs, expr, int(time.time() * 1000)).samples):
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
    data: Data, tmp_path: Path, recorded: RecordingSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resilience.sources.prometheus.NAMES_WITHIN_S", 3 * 3600)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = [
        program("victoria-metrics"),
        f"-storageDataPath={tmp_path / 'data'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-search.latencyOffset=0s",
    ]
    running = Running(arguments, url, "/health", tmp_path / "log")
    source = PrometheusSource(PrometheusAccess(url, timeout_ms=DEADLINE_MS))
    try:
        lines = [_in_milliseconds(line) for line in data.text.read_text().splitlines()[:-1]]
        body = "\n".join(lines).encode()
        assert httpx.post(f"{url}/api/v1/import/prometheus", content=body).status_code == 204
        httpx.get(f"{url}/internal/force_flush")
        for expr in ('kv{model="a"}', "sum by (model) (requests_total)", "nothing"):
            assert plain(ask(source, expr, data.end_ms)) == plain(ask(recorded, expr, data.end_ms))
        assert "kv" in source.metric_names(deadline_ms=DEADLINE_MS)
        assert ask(source, "kv +", data.end_ms).error is not None
        summary = record(
            source, needs_of(["kv"]), data.start_ms + BLOCK_MS, data.end_ms, tmp_path / "r.parquet"
        )
        assert summary.series == 4
    finally:
        source.close()
        running.stop()


def _in_milliseconds(line: str) -> str:
    series, _, seconds = line.rpartition(" ")
    return f"{series} {round(float(seconds) * 1000)}"


# --- decisions over a real server ----------------------------------------------------------------

LOADED = """
apiVersion: resilience/v1
kind: Policy
metadata: {name: loaded}
spec:
  interval: 15s
  trigger:
    expr: sum(count_over_time(requests_total[5m])) > 10
    on_no_data: hold
    resolve: {expr: 'sum(count_over_time(requests_total[5m])) < 10'}
  actions:
    - {type: throttle, tier: best-effort, max_concurrency: 4, lease: 30s}
"""
QUERY_TIMEOUT_MS = 1_500


class Between(ThreadingHTTPServer):
    """Hands everything on to `target`, unless `fault` says what to do instead."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.target = target
        self.fault = ""
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Forward(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self._hand_on(self.rfile.read(int(self.headers.get("Content-Length", "0"))))

    def do_GET(self) -> None:
        self._hand_on(None)

    def _hand_on(self, body: bytes | None) -> None:
        between = self.server
        assert isinstance(between, Between)
        fault = between.fault
        if fault == "slow":
            between.ended.wait(QUERY_TIMEOUT_MS * 3 / 1000)
            return
        if fault == "reset":
            self.connection.close()
            return
        kind = {"Content-Type": self.headers.get("Content-Type", "")} if body else {}
        answer = httpx.request(
            self.command, between.target + self.path, content=body, headers=kind,
            timeout=20, trust_env=False,
        )
        content, status = answer.content, answer.status_code
        if fault == "5xx":
            content, status = b'{"status":"error","errorType":"timeout","error":"busy"}', 503
        elif fault == "warnings":
            content = json.dumps({**answer.json(), "warnings": ["a store is missing"]}).encode()
        elif fault == "cut":
            content = content[: len(content) // 2]
        elif fault == "empty":
            content = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def between(server: Running) -> Iterator[Between]:
    proxy = Between(server.url)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    yield proxy
    proxy.ended.set()
    proxy.shutdown()
    proxy.server_close()
    thread.join(10)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("slow", "blind_source_error"), ("reset", "blind_source_error"),
        ("5xx", "blind_source_error"), ("cut", "blind_source_error"),
        ("warnings", "blind_partial"), ("empty", "blind_no_series"),
    ],
)
def test_a_policy_on_a_real_server_is_unknown_when_its_answers_are(
    data: Data, between: Between, tmp_path: Path, fault: str, reason: str
) -> None:
    """A fault on the way neither fires nor resolves; the next good answer goes on from there."""
    access = PrometheusAccess(between.url, timeout_ms=QUERY_TIMEOUT_MS)
    source = PrometheusSource(access)
    bundle = check_sources(Sources((("loaded.yaml", LOADED.encode()),))).bundle
    journal = SqliteJournal(tmp_path / "journal.db")
    engine = Engine(bundle, source=source, journal=journal, propose=propose, record_results=True)
    t_ms = (data.end_ms - 30 * 60_000) // STEP_MS * STEP_MS

    def tick(fault: str) -> list[Decision]:
        nonlocal t_ms
        between.fault = fault
        t_ms += STEP_MS
        return list(engine.tick(t_ms, STEP_MS).decisions)

    try:
        assert tick(fault) == []
        (fired,) = tick("")
        assert (fired.to_state, fired.truth) == (State.FIRING, Truth.TRUE)
        blind = tick(fault)
        assert [(d.to_state, d.truth, d.reason) for d in blind] == [
            (State.HELD, Truth.UNKNOWN, Reason(reason))
        ]
        assert blind[0].claims_after == fired.claims_after
        assert tick(fault) == []
    finally:
        source.close()
        journal.close()
