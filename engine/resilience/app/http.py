"""A small HTTP/1.1 server for a Unix socket or a TCP port: bounded threads, bodies and waits.

A route gets a `Request` and returns a `Response`. Errors of the product become
`{error: {code, message, findings}}` with a fitting status; anything else is a 500 that names what
the log has of it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import socketserver
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from resilience.app.files import SOCKET_PATH_MAX
from resilience.errors import ControlError, FindingsError, PromQLError, ResilienceError, UsageError
from resilience.model import Json, canonical_json

BODY_MAX_BYTES = 16 * 1024 * 1024
THREADS_MAX = 16
IDLE_S = 30.0
HANG_UP_S = 5.0
JSON_TYPE = "application/json"

OnFault = Callable[[Exception], str]


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `parts` are the captured pieces of the path."""

    method: str
    path: str
    parts: tuple[str, ...]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""

    def json(self) -> Json:
        """Return the body as JSON; an empty one is `{}`."""
        if not self.body:
            return {}
        try:
            body = json.loads(self.body.decode())
            if b"\\u" in self.body:  # half of a surrogate pair is no text: no file could hold it
                canonical_json(body).encode()
            return body
        except UnicodeEncodeError as error:
            raise ControlError(
                "the body has an escape that is no character", code="bad_request"
            ) from error
        except (ValueError, RecursionError) as error:
            raise ControlError(f"the body is not JSON: {error}", code="bad_request") from error

    def number(self, name: str, default: int, most: int) -> int:
        """Return a whole number from the query, at most `most`."""
        text = self.query.get(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise ControlError(f"`{name}` must be a whole number, not `{text}`", code="bad_request")
        return min(int(text), most)

    def flag(self, name: str) -> bool:
        """Return a yes or no from the query: `1` or `0`, absent is no."""
        text = self.query.get(name, "0")
        if text not in ("0", "1"):
            raise ControlError(f"`{name}` is 1 or 0, not `{text}`", code="bad_request")
        return text == "1"


@dataclass(frozen=True, slots=True)
class Response:
    status: int = 200
    body: bytes = b""
    content_type: str = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, body: Json, status: int = 200, **headers: str) -> Response:
        """Half a character, which a core's answer may hold, goes out as its escape."""
        text = canonical_json(body).encode("utf-8", "backslashreplace")
        return cls(status, text + b"\n", JSON_TYPE, headers)

    @classmethod
    def text(cls, body: str, status: int = 200) -> Response:
        return cls(status, body.encode(), "text/plain; charset=utf-8")


@dataclass(frozen=True, slots=True)
class Route:
    """`pattern` is a regular expression over the whole path; its groups become `parts`."""

    method: str
    pattern: str
    handle: Callable[[Request], Response]


def error_response(error: Exception, on_fault: OnFault) -> Response:
    """Return what a client is told about `error`."""
    if isinstance(error, ControlError):
        return _refusal(error.status, error.code, str(error), error.findings)
    if isinstance(error, FindingsError):
        return _refusal(422, "findings", str(error), error.findings)
    if isinstance(error, PromQLError):
        hint = f"; {error.suggestion}" if error.suggestion else ""
        return _refusal(400, "promql", f"{error.line}:{error.column}: {error.message}{hint}")
    if isinstance(error, UsageError):
        return _refusal(400, "bad_request", str(error))
    if isinstance(error, ResilienceError):
        return _refusal(500, "failed", str(error))
    kind = type(error).__name__
    return _refusal(
        500, "internal", f"internal error ({kind}); the engine's log has it as `{on_fault(error)}`")


def _refusal(status: int, code: str, message: str, findings: Sequence[Any] = ()) -> Response:
    body = {"error": {"code": code, "message": message, "findings": [asdict(f) for f in findings]}}
    return Response.of_json(body, status)


def dispatch(routes: Sequence[Route], request: Request, on_fault: OnFault) -> Response:
    """Answer `request` by the first route that fits; never raises. `on_fault` writes down an error
    that is none of the product's and returns how it is found again."""
    others: list[str] = []
    for route in routes:
        match = re.fullmatch(route.pattern, request.path)
        if match is None:
            continue
        if route.method != request.method:
            others.append(route.method)
            continue
        parts = tuple(unquote(p) for p in match.groups())
        try:
            return route.handle(
                Request(request.method, request.path, parts, request.query, request.headers,
                        request.body)
            )
        except Exception as error:
            return error_response(error, on_fault)
    if others:
        allowed = ", ".join(others)
        message = f"`{request.method}` is not possible here; use {allowed}"
        return _refusal(405, "method_not_allowed", message)
    return _refusal(404, "not_found", f"there is no `{request.path}`")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "resilience"
    sys_version = ""
    timeout = IDLE_S

    def _serve(self) -> None:
        body = self._read_body()
        if body is None:
            return
        try:
            url = urlsplit(self.path)
        except ValueError:
            self._answer(_refusal(400, "bad_request", "the address of the request is malformed"))
            return
        query = {k: v[-1] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
        headers = {k.lower(): v for k, v in self.headers.items()}
        request = Request(self.command, url.path, (), query, headers, body)
        assert isinstance(self.server, _Server)
        self._answer(dispatch(self.server.routes, request, self.server.on_fault))

    do_GET = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815

    def _read_body(self) -> bytes | None:
        if "transfer-encoding" in self.headers:
            self.close_connection = True
            self._answer(_refusal(411, "bad_request", "a body needs a content-length"))
            return None
        text = self.headers.get("content-length", "0")
        length = int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else -1
        if not 0 <= length <= BODY_MAX_BYTES:
            self.close_connection = True
            message = f"a body has at most {BODY_MAX_BYTES} bytes"
            self._answer(_refusal(413, "too_large", message))
            return None
        return self.rfile.read(length)

    def _answer(self, response: Response) -> None:
        self.send_response(response.status, HTTPStatus(response.status).phrase)
        self.send_header("content-type", response.content_type)
        self.send_header("content-length", str(len(response.body)))
        for name, value in response.headers.items():
            self.send_header(name.replace("_", "-"), value)
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(response.body)

    def address_string(self) -> str:
        return "local"

    def log_message(self, format: str, *args: Any) -> None:
        """Stay quiet: what matters is in the engine's own records."""


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    request_queue_size = 64
    routes: Sequence[Route] = ()
    on_fault: OnFault

    def __init__(self, address: Any) -> None:
        self._slots = threading.BoundedSemaphore(THREADS_MAX)
        self._open: set[socket.socket] = set()
        self._changed = threading.Condition()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve in a thread while there is a free slot; otherwise hang up."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._changed:
            self._open.add(request)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system gives no thread now
            self._end(request)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._end(request)

    def _end(self, request: Any) -> None:
        with self._changed:
            self._open.discard(request)
            self._changed.notify_all()
        self._slots.release()

    def hang_up(self) -> None:
        """End the connections that are open and wait for their threads, but not for ever."""
        with self._changed:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._changed.wait_for(lambda: not self._open, HANG_UP_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no news."""


class _UnixServer(_Server):
    address_family = socket.AF_UNIX

    def get_request(self) -> tuple[Any, Any]:
        request, _ = super().get_request()
        return request, ("local", 0)


class _TcpServer(_Server):
    allow_reuse_address = True


class HttpServer:
    """One listening server: bound when made, serving after `start`."""

    def __init__(self, server: _Server, close: Callable[[], None]) -> None:
        self._server = server
        self._close = close
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> Any:
        return self._server.server_address

    def start(self, routes: Sequence[Route], on_fault: OnFault) -> None:
        self._server.routes = tuple(routes)
        self._server.on_fault = on_fault
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True,
            name="http",
        )
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.hang_up()
            self._thread = None
        self._server.server_close()
        self._close()


def listen_unix(path: Path) -> HttpServer:
    """Bind a Unix socket (0600), replacing one that nobody listens on; raises UsageError."""
    if len(os.fsencode(path)) > SOCKET_PATH_MAX:
        raise UsageError(
            f"the socket path `{path}` is longer than {SOCKET_PATH_MAX} bytes; "
            "choose a shorter one with `--socket`"
        )
    _remove_stale(path)
    before = os.umask(0o177)
    try:
        server = _UnixServer(str(path))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot listen on the socket `{path}`: {reason}") from error
    finally:
        os.umask(before)
    return HttpServer(server, lambda: path.unlink(missing_ok=True))


def _remove_stale(path: Path) -> None:
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise UsageError(f"`{path}` exists and is not a socket; choose another with `--socket`")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise UsageError(f"another engine listens on `{path}`; stop it or choose another `--socket`")


def parse_address(text: str) -> tuple[str, int]:
    """Return (host, port) of `HOST:PORT`; raises UsageError."""
    host, _, port = text.rpartition(":")
    known = port.isascii() and port.isdigit() and len(port) <= 5
    if not host or not known or int(port) > 65_535:
        raise UsageError(f"`{text}` is not an address; write HOST:PORT, as in `127.0.0.1:9464`")
    return host.strip("[]"), int(port)


def listen_tcp(text: str) -> HttpServer:
    """Bind `HOST:PORT`; raises UsageError, also when the port is taken."""
    host, port = parse_address(text)
    try:
        server = _TcpServer((host, port))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"cannot listen on `{text}`: {reason}; choose another port with `--listen`"
        ) from error
    return HttpServer(server, lambda: None)
