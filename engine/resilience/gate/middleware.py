"""The gate: a pure ASGI middleware on the request path of any OpenAI-style server.

It reads one snapshot and never waits for the control path. Whatever fails in the gate itself lets
the request through and is counted; what the application raises passes untouched.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from resilience.gate.answer import Header, Message, Send, refuse, route_headers
from resilience.gate.config import is_switched_off
from resilience.gate.reroute import BodyReader, Receive, with_length, with_model
from resilience.gate.snapshot import Limit, Route
from resilience.gate.state import GateState, shared

Scope: TypeAlias = Message
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

GUARDED = (
    "/v1/", "/v2/", "/inference/", "/cohere/", "/invocations", "/pooling", "/classify", "/score",
    "/rerank", "/generative_scoring",
)
EXEMPT = frozenset({
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/messages/count_tokens",
})
EXEMPT_ENDS = ("/cancel", "/render", "/derender", "/abort_requests")
# Their first chunk carries the first token; other streams open with an event before any token.
TOKEN_STREAMS = frozenset({"/v1/chat/completions", "/v1/completions"})
IN_STREAM_ERROR = b'data: {"error"'
METHODS = TOKEN_STREAMS | {"/v1/responses", "/v1/messages", "/v1/embeddings"}


def guards(path: str, method: str) -> bool:
    """Say whether a request costs inference, and so passes the gate."""
    if method != "POST" or not path.startswith(GUARDED):
        return False
    return path not in EXEMPT and not path.endswith(EXEMPT_ENDS)


class Ticket:
    """One admitted request on its way: its tier, and what its answer has shown so far."""

    __slots__ = (
        "done", "headers", "path", "route", "started_s", "status", "streams", "tier", "timed",
    )

    def __init__(self, tier: str, path: str, route: Route | None) -> None:
        self.tier = tier
        self.path = path
        self.route = route
        self.headers: list[Header] = []
        self.started_s = time.monotonic()
        self.status = 0
        self.streams = False
        self.timed = False
        self.done = False

    def outcome(self) -> str:
        """Name how the answer ended; one that never finished was left by its client."""
        if not self.done:
            return "disconnected"
        if self.status < 400:
            return "ok"
        return "client_error" if self.status < 500 else "server_error"


class Gate:
    """Admission by tier and routing by claim. `state` is the process's own unless it is given."""

    def __init__(self, app: App, state: GateState | None = None) -> None:
        self._app = app
        self._off = is_switched_off()
        self._state = shared() if state is None else state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._off or scope["type"] != "http" or not guards(scope["path"], scope["method"]):
            await self._app(scope, receive, send)
            return
        verdict, scope = self._admit(scope)
        if verdict is None:
            await self._app(scope, receive, send)
        elif isinstance(verdict, Ticket):
            await self._serve(verdict, scope, receive, send)
        else:
            await refuse(send, *verdict)

    def _admit(self, scope: Scope) -> tuple[Ticket | tuple[Limit, str] | None, Scope]:
        """Judge a request: a ticket, the limit it breaks, or None when the gate failed."""
        state = self._state
        try:
            headers, client = scope["headers"], scope.get("client")
            tier, strip = state.tier_of(headers, client[0] if client else "")
            snapshot = state.snapshot()
            limit = state.exceeded(snapshot, tier)
            if limit is not None:
                state.metrics.refused(tier, limit.policy or "none")
                return (limit, tier), scope
            ticket = Ticket(tier, scope["path"], snapshot.routes.get(tier))
            if strip:
                scope = {**scope, "headers": state.without_tier(headers)}
            state.enter(tier)
            return ticket, scope
        except Exception:
            self._failed("admit")
            return None, scope

    async def _serve(self, ticket: Ticket, scope: Scope, receive: Receive, send: Send) -> None:
        outcome = "error"
        try:
            if ticket.route is not None:
                scope, receive = await self._reroute(ticket, ticket.route, scope, receive)
            await self._app(scope, receive, self._watched(ticket, send))
            outcome = ticket.outcome()
        finally:
            self._release(ticket, outcome)

    def _release(self, ticket: Ticket, outcome: str) -> None:
        self._state.leave(ticket.tier)
        try:
            self._state.metrics.ended(ticket.tier, outcome, time.monotonic() - ticket.started_s)
        except Exception:
            self._failed("release")

    def _watched(self, ticket: Ticket, send: Send) -> Send:
        async def watched(message: Message) -> None:
            try:
                message = self._observe(ticket, message)
            except Exception:
                self._failed("observe")
            await send(message)

        return watched

    def _observe(self, ticket: Ticket, message: Message) -> Message:
        """Note status, first chunk and end; add a reroute's headers. Chunks stay as they are."""
        if message["type"] == "http.response.start":
            ticket.status = message["status"]
            headers = list(message.get("headers", ()))
            ticket.streams = ticket.path in TOKEN_STREAMS and _is_stream(headers)
            if ticket.headers:
                return {**message, "headers": [*headers, *ticket.headers]}
        elif message["type"] == "http.response.body":
            ticket.done = not message.get("more_body", False)
            if ticket.streams and message.get("body"):
                self._chunk(ticket, message["body"])
        return message

    def _chunk(self, ticket: Ticket, chunk: bytes) -> None:
        """Time the first chunk that carries a token; notice an error inside the stream."""
        if chunk.startswith(IN_STREAM_ERROR):
            ticket.status = 500  # the server had already said 200
        elif not ticket.timed and not chunk.startswith(b":"):
            ticket.timed = True
            self._state.metrics.first_chunk(ticket.tier, time.monotonic() - ticket.started_s)

    async def _reroute(
        self, ticket: Ticket, route: Route, scope: Scope, receive: Receive
    ) -> tuple[Scope, Receive]:
        """Rewrite the body's model if this request is one of the share; else change nothing."""
        reader, untouched = BodyReader(receive), scope
        try:
            if not self._state.takes_route(ticket.tier, route):
                return scope, receive
            body = await reader.read()
            changed = "too_large" if body is None else with_model(body, route.to)
            if isinstance(changed, str):
                self._state.metrics.skipped(changed)
                return scope, reader.replay
            scope, headers = _resized(scope, len(changed)), route_headers(route)
            self._count_reroute(ticket, route)
            ticket.headers = headers
            reader.replace(changed)
            return scope, reader.replay
        except Exception:
            self._failed("route")
            return untouched, reader.replay

    def _count_reroute(self, ticket: Ticket, route: Route) -> None:
        method = ticket.path if ticket.path in METHODS else "other"
        self._state.metrics.rerouted(
            ticket.tier, route.to, route.policy, self._state.config.service, method
        )

    def _failed(self, stage: str) -> None:
        try:
            self._state.metrics.failed_open(stage)
        except Exception:  # even the counter may be what is broken; the request goes on
            return


def _resized(scope: Scope, size: int) -> Scope:
    return {**scope, "headers": with_length(scope["headers"], size)}


def _is_stream(headers: list[Header]) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in headers
    )
