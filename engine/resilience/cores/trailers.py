"""What a client sends behind its body (trailers) is not among the headers of its request.

uvicorn (with httptools) appends it to the list that the application gets. The gate copies that list
first thing; but of a request that comes in one piece, uvicorn has read the end before it calls the
application, and a proxy that takes a client's headers away may have let the trailers through.
"""

from __future__ import annotations

from typing import Any

_HOOK = "on_headers_complete"


def cut_off() -> None:
    """Let uvicorn give requests only what came before their body; safe to call more than once.
    Its other reader, h11, keeps trailers apart."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return
    protocol: Any = HttpToolsProtocol
    original = getattr(protocol, _HOOK, None)
    if original is None or getattr(original, "cuts_off", False):
        return

    def complete(self: Any) -> None:
        original(self)
        self.scope["headers"] = [*self.headers]

    complete.cuts_off = True  # type: ignore[attr-defined]
    setattr(protocol, _HOOK, complete)
