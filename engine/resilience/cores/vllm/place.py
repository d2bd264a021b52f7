"""Where the gate stands among the middlewares of vLLM's API server.

vLLM puts what `--middleware` names around its own middlewares: before the API key is asked for, and
outside of what tells a browser which pages may read an answer. There, who has no key would take
places, wait, and get stored answers; and a page would see no refusal, only that something failed.
So the gate goes behind them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from resilience.cores.trailers import cut_off
from resilience.gate.answer import Message, Send
from resilience.gate.attempt import App
from resilience.gate.body import Receive
from resilience.gate.middleware import Gate

DEPTH_MAX = 64


class GateBehind:
    """What `--middleware` names: passes everything on to `app`, in which the gate has its place."""

    def __init__(self, app: App) -> None:
        cut_off()
        self.app = put_behind(app)

    def __call__(self, scope: Message, receive: Receive, send: Send) -> Awaitable[None]:
        return self.app(scope, receive, send)


def put_behind(app: App, gate: Callable[[App], App] = Gate) -> App:
    """Put the gate behind vLLM's own middlewares and return the whole; around all of it, if they
    are not where they used to be. The innermost of vLLM's own is the one for browsers."""
    from starlette.middleware.cors import CORSMiddleware

    found, at = None, app
    for _ in range(DEPTH_MAX):
        if isinstance(at, CORSMiddleware):
            found = at
        inner: Any = getattr(at, "app", None)
        if inner is None:
            break
        at = inner
    if found is None:
        return gate(app)
    found.app = gate(found.app)
    return app
