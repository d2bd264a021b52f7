"""The server's own tokenizer as the gate's port: short texts at once, long ones in a thread."""

from __future__ import annotations

import asyncio
import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from resilience.gate.tokens import CHARS_PER_TOKEN

# Plain prose: a byte-pair tokenizer makes a token of about four of its characters.
REFERENCE = (
    "When the server is overloaded, requests that matter stay within their objective, and all "
    "others wait their turn. Everything returns to normal by itself once the load is gone."
)


class ServerTokenizer:
    """Counts with vLLM's tokenizer, on copies of its own: a fast tokenizer is not thread-safe.

    `factor` is what one of its tokens is worth in tokens of four characters of prose, so that
    quotas mean the same under a BPE and a WordPiece vocabulary.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._here = _copied(tokenizer)
        self._there = _copied(tokenizer)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="resilience-tokens")
        self.factor = len(REFERENCE) / CHARS_PER_TOKEN / max(1, self.count(REFERENCE))

    def count(self, text: str) -> int:
        return _count(self._here, text)

    async def count_long(self, text: str) -> int:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, _count, self._there, text)


def _copied(tokenizer: Any) -> Any:
    """Return the tokenizer's compiled core where there is one: it counts several times faster."""
    core = getattr(tokenizer, "_tokenizer", None)
    return copy.deepcopy(core if hasattr(core, "encode") else tokenizer)


def _count(tokenizer: Any, text: str) -> int:
    try:
        found = tokenizer.encode(text, add_special_tokens=False)
    except TypeError:  # Mistral's own has no such parameter
        found = tokenizer.encode(text)
    return len(getattr(found, "ids", found))


def server_tokenizer(engine_client: Any) -> ServerTokenizer | None:
    """Return the port for this server, or None when it has no tokenizer (token ids only)."""
    tokenizer = engine_client.get_tokenizer()
    return None if tokenizer is None else ServerTokenizer(tokenizer)
