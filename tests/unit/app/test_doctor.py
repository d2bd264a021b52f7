"""What `doctor` reaches: each thing is one line, and nothing raises."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from resilience.app import doctor_reach
from resilience.app.doctor import Reach, examine
from resilience.model import Capabilities, EngineConfig, KnobCapability, PrometheusAccess

NOBODY = "http://127.0.0.1:1"
PAGES = {
    "/metrics": "vllm:num_requests_waiting 1\n",
    "/version": '{"version": "0.32.0"}',
    "/api/v1/label/__name__/values": '{"status": "success", "data": ["up", "vllm:x"]}',
}


@pytest.fixture
def url() -> Iterator[str]:
    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = PAGES.get(self.path.partition("?")[0])
            self.send_response(200 if body is not None else 404)
            self.end_headers()
            self.wfile.write((body or "").encode())

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the test's output is the test's."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_levers_and_why_others_are_missing() -> None:
    lines = list(doctor_reach.capabilities(Capabilities(
        "vllm", "0.32.0", {"cache.max_running": KnobCapability("live")}, ("reset_prefix_cache",),
        ("small",), ({"knob": "cache.step_tokens", "reason": "signature moved"},),
    )))
    assert [(name, status) for name, status, _, _ in lines] == [
        ("core", "ok"), ("core, knobs", "ok"), ("core, impulses", "ok"),
        ("core, dropped", "warning"),
    ]
    assert "vllm 0.32.0 serves small" in lines[0][2]
    assert lines[3][2] == "`cache.step_tokens`: signature moved"


def test_servers_that_answer(url: str) -> None:
    (scraped,) = doctor_reach.metrics(url)
    assert scraped[1] == "ok" and scraped[2].endswith("of vLLM 0.32.0")
    (asked,) = doctor_reach.prometheus(None, url)
    assert asked[1:3] == ("ok", f"{url} knows 2 metrics, with those of vllm")
    config = EngineConfig(prometheus=PrometheusAccess(url))
    assert list(doctor_reach.prometheus(config, None)) == [asked]
    assert list(doctor_reach.prometheus(EngineConfig(), None)) == []


def test_servers_that_do_not(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a" * 32)
    token.chmod(0o600)
    found = examine(tmp_path / "no.sock", tmp_path / "state",
                    Reach(NOBODY, token, NOBODY, tmp_path / "none.yaml"))
    last = {c.name: c for c in found}
    for name in ("core", "metrics", "prometheus", "configuration"):
        assert last[name].status == "error" and last[name].advice, name
        assert "Traceback" not in last[name].detail


@pytest.mark.parametrize("address", ["ftp://x", "nonsense"])
def test_what_is_no_address_is_said_in_words(address: str) -> None:
    for found in (*doctor_reach.metrics(address), *doctor_reach.prometheus(None, address)):
        assert found[1] == "error" and "http://" in found[2] and "Error" not in found[2]
