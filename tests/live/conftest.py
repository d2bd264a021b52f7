"""One real vLLM server for all live tests of a run, on a tiny random Llama.

The server starts when the first test asks for it and ends with the run. A test leaves it without
claims: `core` drops them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from resilience.cores.client import HttpCore
from resilience.cores.process import ServerProcess
from resilience.cores.vllm.launch import start
from resilience.model import (
    Actual,
    Claim,
    Desired,
    EngineConfig,
    HealthSettings,
    Json,
    PrometheusAccess,
    labels_of,
)
from resilience.sources.prometheus import PrometheusSource
from tests.live import metric_servers, serving, tiny_llama
from tools.ports import free_port

READY_S = 900.0
MAX_RUNNING = 8
BASE, ADAPTER = "base", "small"
# A machine that stands still for a moment must not make the core hold levers on its own.
CONFIG = EngineConfig(health=HealthSettings(slow_ms=60_000))
DEADLINE_MS = 60_000


@dataclass(frozen=True)
class TinyModel:
    """The folder of the model and of its adapter, and the environment that serves them offline."""

    model: Path
    adapter: Path
    environment: dict[str, str]

    def arguments(self, port: int) -> list[str]:
        """Return MODEL ARGS… for a server on `port` of the loopback."""
        return [
            str(self.model), "--host", "127.0.0.1", "--port", str(port),
            "--served-model-name", BASE, "--max-model-len", "4096",
            "--max-num-seqs", str(MAX_RUNNING), "--enforce-eager",
            "--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"{ADAPTER}={self.adapter}",
        ]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    pytest.importorskip("vllm", reason="live tests need vLLM", exc_type=ImportError)
    root = tmp_path_factory.mktemp("tiny")
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false",
    }
    return TinyModel(
        tiny_llama.make_model(root / "model"), tiny_llama.make_adapter(root / "adapter"),
        environment,
    )


@pytest.fixture(scope="session")
def server(
    tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    state = tmp_path_factory.mktemp("state")
    process = start(
        tiny_model.arguments(free_port()), CONFIG, state, env=tiny_model.environment
    )
    try:
        process.wait_ready(READY_S)
        yield process
    finally:
        process.stop(20.0)


@pytest.fixture
def new_server(tiny_model: TinyModel, tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Start a server of the test's own, with more arguments and environment; it ends with it."""
    started: list[ServerProcess] = []

    def begin(*more: str, **environment: str) -> ServerProcess:
        process = start(
            [*tiny_model.arguments(free_port()), *more], CONFIG, tmp_path / "state",
            env=tiny_model.environment | environment,
        )
        started.append(process)
        process.wait_ready(READY_S)
        return process

    yield begin
    for process in started:
        process.stop(20.0)


def answered(actual: Actual) -> Actual | None:
    """Return what the core holds; None when its engine process was too busy to say it in time."""
    late = any("did not answer within" in lost["reason"] for lost in actual.dropped)
    return None if late else actual


class PatientCore(HttpCore):
    """A client that asks again where the engine process was too busy to answer in time."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(
            url, token, transport=httpx.HTTPTransport(trust_env=False, limits=serving.ONCE))

    def put_desired(self, desired: Desired, *, deadline_ms: int) -> Actual:
        ask = super().put_desired
        held = serving.eventually(lambda: answered(ask(desired, deadline_ms=deadline_ms)))
        assert held is not None
        return held

    def actual(self, *, deadline_ms: int) -> Actual:
        ask = super().actual
        found = serving.eventually(lambda: answered(ask(deadline_ms=deadline_ms)))
        assert found is not None
        return found


class Driver:
    """A client of the core with its own, newest epoch."""

    def __init__(self, core: HttpCore) -> None:
        self.core = core
        self.epoch = core.capabilities(deadline_ms=DEADLINE_MS).epoch + 1
        self.generation = 0

    def hold(self, *claims: Claim) -> Actual:
        """Make the core hold exactly `claims`; on a machine so busy that the engine process does
        not answer in time, it is told again."""
        def taken() -> Actual | None:
            self.generation += 1
            desired = Desired(self.epoch, self.generation, claims)
            return answered(self.core.put_desired(desired, deadline_ms=DEADLINE_MS))

        held = serving.eventually(taken)
        assert held is not None
        return held


def claim(
    knob: str, value: Json, *, ttl_ms: int = 600_000, policy: str = "live-test", **scope: str
) -> Claim:
    """Return a claim that outlives its test, which drops it, unless `ttl_ms` is what is tested."""
    return Claim(
        policy, "0" * 16, "0", knob, labels_of(scope), value, ttl_ms, False, 50, "test", "overload"
    )


@pytest.fixture(name="claim")
def claim_fixture() -> Callable[..., Claim]:
    return claim


@pytest.fixture
def core(server: ServerProcess) -> Iterator[HttpCore]:
    with PatientCore(server.url, server.token) as client:
        yield client


@pytest.fixture
def driver(core: HttpCore) -> Iterator[Driver]:
    mine = Driver(core)
    yield mine
    Driver(core).hold()


class Api:
    """The server as its users see it, and its metrics."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(
            base_url=url, timeout=120.0, trust_env=False, limits=serving.ONCE)

    def body(self, prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
        return {
            "model": BASE, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, **more,
        }

    def complete(
        self, prompt: str, tokens: int = 4, tier: str | None = None, **more: Any
    ) -> httpx.Response:
        headers = {} if tier is None else {"x-slo-tier": tier}
        return self.client.post(
            "/v1/completions", json=self.body(prompt, tokens, **more), headers=headers
        )

    def stream(self, prompt: str, tokens: int, **more: Any) -> Any:
        """Return the context manager of a streaming request."""
        body = self.body(prompt, tokens, stream=True, **more)
        return self.client.stream("POST", "/v1/completions", json=body)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the series of `name` that have `labels`."""
        total = 0.0
        for line in self.client.get("/metrics").text.splitlines():
            head, _, value = line.rpartition(" ")
            if head.partition("{")[0] == name and all(
                f'{k}="{v}"' in head for k, v in labels.items()
            ):
                total += float(value)
        return total


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    users = Api(server.url)
    yield users
    users.client.close()


@pytest.fixture
def connect() -> Iterator[Callable[[str], Api]]:
    """Return an `Api` of any server; its connections end with the test."""
    opened: list[Api] = []

    def new(url: str) -> Api:
        opened.append(Api(url))
        return opened[-1]

    yield new
    for users in opened:
        users.client.close()


@pytest.fixture
def drive() -> Callable[[HttpCore], Driver]:
    return Driver


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Return what waits for a condition."""
    return serving.eventually


@pytest.fixture
def served_names() -> Sequence[str]:
    return (BASE, ADAPTER)


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Samples over two blocks, as text and as a Prometheus data folder."""
    return metric_servers.history(tmp_path_factory.mktemp("history"))


@pytest.fixture(scope="session")
def prometheus(history: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real Prometheus that holds `history`."""
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copytree(history.blocks, folder / "data")
    running = metric_servers.prometheus(folder)
    yield running
    running.stop()


@pytest.fixture
def source(prometheus: Any) -> Iterator[PrometheusSource]:
    """What asks that Prometheus."""
    found = PrometheusSource(PrometheusAccess(prometheus.url, timeout_ms=DEADLINE_MS))
    yield found
    found.close()
