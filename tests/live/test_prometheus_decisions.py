"""Policies on a real Prometheus: a failed or partial answer is unknown, never false."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from resilience.app.bundles import Sources, check_sources, propose
from resilience.app.engine import Engine
from resilience.app.journal import SqliteJournal
from resilience.model import (
    Decision,
    PrometheusAccess,
    Reason,
    State,
    Truth,
)
from resilience.sources.prometheus import PrometheusSource
from tests.live import metric_servers as kit

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
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
QUERY_TIMEOUT_MS = 1_500        # where the server is slow on purpose
PATIENT_MS = 60_000             # where a late answer would hide the fault that is meant


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
            timeout=PATIENT_MS / 1000, trust_env=False,
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
def between(prometheus: Any) -> Iterator[Between]:
    proxy = Between(prometheus.url)
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
    history: Any, between: Between, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str,
    reason: str,
) -> None:
    """A fault on the way neither fires nor resolves; the next good answer goes on from there."""
    timeout_ms = QUERY_TIMEOUT_MS if fault == "slow" else PATIENT_MS
    monkeypatch.setattr("resilience.app.prefetch.QUERY_DEADLINE_MS", PATIENT_MS)
    access = PrometheusAccess(between.url, timeout_ms=timeout_ms)
    source = PrometheusSource(access)
    bundle = check_sources(Sources((("loaded.yaml", LOADED.encode()),))).bundle
    journal = SqliteJournal(tmp_path / "journal.db")
    engine = Engine(bundle, source=source, journal=journal, propose=propose, record_results=True)
    t_ms = (history.end_ms - 30 * 60_000) // kit.STEP_MS * kit.STEP_MS

    def tick(fault: str) -> list[Decision]:
        nonlocal t_ms
        between.fault = fault
        t_ms += kit.STEP_MS
        return list(engine.tick(t_ms, kit.STEP_MS).decisions)

    try:
        assert tick(fault) == []
        (fired,) = next(filter(None, (tick("") for _ in range(5))))   # late answers decide nothing
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
