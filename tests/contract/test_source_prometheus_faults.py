"""A Prometheus that misbehaves: each fault is an error or a warning, never "no series".

The server below is a real HTTP server on a real socket; only its answers are bad on purpose.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from resilience.errors import SourceError, UsageError
from resilience.model import PrometheusAccess
from resilience.sources.prometheus import PrometheusSource

EMPTY = {"status": "success", "data": {"resultType": "vector", "result": []}}
SECRET = "s3cret-token-value"


@dataclass
class Fault:
    """What the server does next, and what it has seen."""

    status: int = 200
    body: bytes = json.dumps(EMPTY).encode()
    headers: dict[str, str] = field(default_factory=dict)
    hang: threading.Event | None = None
    drip: bool = False
    seen: list[tuple[str, str, dict[str, str], dict[str, list[str]]]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[tuple[Fault, str]]:
    fault = Fault()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("content-length", 0))
            form = parse_qs(self.rfile.read(length).decode() or urlsplit(self.path).query)
            headers = {k.lower(): v for k, v in self.headers.items()}
            fault.seen.append((self.command, urlsplit(self.path).path, headers, form))
            if fault.hang is not None and not fault.drip:
                fault.hang.wait(30)
            self.send_response(fault.status)
            for name, value in fault.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(fault.body)))
            self.end_headers()
            if fault.drip and fault.hang is not None:
                while not fault.hang.wait(0.02):
                    self.wfile.write(b" ")
                    self.wfile.flush()
            self.wfile.write(fault.body)

        def do_GET(self) -> None:
            try:
                self._answer()
            except OSError:
                self.close_connection = True

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield fault, f"http://127.0.0.1:{http.server_address[1]}"
    if fault.hang is not None:
        fault.hang.set()
    http.shutdown()
    http.server_close()
    thread.join()


def ask(url: str, *, deadline_ms: int = 60_000, **access: Any) -> Any:
    source = PrometheusSource(PrometheusAccess(url, **access))
    try:
        return source.query(["up"], 1_000, seq=0, deadline_ms=deadline_ms)["up"]
    finally:
        source.close()


def test_an_empty_answer_is_empty_and_well(server: tuple[Fault, str]) -> None:
    result = ask(server[1])
    assert (result.samples, result.error, result.warnings) == ((), None, ())
    method, path, _, form = server[0].seen[0]
    assert (method, path, form["time"]) == ("GET", "/api/v1/query", ["1.000"])
    assert form["timeout"][0].endswith("ms")


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (500, b"<html>boom</html>", "answered HTTP 500: <html>boom</html>"),
        (503, b"", "answered HTTP 503: no explanation"),
        (422, b'{"status":"error","errorType":"execution","error":"many-to-many"}', "many-to-many"),
        (400, b'{"status":"error","errorType":"bad_data","error":"1:2: parse"}', "bad_data: 1:2"),
        (401, b"no", "refused the credentials (HTTP 401)"),
        (403, b"no", "refused the credentials (HTTP 403)"),
        (302, b"", "redirects (HTTP 302)"),
        (204, b"", "HTTP 204: no explanation"),
        (200, b"<html>", "not JSON"),
        (200, b"[" * 100_000, "not JSON"),
        (200, b"[]", "not an object"),
        (200, b"{}", ": {}"),
        (200, b'{"status":"error","errorType":"timeout","error":"slow"}', "timeout: slow"),
        (200, b'{"status":"success"}', "resultType"),
        (200, b'{"status":"success","data":{"resultType":"vector","result":[{}]}}', "malformed"),
    ],
)
def test_a_bad_answer_is_an_error(
    server: tuple[Fault, str], status: int, body: bytes, reason: str
) -> None:
    fault, url = server
    fault.status, fault.body, fault.headers = status, body, {"location": "http://127.0.0.1:1/"}
    result = ask(url)
    assert result.samples == ()
    assert reason in (result.error or "")
    assert "\n" not in (result.error or "")


def test_warnings_and_partial_answers_survive(server: tuple[Fault, str]) -> None:
    server[0].body = json.dumps({**EMPTY, "warnings": ["store-1 is down"]}).encode()
    assert ask(server[1]).warnings == ("store-1 is down",)
    server[0].body = json.dumps({**EMPTY, "isPartial": True}).encode()
    assert len(ask(server[1]).warnings) == 1


@pytest.mark.parametrize("drip", [False, True])
def test_a_server_that_hangs_or_drips_is_left_in_time(
    server: tuple[Fault, str], drip: bool
) -> None:
    server[0].hang, server[0].drip = threading.Event(), drip
    told = re.search(r"within (\d+) ms", ask(server[1], deadline_ms=300).error or "")
    assert told and int(told[1]) <= 300       # what was left when the request was sent


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert ask(f"http://127.0.0.1:{port}").error == f"cannot reach `http://127.0.0.1:{port}`"


def test_a_name_that_does_not_resolve() -> None:
    assert "cannot reach" in (ask("http://prometheus.invalid").error or "")


@pytest.mark.parametrize("url", ["ftp://x", "prometheus:9090", "", "http://"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(UsageError, match="http://"):
        PrometheusSource(PrometheusAccess(url))


def test_credentials_in_the_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        PrometheusSource(PrometheusAccess(f"http://me:{SECRET}@host"))
    assert SECRET not in str(caught.value)


def test_headers_tenant_and_token(server: tuple[Fault, str], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{SECRET}\n")
    ask(server[1], headers=(("X-Scope-OrgID", "team-a"),), bearer_token_file=str(token))
    headers = server[0].seen[0][2]
    assert headers["x-scope-orgid"] == "team-a"
    assert headers["authorization"] == f"Bearer {SECRET}"


def test_a_rotated_token_is_used_at_once(server: tuple[Fault, str], tmp_path: Path) -> None:
    token = tmp_path / "token"
    source = PrometheusSource(PrometheusAccess(server[1], bearer_token_file=str(token)))
    for text in ("one1", "two2"):
        token.write_text(text)
        source.query(["up"], 0, seq=0, deadline_ms=60_000)
    source.close()
    assert [s[2]["authorization"] for s in server[0].seen] == ["Bearer one1", "Bearer two2"]


def test_basic_authentication(server: tuple[Fault, str], tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("pw")
    ask(server[1], username="me", password_file=str(password))
    assert server[0].seen[0][2]["authorization"] == "Basic bWU6cHc="


def test_a_rotated_password_is_read_again(server: tuple[Fault, str], tmp_path: Path) -> None:
    password = tmp_path / "password"
    source = PrometheusSource(
        PrometheusAccess(server[1], username="me", password_file=str(password)))
    for text in ("pw", "other"):
        password.write_text(text)
        source.instant("up", 1_000, deadline_ms=30_000)
    source.close()
    assert [s[2]["authorization"] for s in server[0].seen] == [
        "Basic bWU6cHc=", "Basic bWU6b3RoZXI="]


@pytest.mark.parametrize("content", [None, "", "a\nb", "ü"])
def test_a_secret_that_cannot_be_read(
    server: tuple[Fault, str], tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    assert "secret in" in (ask(server[1], bearer_token_file=str(file)).error or "")
    assert server[0].seen == []


def test_an_echoed_secret_is_cut_out(
    server: tuple[Fault, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = tmp_path / "token"
    token.write_text(SECRET)
    server[0].status, server[0].body = 500, f"got Bearer {SECRET} and key-4711".encode()
    error = ask(server[1], bearer_token_file=str(token), headers=(("X-Key", "key-4711"),)).error
    assert "got Bearer … and …" in (error or "")
    assert SECRET not in caplog.text
    assert "key-4711" not in caplog.text


def test_a_long_expression_travels_in_the_body(server: tuple[Fault, str]) -> None:
    source = PrometheusSource(PrometheusAccess(server[1]))
    expr = "up + " * 2_000 + "up"
    assert source.query([expr], 0, seq=0, deadline_ms=60_000)[expr].error is None
    source.close()
    method, _, _, form = server[0].seen[0]
    assert (method, form["query"]) == ("POST", [expr])


def test_many_queries_have_one_answer_each(server: tuple[Fault, str]) -> None:
    source = PrometheusSource(PrometheusAccess(server[1]))
    exprs = [f"m{i}" for i in range(50)]
    assert list(source.query([*exprs, "m0"], 0, seq=0, deadline_ms=60_000)) == exprs
    source.close()
    assert len(server[0].seen) == 50


def test_metric_names_and_version_raise_source_errors(server: tuple[Fault, str]) -> None:
    fault, url = server
    source = PrometheusSource(PrometheusAccess(url))
    fault.body = b'{"status":"success","data":["a","b"]}'
    assert source.metric_names(deadline_ms=60_000) == frozenset({"a", "b"})
    fault.body = b'{"status":"success","data":{"version":"3.5.3"}}'
    assert source.version(deadline_ms=60_000) == "3.5.3"
    fault.status = 502
    with pytest.raises(SourceError, match="502"):
        source.metric_names(deadline_ms=60_000)
    source.close()
