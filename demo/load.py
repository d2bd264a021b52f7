"""An open-loop load of two tiers on an OpenAI-style server.

Open loop means that requests come when the plan says, whether or not earlier ones have been
answered: that is how users overload a server, and what a closed loop can never show.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import httpx

from resilience.addresses import IDLE_MAX_S

Ending = Literal["ok", "refused", "gave_up", "failed"]
TIER_HEADER = "x-slo-tier"
TIERS = ("core", "best-effort")
CALIBRATION_TIER = "elastic"  # no objective watches it, so measuring never looks like an incident
REFUSALS = (429, 503)
IN_FLIGHT_MAX = 2_000
WARM_UP_S = 60.0
_WORDS = (
    "river", "stone", "lamp", "garden", "window", "signal", "copper", "ladder", "winter", "engine",
    "paper", "harbour", "mirror", "field", "bridge", "candle", "forest", "button", "marble",
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One planned request: when it comes after the start of the load, and what it asks.

    `output_tokens` 0 is as many as the load's shape says."""

    at_s: float
    tier: str
    prompt: str
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one request. Times are seconds: `at_s` from the start of the load, `ttft_s`
    from sending to the first token (None: no token came), `took_s` from sending to the end,
    `per_token_s` the mean gap between its tokens (None: fewer than two came)."""

    tier: str
    at_s: float
    ending: Ending
    status: int
    ttft_s: float | None
    took_s: float
    tokens: int
    per_token_s: float | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """What one request looks like: output length, and how long a client waits before it leaves.

    `patience_s` is for the first token, and for the whole answer too unless `reading_s` says how
    long who got one in time stays for the rest."""

    model: str
    output_tokens: int = 64
    prompt_words: int = 40
    patience_s: float = 20.0
    reading_s: float | None = None


def plan(
    rate_per_s: float, duration_s: float, core_share: float, seed: int, shape: Shape
) -> tuple[Arrival, ...]:
    """Return Poisson arrivals of `rate_per_s` for `duration_s`; the same seed, the same plan."""
    dice = random.Random(seed)
    arrivals: list[Arrival] = []
    at_s = dice.expovariate(rate_per_s)
    while at_s < duration_s and len(arrivals) < IN_FLIGHT_MAX:
        tier = TIERS[0] if dice.random() < core_share else TIERS[1]
        arrivals.append(Arrival(at_s, tier, prompt_of(dice, shape.prompt_words)))
        at_s += dice.expovariate(rate_per_s)
    return tuple(arrivals)


def prompt_of(dice: random.Random, words: int) -> str:
    """Return a prompt of about so many tokens; no two are alike, so no cache helps."""
    return "Tell a story with these words: " + " ".join(dice.choices(_WORDS, k=words))


class Client:
    """Sends requests to one server and judges each by what its client saw."""

    def __init__(self, url: str, shape: Shape) -> None:
        self._shape = shape
        limits = httpx.Limits(
            max_connections=IN_FLIGHT_MAX, max_keepalive_connections=64,
            keepalive_expiry=IDLE_MAX_S)
        timeout = httpx.Timeout(shape.patience_s, connect=5.0)
        self._http = httpx.AsyncClient(
            base_url=url, timeout=timeout, limits=limits, trust_env=False)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(
        self, arrival: Arrival, start_s: float, patience_s: float | None = None
    ) -> Outcome:
        """Send one request at its time and follow its stream to the end, or until patience ends."""
        await asyncio.sleep(max(0.0, start_s + arrival.at_s - time.monotonic()))
        sent_s = time.monotonic()
        watch = _Watch()
        try:
            # A client that has waited this long in all is gone, even if tokens still trickle;
            # one that has patience to read leaves as late as that says, once its answer began.
            async with asyncio.timeout(patience_s or self._shape.patience_s) as leaving:
                reading_s = None if patience_s else self._shape.reading_s
                async for _ in self._tokens(arrival, watch, sent_s):
                    if reading_s is not None:
                        leaving.reschedule(asyncio.get_running_loop().time() + reading_s)
                        reading_s = None
            ending = watch.ending()
        except (TimeoutError, httpx.TimeoutException):
            ending = "gave_up"
        except (httpx.HTTPError, ValueError):  # an event that is cut is no JSON
            ending = "failed"
        took_s = time.monotonic() - sent_s
        return Outcome(arrival.tier, sent_s - start_s, ending, watch.status, watch.ttft_s, took_s,
                       watch.tokens, watch.per_token_s())

    async def _tokens(
        self, arrival: Arrival, watch: _Watch, sent_s: float
    ) -> AsyncIterator[int]:
        """Send the request; yields how many tokens have come, whenever one does."""
        body = {
            "model": self._shape.model, "stream": True,
            "max_tokens": arrival.output_tokens or self._shape.output_tokens,
            "ignore_eos": True, "temperature": 0, "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": arrival.prompt}],
        }
        headers = {TIER_HEADER: arrival.tier}
        async with self._http.stream(
            "POST", "/v1/chat/completions", json=body, headers=headers
        ) as response:
            watch.status = response.status_code
            if response.status_code != 200:
                await response.aread()
                return
            async for event in _events(response):
                if watch.see(event, time.monotonic() - sent_s):
                    yield watch.tokens


class _Watch:
    """What has been seen of one response so far."""

    def __init__(self) -> None:
        self.status = 0
        self.ttft_s: float | None = None
        self.tokens = 0
        self._last_s = 0.0
        self._error = False
        self._finished = False

    def see(self, event: dict[str, object], since_s: float) -> bool:
        """Take one event of the stream, `since_s` seconds after sending; says if it is a token."""
        self._error = self._error or "error" in event
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.tokens = int(usage["completion_tokens"])
            self._finished = True
        choices = event.get("choices")
        if isinstance(choices, list) and choices and choices[0]["delta"].get("content"):
            self.tokens += 1
            self.ttft_s = since_s if self.ttft_s is None else self.ttft_s
            self._last_s = since_s
            return True
        return False

    def per_token_s(self) -> float | None:
        if self.ttft_s is None or self.tokens < 2:
            return None
        return (self._last_s - self.ttft_s) / (self.tokens - 1)

    def ending(self) -> Ending:
        if self.status in REFUSALS:
            return "refused"
        return "ok" if self.status == 200 and self._finished and not self._error else "failed"


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, object]]:
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


async def run_open(
    url: str, shape: Shape, arrivals: Sequence[Arrival], progress: Callable[[int, int], None]
) -> list[Outcome]:
    """Send `arrivals` on time; return when the last one ended. Reports (ended, all) as it goes."""
    ended = 0

    async def one(client: Client, arrival: Arrival, start_s: float) -> Outcome:
        nonlocal ended
        outcome = await client.ask(arrival, start_s)
        ended += 1
        progress(ended, len(arrivals))
        return outcome

    async with Client(url, shape) as client:
        start_s = time.monotonic()
        return list(await asyncio.gather(*(one(client, a, start_s) for a in arrivals)))


async def warm_up(url: str, shape: Shape) -> None:
    """Send the first request of a server, which pays for much that no later one does."""
    dice = random.Random(0)
    async with Client(url, shape) as client:
        arrival = Arrival(0.0, CALIBRATION_TIER, prompt_of(dice, shape.prompt_words))
        await client.ask(arrival, time.monotonic(), WARM_UP_S)


async def measure_capacity(url: str, shape: Shape, concurrency: int, seconds: float) -> float:
    """Return the requests per second that a closed loop of `concurrency` clients gets served.

    Tokens are counted, not finished requests: on a slow machine few finish in the time.
    """
    await warm_up(url, shape)
    dice = random.Random(0)
    async with Client(url, shape) as client:

        async def ask(patience_s: float) -> int:
            arrival = Arrival(0.0, CALIBRATION_TIER, prompt_of(dice, shape.prompt_words))
            return (await client.ask(arrival, time.monotonic(), patience_s)).tokens

        ends_s = time.monotonic() + seconds

        async def loop() -> int:
            tokens = 0
            while (left_s := ends_s - time.monotonic()) > 0:
                tokens += await ask(left_s)
            return tokens

        tokens = sum(await asyncio.gather(*(loop() for _ in range(concurrency))))
        return tokens / seconds / shape.output_tokens
