"""The small HTTP server: what clients may do to it, and what they are told."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from resilience.app.client import EngineClient
from resilience.app.http import (
    BODY_MAX_BYTES,
    THREADS_MAX,
    HttpServer,
    Request,
    Response,
    Route,
    dispatch,
    listen_tcp,
    listen_unix,
    parse_address,
)
from resilience.errors import ControlError, CoreError, FindingsError, UsageError
from resilience.model import Finding

FINDING = Finding("a.yaml", 3, 1, "error", "unknown-key", "unknown key `x`")


def echo(request: Request) -> Response:
    body = {"parts": request.parts, "query": request.query, "body": request.json()}
    return Response.of_json(body)


def refuse(request: Request) -> Response:
    raise ControlError("not now", code="busy", status=409)


def find(request: Request) -> Response:
    raise FindingsError([FINDING])


def break_down(request: Request) -> Response:
    raise RuntimeError("secret details")


def fail(request: Request) -> Response:
    raise CoreError("the core is away")


ROUTES = [
    Route("GET", "/v1/echo/([^/]+)", echo), Route("PUT", "/v1/echo/([^/]+)", echo),
    Route("POST", "/v1/refuse", refuse), Route("POST", "/v1/find", find),
    Route("GET", "/v1/broken", break_down), Route("GET", "/v1/fail", fail),
]


def name_of(error: Exception) -> str:
    return f"fault {type(error).__name__}"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: the kernel bounds a socket's."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def server(folder: Path) -> Iterator[HttpServer]:
    made = listen_unix(folder / "s")
    made.start(ROUTES, name_of)
    yield made
    made.stop()


@pytest.fixture
def http(server: HttpServer, folder: Path) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=str(folder / "s"))
    with httpx.Client(transport=transport, base_url="http://e", timeout=60) as client:
        yield client


def test_routes_get_parts_query_and_body(http: httpx.Client) -> None:
    answer = http.put("/v1/echo/a%20b?x=1&x=2&y=", json={"k": 1})
    assert answer.json() == {"parts": ["a b"], "query": {"x": "2", "y": ""}, "body": {"k": 1}}
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(("method", "path", "status", "code"), [
    ("GET", "/v1/nothing", 404, "not_found"),
    ("DELETE", "/v1/echo/a", 405, "method_not_allowed"),
    ("POST", "/v1/refuse", 409, "busy"),
    ("POST", "/v1/find", 422, "findings"),
    ("GET", "/v1/broken", 500, "internal"),
    ("GET", "/v1/fail", 500, "failed"),
])
def test_errors_are_objects_with_a_code(
    http: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = http.request(method, path)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == code
    assert "secret" not in error["message"]
    assert set(error) == {"code", "message", "findings"}


def test_a_body_that_is_no_json_is_refused(http: httpx.Client) -> None:
    answer = http.put("/v1/echo/a", content=b"{")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


@pytest.mark.parametrize("body", [
    b'{"reason": "\\ud800"}', b'{"\\udfff": 1}', b"[" * 100_000, b'{"a": "\xff"}',
    b'{"a": "\xed\xa0\x80"}',
])
def test_a_body_that_no_file_could_hold_is_refused(http: httpx.Client, body: bytes) -> None:
    answer = http.put("/v1/echo/a", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")
    assert http.put("/v1/echo/a", content=b'"\\ud83d\\ude00"').json()["body"] == "\U0001f600"


def raw(folder: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(folder / "s"))
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65536), b""))


def test_half_a_character_goes_out_as_its_escape() -> None:
    """A core may answer with one, and a path may hold a byte that is no character."""
    assert Response.of_json({"a": "\udc80\u00e9"}).body.decode() == '{"a":"\\udc80\u00e9"}\n'


@pytest.mark.parametrize(("head", "status"), [
    (f"content-length: {BODY_MAX_BYTES + 1}", b"413"),
    ("content-length: -1", b"413"),
    ("content-length: many", b"413"),
    ("content-length: " + "9" * 5_000, b"413"),
    ("transfer-encoding: chunked", b"411"),
])
def test_bodies_are_bounded_before_they_are_read(
    server: HttpServer, folder: Path, head: str, status: bytes
) -> None:
    request = f"PUT /v1/echo/a HTTP/1.1\r\nhost: e\r\n{head}\r\n\r\n".encode()
    answer = raw(folder, request)
    assert answer.split(b" ", 2)[1] == status
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]["code"]


def test_nonsense_does_not_stop_the_server(
    server: HttpServer, folder: Path, http: httpx.Client
) -> None:
    raw(folder, b"\x00\xff nonsense\r\n\r\n")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(folder / "s"))
    assert http.get("/v1/echo/a").status_code == 200


def test_a_malformed_address_is_told_to_the_client(server: HttpServer, folder: Path) -> None:
    answer = raw(folder, b"GET http://[ HTTP/1.1\r\nhost: e\r\nconnection: close\r\n\r\n")
    assert answer.split(b" ", 2)[1] == b"400"


def test_without_a_thread_the_client_is_hung_up_on_and_its_place_is_free_again(
    server: HttpServer, folder: Path, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without:
        without.setattr(socketserver.ThreadingMixIn, "process_request", no_thread)
        for _ in range(2 * THREADS_MAX):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(60)
                client.connect(str(folder / "s"))
                assert client.recv(1) == b""
    assert http.get("/v1/echo/a").status_code == 200


def test_the_socket_is_private_and_goes_with_the_server(folder: Path) -> None:
    server = listen_unix(folder / "t")
    assert stat.S_IMODE((folder / "t").stat().st_mode) == 0o600
    server.start([], name_of)
    server.stop()
    assert not (folder / "t").exists()


def test_a_stale_socket_is_replaced_but_not_a_live_one(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "t"))
    server = listen_unix(folder / "t")
    server.start([], name_of)
    with pytest.raises(UsageError, match="another engine listens"):
        listen_unix(folder / "t")
    server.stop()


def test_a_file_is_never_replaced_by_a_socket(folder: Path) -> None:
    (folder / "t").write_text("precious")
    with pytest.raises(UsageError, match="is not a socket"):
        listen_unix(folder / "t")
    assert (folder / "t").read_text() == "precious"


def test_a_socket_path_that_is_too_long_says_what_to_do(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"longer than 107 bytes; choose a shorter one"):
        listen_unix(folder / ("x" * 120))


def test_a_taken_port_says_what_to_do() -> None:
    first = listen_tcp("127.0.0.1:0")
    port = first.address[1]
    with pytest.raises(UsageError, match=r"address already in use; choose another port"):
        listen_tcp(f"127.0.0.1:{port}")
    first.stop()


@pytest.mark.parametrize("text", [
    "", "9464", "host:", "host:x", "host:99999", ":1", "host:" + "9" * 5_000,
])
def test_a_bad_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        parse_address(text)


def test_too_many_clients_at_once_are_hung_up_on(server: HttpServer, folder: Path) -> None:
    idle = []
    for _ in range(THREADS_MAX):
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(folder / "s"))
        client.sendall(b"GET /v1/echo/a HTTP/1.1\r\nhost: e\r\n\r\n")
        assert client.recv(1)  # it has a thread now, and keeps the connection
        idle.append(client)
    try:
        assert raw(folder, b"GET /v1/echo/a HTTP/1.1\r\nhost: e\r\n\r\n") == b""
    except (BrokenPipeError, ConnectionResetError):
        pass  # it hung up before we had spoken
    finally:
        for client in idle:
            client.close()


def test_numbers_in_the_query_are_checked() -> None:
    def handle(request: Request) -> Response:
        return Response.of_json({"n": request.number("n", 7, 100)})

    def ask(query: dict[str, str]) -> Response:
        return dispatch([Route("GET", "/", handle)], Request("GET", "/", (), query, {}),
                        name_of)

    assert json.loads(ask({}).body) == {"n": 7}
    assert json.loads(ask({"n": "500"}).body) == {"n": 100}
    assert ask({"n": "-1"}).status == 400
    assert ask({"n": "²"}).status == 400


def test_the_client_turns_errors_into_errors(server: HttpServer, folder: Path) -> None:
    with EngineClient(folder / "s") as client:
        assert client.get("echo/a", limit=3, policy=None)["query"] == {"limit": "3"}
        with pytest.raises(ControlError, match="not now") as refused:
            client.post("refuse")
        assert (refused.value.code, refused.value.status) == ("busy", 409)
        with pytest.raises(ControlError) as found:
            client.post("find")
        assert found.value.findings == (FINDING,)


@pytest.mark.parametrize("kind", ["missing", "dead"])
def test_no_engine_is_one_line_that_says_what_to_do(folder: Path, kind: str) -> None:
    if kind == "dead":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / "t"))
    with (
        EngineClient(folder / "t") as client,
        pytest.raises(ControlError, match=r"no engine listens on .*; start one with"),
    ):
        client.get("status")


def test_stopping_waits_for_nobody(folder: Path) -> None:
    server = listen_unix(folder / "t")
    server.start(ROUTES, name_of)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(folder / "t"))
        stopper = threading.Thread(target=server.stop)
        stopper.start()
        stopper.join(60)
        assert not stopper.is_alive()
    assert os.listdir(folder) == []
