"""What `check` learns of a server: asked for real, over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from resilience.app import targets
from resilience.errors import SourceError, UsageError
from resilience.policy.catalogue import Target

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "sources" / "recording_v1.parquet"
VLLM = ('vllm:num_requests_waiting{model_name="a",engine="0"} 1\n'
        'vllm:request_success_total{model_name="a",finished_reason="stop"} 1\n')


@pytest.fixture
def serve() -> Iterator[Callable[[dict[str, str]], str]]:
    servers: list[ThreadingHTTPServer] = []

    def start(pages: dict[str, str]) -> str:
        class Pages(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = pages.get(self.path.partition("?")[0])
                self.send_response(200 if body is not None else 404)
                self.end_headers()
                self.wfile.write((body or "").encode())

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: the test's output is the test's."""

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Pages))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("tail", ["", "/", "/metrics"])
def test_a_server_is_asked_for_metrics_and_version(
    serve: Callable[[dict[str, str]], str], tail: str
) -> None:
    url = serve({"/metrics": VLLM, "/version": '{"version": "0.11.2"}'})
    seen = targets.of_server(url + tail)
    assert seen.target == Target("vllm", (0, 11, 2))
    assert seen.names is not None and {"up", "vllm:num_requests_waiting"} <= seen.names
    assert seen.labels is not None
    assert seen.labels["vllm:request_success_total"] == {
        "model_name", "finished_reason", "job", "instance"
    }


@pytest.mark.parametrize("pause_s", [0.0, 0.01])
def test_a_version_that_never_ends_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, pause_s: float
) -> None:
    """It comes all at once, or a byte now and then."""
    left, over = threading.Event(), threading.Event()

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                while not over.wait(pause_s):
                    self.wfile.write(b" " if pause_s else b" " * 4_096)
            except OSError:
                left.set()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the test's output is the test's."""

    if pause_s:
        monkeypatch.setattr(targets, "SERVER_DEADLINE_MS", 500)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert targets._version(f"http://127.0.0.1:{server.server_address[1]}") is None
        assert left.wait(60)
    finally:
        over.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("pages", "target"),
    [
        ({"/metrics": VLLM}, Target("vllm")),
        ({"/metrics": VLLM, "/version": "[]"}, Target("vllm")),
        ({"/metrics": VLLM, "/version": "no json"}, Target("vllm")),
        ({"/metrics": "sglang:token_usage 1\n"}, Target("sglang")),
        ({"/metrics": "tgi_queue_size 1\n"}, Target("tgi")),
        ({"/metrics": "my_metric 1\n"}, None),
    ],
)
def test_which_stack_answers(
    serve: Callable[[dict[str, str]], str], pages: dict[str, str], target: Target | None
) -> None:
    assert targets.of_server(serve(pages)).target == target


def test_a_server_without_metrics_is_one_error(serve: Callable[[dict[str, str]], str]) -> None:
    with pytest.raises(SourceError, match="answered HTTP 404"):
        targets.of_server(serve({}))
    with pytest.raises(SourceError, match="cannot scrape `.*`: connection refused$"):
        targets.of_server("http://127.0.0.1:1")


def test_a_prometheus_is_asked_for_its_names(serve: Callable[[dict[str, str]], str]) -> None:
    url = serve({"/api/v1/label/__name__/values": '{"status":"success","data":["a","b"]}'})
    seen = targets.of_prometheus(url)
    assert seen.names == frozenset({"a", "b"}) and seen.labels is None
    assert seen.interval_ms == 15_000


def test_a_recording_says_what_it_holds() -> None:
    seen = targets.of_recording(GOLDEN)
    assert seen.names and seen.labels is not None and set(seen.labels) == seen.names
    assert seen.interval_ms


def test_a_target_that_cannot_be_is_a_usage_error() -> None:
    assert targets.of_text("vllm@0.11").target == Target("vllm", (0, 11))
    with pytest.raises(UsageError, match="`vlm@1` is no target"):
        targets.of_text("vlm@1")
