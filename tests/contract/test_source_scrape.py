"""The scraper against a real HTTP server: what Prometheus would have stored, and every failure."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from resilience.model import Labels
from resilience.promql.storage import STALE_BITS
from resilience.sources.embedded import EmbeddedSource
from resilience.sources.scrape import Scraper, ScrapeReport
from resilience.sources.store import MemoryStore

TEXT = "text/plain; version=0.0.4"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
STALE = "stale"


@dataclass
class Target:
    """What the target exposes next."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": TEXT})
    hold: threading.Event | None = None
    seen: list[dict[str, str]] = field(default_factory=list)


@dataclass
class Batches:
    """A sink that keeps what it was given, as readable values."""

    store: MemoryStore = field(default_factory=MemoryStore)
    kept: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    labels: list[Sequence[Labels]] = field(default_factory=list)

    def append(self, t_ms: int, labels: Sequence[Labels], values: NDArray[np.float64]) -> int:
        self.labels.append(labels)
        row = {_text(one): _readable(v) for one, v in zip(labels, values, strict=True)}
        self.kept.append((t_ms, row))
        return self.store.append(t_ms, labels, values)


def _text(labels: Labels) -> str:
    pairs = dict(labels)
    name = pairs.pop("__name__")
    return f"{name}{{{','.join(f'{k}={v}' for k, v in sorted(pairs.items()))}}}"


def _readable(value: float) -> Any:
    return STALE if np.float64(value).view(np.int64) == STALE_BITS else float(value)


@pytest.fixture
def target() -> Iterator[tuple[Target, Scraper, Batches]]:
    state = Target()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.seen.append({k.lower(): v for k, v in self.headers.items()})
            self.send_response(state.status)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(state.body)))
            self.end_headers()
            if state.hold is not None:
                state.hold.wait(30)
            self.wfile.write(state.body)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    sink = Batches()
    url = f"http://127.0.0.1:{http.server_address[1]}/metrics"
    scraper = Scraper(url, "vllm", "i:1", sink, series_max=100, body_max=10_000)
    yield state, scraper, sink
    scraper.close()
    http.shutdown()
    http.server_close()
    thread.join()


def scrape(scraper: Scraper, t_ms: int, deadline_ms: int = 60_000) -> ScrapeReport:
    return scraper.scrape(t_ms, deadline_ms)


def without_duration(row: dict[str, Any]) -> dict[str, Any]:
    """Drop the one value that no test can know, after checking that it is one."""
    key = "scrape_duration_seconds{instance=i:1,job=vllm}"
    assert 0 <= row[key] < 60
    return {k: v for k, v in row.items() if k != key}


OWN = "instance=i:1,job=vllm"
UP = "up{instance=i:1,job=vllm}"


def test_labels_and_report_are_added(target: tuple[Target, Scraper, Batches]) -> None:
    state, scraper, sink = target
    state.body = b'a{x="1"} 2\nb 3\nb{job="own",instance="x",exported_job="y"} 4\n'
    report = scrape(scraper, 5_000)
    assert (report.seq, report.samples, report.error) == (1, 3, None)
    t_ms, row = sink.kept[0]
    assert t_ms == 5_000
    assert without_duration(row) == {
        "a{instance=i:1,job=vllm,x=1}": 2.0,
        "b{instance=i:1,job=vllm}": 3.0,
        f"b{{exported_exported_job=own,exported_instance=x,exported_job=y,{OWN}}}": 4.0,
        UP: 1.0,
    }
    assert "openmetrics" in state.seen[0]["accept"]


def test_a_vanished_series_turns_stale_once(target: tuple[Target, Scraper, Batches]) -> None:
    state, scraper, sink = target
    for t_ms, body in ((1_000, b"a 1\nb 1\n"), (2_000, b"a 2\n"), (3_000, b"a 3\nb 4\n")):
        state.body = body
        scrape(scraper, t_ms)
    rows = [without_duration(row) for _, row in sink.kept]
    a, b = "a{instance=i:1,job=vllm}", "b{instance=i:1,job=vllm}"
    assert rows == [
        {a: 1.0, b: 1.0, UP: 1.0},
        {a: 2.0, b: STALE, UP: 1.0},
        {a: 3.0, b: 4.0, UP: 1.0},
    ]


def test_a_failed_scrape_turns_everything_stale_once(
    target: tuple[Target, Scraper, Batches],
) -> None:
    state, scraper, sink = target
    state.body = b"a 1\n"
    scrape(scraper, 1_000)
    state.status = 503
    assert "HTTP 503" in (scrape(scraper, 2_000).error or "")
    scrape(scraper, 3_000)
    state.status = 200
    scrape(scraper, 4_000)
    a = "a{instance=i:1,job=vllm}"
    assert [without_duration(row) for _, row in sink.kept] == [
        {a: 1.0, UP: 1.0},
        {a: STALE, UP: 0.0},
        {UP: 0.0},
        {a: 1.0, UP: 1.0},
    ]
    source = EmbeddedSource(sink.store, 1_000)
    live = source.query(["a"], 4_000, seq=source.seq(), deadline_ms=1)["a"]
    assert len(live.samples) == 1
    down = source.query(["a"], 3_500, seq=3, deadline_ms=1)["a"]
    assert down.samples == ()


def test_the_same_series_are_the_same_object(target: tuple[Target, Scraper, Batches]) -> None:
    """Store and recording recognise it and skip the look-ups."""
    state, scraper, sink = target
    state.body = b"a 1\nb 2\n"
    scrape(scraper, 1_000)
    state.body = b"a 5\nb 6\n"
    scrape(scraper, 2_000)
    assert sink.labels[0] is sink.labels[1]


def test_the_first_of_two_samples_counts(target: tuple[Target, Scraper, Batches]) -> None:
    state, scraper, sink = target
    state.body = b'a{x="1"} 1\na{x="1"} 2\nup{job="vllm"} 7\n'
    scrape(scraper, 1_000)
    assert sink.kept[0][1]["a{instance=i:1,job=vllm,x=1}"] == 1.0


def test_a_sample_with_a_time_keeps_it_and_never_turns_stale(
    target: tuple[Target, Scraper, Batches],
) -> None:
    state, scraper, sink = target
    state.body = b"a 1 700\nb 2\n"
    scrape(scraper, 1_000)
    state.body = b"b 2\n"
    scrape(scraper, 2_000)
    assert (700, {"a{instance=i:1,job=vllm}": 1.0}) in sink.kept
    assert STALE not in sink.kept[-1][1].values()


def test_openmetrics_is_read_by_its_content_type(target: tuple[Target, Scraper, Batches]) -> None:
    state, scraper, sink = target
    state.headers = {"content-type": OPENMETRICS}
    state.body = b'a_total 1 # {t="x"} 2\n# EOF\n'
    assert scrape(scraper, 1_000).error is None
    state.body = b"a_total 1\n"
    assert "EOF" in (scrape(scraper, 2_000).error or "")
    assert [row[UP] for _, row in sink.kept] == [1.0, 0.0]


def test_a_bad_text_names_its_line(target: tuple[Target, Scraper, Batches]) -> None:
    target[0].body = b"a 1\nb x\n"
    assert "line 2: `x` is not a number" in (scrape(target[1], 1_000).error or "")
    target[0].body = b"a \xff\n"
    assert "line 1: not UTF-8" in (scrape(target[1], 2_000).error or "")


def test_redirects_in_a_circle_end(target: tuple[Target, Scraper, Batches]) -> None:
    state, scraper, _ = target
    state.status, state.headers = 307, {"location": "/metrics/"}
    assert "redirect" in (scrape(scraper, 1_000).error or "").lower()


def test_too_much_is_refused(target: tuple[Target, Scraper, Batches]) -> None:
    state, scraper, sink = target
    state.body = b"a 1\n" * 3_000
    assert "more than 10000 bytes" in (scrape(scraper, 1_000).error or "")
    state.body = b"".join(b"a%d 1\n" % i for i in range(101))
    assert "more than 100 series" in (scrape(scraper, 2_000).error or "")
    state.headers = {"content-type": TEXT, "content-encoding": "gzip"}
    state.body = gzip.compress(b"a 1\n" * 100_000)
    assert "more than 10000 bytes" in (scrape(scraper, 3_000).error or "")
    assert [set(without_duration(row)) for _, row in sink.kept] == [{UP}] * 3


def test_new_names_for_ever_do_not_fill_the_memory(target: tuple[Target, Scraper, Batches]) -> None:
    state, scraper, sink = target
    for turn in range(20):
        state.body = b"".join(b'a{id="%d-%d"} 1\n' % (turn, i) for i in range(60))
        assert scrape(scraper, 1_000 * turn).error is None
    assert len(sink.kept[-1][1]) == 60 + 60 + 2


def test_a_hanging_target_is_left_in_time(target: tuple[Target, Scraper, Batches]) -> None:
    state, scraper, sink = target
    state.body, state.hold = b"a 1\n", threading.Event()
    assert "in time" in (scrape(scraper, 1_000, deadline_ms=200).error or "")
    state.hold.set()
    assert sink.kept[0][1][UP] == 0.0


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sink = Batches()
    scraper = Scraper(f"http://127.0.0.1:{port}/metrics", "vllm", "i:1", sink)
    assert "cannot scrape" in (scrape(scraper, 1_000).error or "")
    scraper.close()
    assert sink.kept[0][1][UP] == 0.0
