"""What the vLLM core gives the gate: the tokenizer and the limiter's signals."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram

from resilience.cores.signals import SignalReader, feed
from resilience.cores.tokens import REFERENCE, ServerTokenizer
from resilience.gate.config import GateConfig
from resilience.gate.limiter import LimiterRule, Signals
from resilience.gate.metrics import GateMetrics
from resilience.gate.state import GateState
from resilience.model import EngineConfig


class Pieces:
    """A tokenizer that makes a token of every `size` characters."""

    def __init__(self, size: int) -> None:
        self.size = size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return list(range(0, len(text), self.size))


class Mistral:
    def encode(self, text: str) -> list[int]:
        return [0] * len(text)


def test_tokens_are_counted_by_the_servers_own() -> None:
    tokenizer = ServerTokenizer(Pieces(2))
    assert tokenizer.count("abcde") == 3
    assert asyncio.run(tokenizer.count_long("abcde" * 100)) == 250
    assert ServerTokenizer(Mistral()).count("abc") == 3


@pytest.mark.parametrize(("size", "factor"), [(4, 1.0), (2, 0.5), (8, 2.0)])
def test_a_finer_vocabulary_makes_a_token_worth_less(size: int, factor: float) -> None:
    assert ServerTokenizer(Pieces(size)).factor == pytest.approx(factor, rel=0.05)
    assert len(REFERENCE) > 100


class Server:
    """vLLM's series, and a clock."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        label = ("model_name",)
        self.waiting = Gauge("vllm:num_requests_waiting", "x", label, registry=self.registry)
        self.usage = Gauge("vllm:kv_cache_usage_perc", "x", label, registry=self.registry)
        self.first = Histogram(
            "vllm:time_to_first_token_seconds", "x", label, registry=self.registry)
        self.gaps = Histogram("vllm:inter_token_latency_seconds", "x", label,
                              registry=self.registry)
        self.now = 0.0
        self.reader = SignalReader(self.registry, lambda: self.now)

    def look(self, waiting: int, started: int, gaps: list[float] | None = None) -> Signals:
        self.now += 1.0
        self.waiting.labels("m").set(waiting)
        self.usage.labels("m").set(0.5)
        for _ in range(started):
            self.first.labels("m").observe(0.1)
        for gap in gaps or []:
            self.gaps.labels("m").observe(gap)
        return self.reader.read()


def test_queue_time_is_littles_law() -> None:
    server = Server()
    assert server.look(0, 5) == Signals(0.0, None, 0.5)
    assert server.look(10, 5).queue_time_ms == pytest.approx(2_000)
    seen = server.look(10, 20, [0.1, 0.3])
    assert seen.queue_time_ms == pytest.approx(500)
    assert seen.time_per_token_ms == pytest.approx(200)


def test_a_server_that_starts_nothing_shows_a_growing_queue_time() -> None:
    server = Server()
    server.look(0, 1)
    assert [server.look(2, 0).queue_time_ms for _ in range(3)] == [2_000, 4_000, 6_000]


def test_a_server_without_series_gives_no_alarm() -> None:
    reader = SignalReader(CollectorRegistry())
    assert reader.read() == Signals(0.0, None, 0.0)


def test_the_limit_is_moved_and_a_failure_leaves_it() -> None:
    config = replace(
        GateConfig.from_engine(EngineConfig()), limiter=LimiterRule(kv_usage=0.4, maximum=64))
    state = GateState(config, GateMetrics(CollectorRegistry()))
    state.start_with(32)
    server = Server()
    server.look(0, 1)

    class Failing:
        def read(self) -> Signals:
            raise RuntimeError("no registry")

    async def run(reader: Any) -> None:
        task = asyncio.ensure_future(feed(state, reader, 0.0))
        for _ in range(6):
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(run(Failing()))
    assert state.limit() == 32
    asyncio.run(run(server.reader))
    assert state.limit() < 32
