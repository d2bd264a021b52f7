"""Counting tokens of requests and answers, and the rules that live on token counts.

The tokenizer is a port: the core gives the server's own. Without one, four characters count as a
token. Text that is long goes to the port's `count_long`, which must not hold the event loop.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

SHORT_CHARS = 2_000
CHARS_PER_TOKEN = 4
TOKENIZE_TIMEOUT_S = 1.0
MESSAGE_TOKENS = 4
TOKENS_IN = "/inference/v1/generate"
SEVERAL = "/invocations"  # serves several APIs
OUTPUT_KEYS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_READ_KEYS = {
    "/v1/chat/completions": OUTPUT_KEYS[:2], "/v1/chat/completions/batch": OUTPUT_KEYS[:2],
    "/v1/responses": OUTPUT_KEYS[2:],
}
OUTPUT_DEFAULT = {"/v1/completions": 16}
PROMPT_KEYS = (
    "prompt", "input", "messages", "instructions", "system", "query", "documents", "token_ids",
    "texts", "inputs", "text_1", "text_2", "data_1", "data_2", "queries", "items", "instruction",
)
WORDY = frozenset({  # where a message or a part of one holds what its model reads
    "content", "text", "input", "output", "reasoning", "reasoning_content", "thinking",
    "tool_calls", "function", "name", "arguments",
})
CALLED_WITH = frozenset({"input", "arguments"})
SILENT = frozenset({  # their answers have no tokens
    "/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/rerank", "/v1/score",
    "/v1/rerank", "/v2/rerank", "/generative_scoring",
})
OUTPUT_UNSAID = 256
TOKENS_MAX = 100_000_000
CHOICES_MAX = 16_384  # what vLLM takes as `n`
_USAGE, _USAGE_MAX = b'"usage"', 1_024
_PROMPT = re.compile(rb'"(?:prompt_tokens|input_tokens)"\s*:\s*(\d{1,9})')
_COMPLETION = re.compile(rb'"(?:completion_tokens|output_tokens)"\s*:\s*(\d{1,9})')


class TokenCounter(Protocol):
    """The server's own tokenizer. `factor` makes counts of different tokenizers comparable: what
    one of its tokens is worth in tokens of the reference (BPE, four characters)."""

    factor: float

    def count(self, text: str) -> int:
        """Count a short text on the event loop."""
        ...

    async def count_long(self, text: str) -> int:
        """Count a long text elsewhere."""
        ...


@dataclass(frozen=True, slots=True)
class Amount:
    """What a request asks for: tokens of its prompt, and output tokens as far as it says."""

    prompt: int
    output: int | None


async def amount_of(
    body: Mapping[str, Any], path: str, counter: TokenCounter | None,
    left_ms: int | None = None,
) -> Amount:
    """Count a request's tokens, in a second and in half of what its deadline has left (None: it has
    no deadline). Never raises: what cannot be counted is estimated by length."""
    timeout_s = TOKENIZE_TIMEOUT_S
    if left_ms is not None:
        timeout_s = min(timeout_s, left_ms / 2_000)
    ready, text, messages = _content(body)
    counted = await _count(text, counter, timeout_s) if text else 0
    prompt = counted + ready + MESSAGE_TOKENS * messages
    return Amount(min(prompt, TOKENS_MAX), asked_output(body, path))


def estimate_of(body: Mapping[str, Any], path: str, counter: TokenCounter | None) -> int:
    """Return about how many tokens a request takes with its output, without ever waiting."""
    ready, text, messages = _content(body)
    exact = counter is not None and len(text) <= SHORT_CHARS
    prompt = counter.count(text) if exact and counter is not None else length_estimate(len(text))
    output = reserve_for_output(path, asked_output(body, path), choices_of(body, path))
    return min(TOKENS_MAX, prompt + ready + MESSAGE_TOKENS * messages + output)


async def _count(text: str, counter: TokenCounter | None, timeout_s: float) -> int:
    if counter is not None:
        try:
            if len(text) <= SHORT_CHARS:
                return counter.count(text)
            return await asyncio.wait_for(counter.count_long(text), timeout_s)
        except Exception:  # a tokenizer that fails or hangs must not stop the request
            return length_estimate(len(text))
    return length_estimate(len(text))


def length_estimate(characters: int) -> int:
    """Return the tokens that so many characters usually are."""
    return -(-characters // CHARS_PER_TOKEN)


def asked_output(body: Mapping[str, Any], path: str) -> int | None:
    """Return the output tokens that a request asks for, over all its choices. Of several numbers
    the largest counts: a server reads one of them and lets the others be."""
    wanted = sampling_of(body, path)
    given = [n for key in OUTPUT_KEYS if (n := whole(wanted.get(key))) is not None and n >= 0]
    return min(TOKENS_MAX, max(given) * choices_of(body, path)) if given else None


def read_keys(path: str) -> tuple[str, ...]:
    """Return the fields in which a path's server reads how much output is wanted."""
    return _READ_KEYS.get(path, ("max_tokens",))


def path_meant(path: str, body: Mapping[str, Any]) -> str:
    """Return the path whose rules a request follows: one that serves several APIs tells by the
    body which is meant."""
    if path != SEVERAL:
        return path
    if "messages" in body:
        return "/v1/chat/completions"
    return "/v1/completions" if "prompt" in body else "/v1/embeddings"


def whole(value: Any) -> int | None:
    """Return the whole number that a server takes a value for: `7`, but also `7.0` and `"7"`."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str):
        try:
            return int(value.partition(".")[0])
        except ValueError:
            return None
    return None


def sampling_of(body: Mapping[str, Any], path: str) -> Any:
    """Return where a path's requests say how much they want: at the top, but for one; nowhere, if
    their answers have no tokens."""
    if path in SILENT:
        return {}
    nested = body.get("sampling_params") if path == TOKENS_IN else None
    return nested if isinstance(nested, dict) else body


def choices_of(body: Mapping[str, Any], path: str) -> int:
    """Return how many answers a request asks for: `n` for each of its prompts or conversations."""
    n = whole(sampling_of(body, path).get("n")) or 1
    return min(CHOICES_MAX, max(1, n)) * min(CHOICES_MAX, _prompts_of(body))


def _prompts_of(body: Mapping[str, Any]) -> int:
    """A list of texts or of lists of token ids is one prompt each; a list of lists of messages is
    one conversation each."""
    prompt, messages = body.get("prompt"), body.get("messages")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        return len(prompt)
    if isinstance(messages, list) and messages and isinstance(messages[0], list):
        return len(messages)
    return 1


def reserve_for_output(path: str, asked: int | None, choices: int) -> int:
    """Return the output tokens to reserve: what is asked for, else what is usual."""
    if path in SILENT:
        return 0
    usual = OUTPUT_DEFAULT.get(path, OUTPUT_UNSAID) * choices
    return min(TOKENS_MAX, usual) if asked is None else asked


def _content(body: Mapping[str, Any]) -> tuple[int, str, int]:
    """Return (tokens that come as ids, the text, the number of messages)."""
    ready, messages = 0, 0
    texts: list[str] = []
    for key in PROMPT_KEYS:
        value = body.get(key)
        if key == "messages" and isinstance(value, list):
            messages = len(value)
        for piece in _pieces(value):
            if isinstance(piece, str):
                texts.append(piece)
            else:
                ready += piece
    texts.extend(_leaves(body.get("tools")))
    return ready, "\n".join(texts), messages


def _pieces(value: Any) -> Iterator[str | int]:
    """Yield the texts in a value of any shape, and for token ids their number. Of what is no text,
    such as an image, nothing is counted."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            if item and all(type(part) is int for part in item):
                yield len(item)
            else:
                stack.extend(reversed(item))
        elif isinstance(item, Mapping):
            for key in WORDY.intersection(item):
                if key in CALLED_WITH and isinstance(item[key], Mapping):
                    yield from _leaves(item[key])
                else:
                    stack.append(item[key])


def _leaves(value: Any) -> Iterator[str]:
    """Yield all that a template writes out of a value: keys, texts and numbers."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            yield from item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        elif item is not None:
            yield item if isinstance(item, str) else json.dumps(item)


def usage_part(answer: bytes) -> bytes:
    """Return the last part of an answer that may state its usage, b"" if none does."""
    at = answer.rfind(_USAGE)
    return answer[at:at + _USAGE_MAX] if at >= 0 else b""


def usage_in(tail: bytes) -> tuple[int, int] | None:
    """Return (prompt, completion) tokens that the end of an answer states, or None.

    Quotes inside generated text are escaped, so only the answer's own fields match.
    """
    prompts, completions = _PROMPT.findall(tail), _COMPLETION.findall(tail)
    if not prompts:
        return None
    return int(prompts[-1]), int(completions[-1]) if completions else 0


def quota(tokens: int, window_ms: int) -> int:
    """Return how many tokens a window may hold: 80 % of what it could, by its length (P10).

    Windows over 30 s keep half of that in hand, at least 10; shorter ones allow at least 50.
    """
    base = int(0.8 * tokens)
    return max(base // 2, 10) if window_ms > 30_000 else max(base, 50)


class LatencySlope:
    """How first-token latency grows with the tokens in the window, in ms per token (P10)."""

    WARN_MS_PER_TOKEN = 0.3
    SAMPLES_MIN = 8
    SAMPLES_MAX = 256

    def __init__(self, window_ms: int = 10_000) -> None:
        self._window_ms = window_ms
        self._samples: deque[tuple[int, float, float]] = deque(maxlen=self.SAMPLES_MAX)

    def add(self, now_ms: int, tokens: float, latency_ms: float) -> bool:
        """Add one first token; says whether the growth is above what P10 warns of."""
        self._samples.append((now_ms, tokens, latency_ms))
        return self.at(now_ms) > self.WARN_MS_PER_TOKEN

    def at(self, now_ms: int) -> float:
        """Return the growth over the window that ends now; 0 while too few were seen."""
        while self._samples and self._samples[0][0] <= now_ms - self._window_ms:
            self._samples.popleft()
        return self._fit()

    def _fit(self) -> float:
        n = len(self._samples)
        if n < self.SAMPLES_MIN:
            return 0.0
        mean_x = sum(x for _, x, _ in self._samples) / n
        mean_y = sum(y for _, _, y in self._samples) / n
        spread = sum((x - mean_x) ** 2 for _, x, _ in self._samples)
        together = sum((x - mean_x) * (y - mean_y) for _, x, y in self._samples)
        return together / spread if spread > 1e-9 else 0.0
