"""Headers behind a body name nobody, on the server that vLLM and the PyTorch core run."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any

import pytest

from resilience.cores.trailers import cut_off

pytest.importorskip("httptools")
uvicorn = pytest.importorskip("uvicorn")
HEAD = (b"POST /v1/completions HTTP/1.1\r\nhost: h\r\nx-own: 1\r\n"
        b"transfer-encoding: chunked\r\n\r\n")
BODY = b"2\r\n{}\r\n0\r\n"
TRAILERS = b"x-slo-tier: core\r\nx-vllm-priority: -9\r\n\r\n"
SERVED_S = 30.0


def seen_by_server(*pieces: bytes) -> list[list[bytes]]:
    """Send the pieces on one connection, each when the one before was read; returns the names of
    the headers that the application saw, once for each request, at its end."""
    seen: list[list[bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        seen.append([name for name, _ in scope["headers"]])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(app, http="httptools", lifespan="off", log_level="error"))
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
        thread.start()
        with socket.create_connection(listener.getsockname(), timeout=SERVED_S) as line:
            wanted = sum(piece.count(b"POST") for piece in pieces)
            for piece in pieces:
                line.sendall(piece)
                time.sleep(0.05 if len(pieces) > 1 else 0)
            ends_s = time.monotonic() + SERVED_S
            while len(seen) < wanted and time.monotonic() < ends_s:
                line.recv(4_096)
        server.should_exit = True
        thread.join(SERVED_S)
    return seen


@pytest.mark.parametrize("pieces", [
    (HEAD + BODY + TRAILERS,), (HEAD, BODY, TRAILERS), 2 * (HEAD + BODY + TRAILERS,),
    ((HEAD + BODY + TRAILERS) * 2,),
])
def test_only_what_came_before_the_body_is_a_header(pieces: tuple[bytes, ...]) -> None:
    cut_off()
    cut_off()
    seen = seen_by_server(*pieces)
    assert seen and all(names == [b"host", b"x-own", b"transfer-encoding"] for names in seen)
