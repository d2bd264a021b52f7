"""The HTTP face of the core: a small ASGI application under `/resilience`.

It has its own bearer token, because the API's key does not guard these paths, and answers loopback
peers only unless it is told otherwise.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from resilience.cores.health import Verdict
from resilience.cores.service import ENGINE_TIMEOUT_S, CoreService, Refusal
from resilience.gate.answer import Header, Message, Send, latency_header, path_of
from resilience.gate.body import Receive
from resilience.gate.config import CONFIG_VARIABLE, is_within
from resilience.model import Json

BODY_MAX = 1024 * 1024
LOOPBACK = ("127.0.0.0/8", "::1/128")
ROOT = "/resilience"
TOKEN_MIN = 16
_IMPULSE = re.compile(r"/v1/impulses/([0-9A-Za-z._-]{1,128})")
# A proxy on this machine would make every client look like a loopback peer.
_PROXIED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})

# The caller says how long it waits, so that it still gets the answer when the engine hangs.
BUDGET_HEADER = b"x-resilience-budget-ms"
ENGINE_SHARE = 0.5

Handler: TypeAlias = Callable[[Json, float], Awaitable[Json]]


@dataclass(frozen=True, slots=True)
class Access:
    """Who may drive the core: holders of `token` that come from one of `peers`."""

    token: str
    peers: tuple[str, ...] = LOOPBACK


def state_folder(settings: Mapping[str, Json]) -> Path:
    """Return the launcher's state folder: where the token lies."""
    return Path(str(settings["token_file"])).parent


def access_from(settings: Mapping[str, Json]) -> Access:
    """Return who may drive this core, from the launcher's settings."""
    path = settings.get("token_file")
    if not isinstance(path, str):
        raise ValueError(f"${CONFIG_VARIABLE} names no token file; start with `resilience serve`")
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read the token file `{path}`: {error}") from None
    if len(token) < TOKEN_MIN:
        raise ValueError(f"the token in `{path}` is shorter than {TOKEN_MIN} characters")
    return Access(token, tuple(settings.get("control_peers") or LOOPBACK))


class ControlApp:
    """Routes, access and errors. `service` returns None until the server is ready."""

    def __init__(
        self, service: Callable[[], CoreService | None], access: Access,
        verdict: Callable[[], Verdict] = lambda: Verdict("well"),
        latency_ms: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._service = service
        self._access = access
        self._verdict = verdict
        self._latency_ms = latency_ms

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            status, body = await self._answer(scope, receive)
        except Refusal as refusal:
            error = {"code": refusal.code, "message": str(refusal), **refusal.extra}
            status, body = refusal.status, {"error": error}
        except Exception as error:
            text = f"the core failed: {type(error).__name__}: {error}"
            status, body = 500, {"error": {"code": "internal", "message": text}}
        await _send_json(send, status, body, self._latency_ms())

    async def _answer(self, scope: Message, receive: Receive) -> tuple[int, Json]:
        method = scope["method"]
        path = path_of(scope).removeprefix(ROOT)
        if path == "/health" and method in ("GET", "HEAD"):     # balancers ask by either
            return self._health()
        self._authorise(scope)
        service = self._service()
        if service is None:
            raise Refusal(503, "starting", "the server is still starting; try again")
        handler = _route(service, method, path)
        body = await _read_json(receive) if method in ("PUT", "POST") else None
        return 200, await handler(body, _engine_timeout_s(scope["headers"]))

    def _health(self) -> tuple[int, Json]:
        """Say what the core is without asking it anything: 200 keeps it in rotation, 503 not."""
        service = self._service()
        if service is None:
            return 503, {"status": "starting", "reasons": []}
        verdict = self._verdict()
        body: dict[str, Json] = {
            "status": verdict.status, "reasons": list(verdict.reasons),
            "released": service.released,
        }
        return (503 if service.draining else verdict.code), body

    def _authorise(self, scope: Message) -> None:
        headers: list[Header] = scope["headers"]
        client = scope.get("client")
        if any(name in _PROXIED for name, _ in headers):
            raise Refusal(403, "forbidden", "the core is not driven through a proxy")
        if not is_within(client[0] if client else "", self._access.peers):
            raise Refusal(403, "forbidden", "the core is driven from its own machine only")
        given = next((v for n, v in headers if n == b"authorization"), b"")
        wanted = b"Bearer " + self._access.token.encode()
        if not hmac.compare_digest(given, wanted):
            raise Refusal(401, "unauthorized", "the token is wrong or missing; use the token file")


def _route(service: CoreService, method: str, path: str) -> Handler:
    """Return what serves a path; raises a Refusal with 404 or 405."""
    found = _IMPULSE.fullmatch(path)
    if found and method == "POST":
        return lambda body, _: service.impulse(found[1], body)
    handlers: dict[str, dict[str, Handler]] = {
        "/v1/capabilities": {"GET": lambda _, timeout_s: service.capabilities(timeout_s)},
        "/v1/actual": {"GET": lambda _, timeout_s: service.actual(timeout_s)},
        "/v1/desired": {"PUT": service.put_desired},
        "/v1/release": {"POST": service.release},
        "/v1/resume": {"POST": service.resume},
        "/v1/breakers": {"GET": lambda _, __: service.breakers()},
        "/v1/gate": {
            "GET": lambda _, __: service.gate_status(),
            "PUT": lambda body, _: service.configure(body),
        },
    }
    if path not in handlers and not found:
        raise Refusal(404, "not_found", "no such path under /resilience")
    allowed: Mapping[str, Handler] = handlers.get(path, {})
    if method not in allowed:
        raise Refusal(405, "method_not_allowed", f"this path does not take {method}")
    return allowed[method]


def _engine_timeout_s(headers: list[Header]) -> float:
    """Return how long the engine process may take of the caller's time."""
    text = next((v for n, v in headers if n == BUDGET_HEADER), b"")
    if not text.isdigit() or len(text) > 9:
        return ENGINE_TIMEOUT_S
    return min(ENGINE_TIMEOUT_S, ENGINE_SHARE * int(text) / 1000)


async def _read_json(receive: Receive) -> Any:
    """Read a bounded JSON body; numbers that JSON does not have are refused."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Refusal(400, "disconnected", "the request ended early")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > BODY_MAX:
            raise Refusal(413, "too_large", f"the body is larger than {BODY_MAX} bytes")
        if not message.get("more_body", False):
            return _parse(b"".join(chunks))


def _parse(body: bytes) -> Any:
    try:
        found = json.loads(body.decode(), parse_constant=_no_constant)
        if b"\\u" in body:  # half of a surrogate pair is no text: no metric could show it
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except (ValueError, RecursionError):
        raise Refusal(422, "bad_document", "the body is not JSON") from None


def _no_constant(text: str) -> float:
    raise ValueError(text)


async def _send_json(
    send: Send, status: int, body: Json, latency_ms: float | None = None
) -> None:
    raw = json.dumps(body).encode()
    headers = [
        (b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if latency_ms is not None:
        headers.append(latency_header(latency_ms))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": raw})
