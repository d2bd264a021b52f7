"""Which requests pass the gate: those that cost inference."""

from __future__ import annotations

from functools import lru_cache

TYPES = ("http", "websocket")
GUARDED = (
    "/v1/", "/v2/", "/inference/", "/cohere/", "/invocations", "/pooling", "/classify", "/score",
    "/rerank", "/generative_scoring",
)
EXEMPT = frozenset({
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/messages/count_tokens",
})
EXEMPT_ENDS = ("/cancel", "/render", "/derender", "/abort_requests")


@lru_cache(maxsize=64)  # few paths are asked for again and again
def guards(path: str, method: str) -> bool:
    """Say whether a request costs inference, and so passes the gate."""
    if method != "POST" or not path.startswith(GUARDED):
        return False
    return path not in EXEMPT and not path.endswith(EXEMPT_ENDS)
