"""The generation thread of the PyTorch core ends in the middle: nothing hangs, all is told.

The server runs in this process, because the fault has to be put into its thread.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from resilience.cores.process import write_settings
from resilience.cores.torch.arguments import parse_arguments
from resilience.gate.config import CONFIG_VARIABLE, GateConfig
from resilience.gate.metrics import GateMetrics
from resilience.gate.state import GateState
from resilience.model import EngineConfig
from tests.live.tiny_llama import make_model

pytestmark = [
    pytest.mark.live,
    # What the libraries complain about while they load is not ours.
    pytest.mark.filterwarnings("default"),
]
WAIT_S = 240.0


def test_every_request_ends_with_an_error_and_health_says_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_folder: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    _, settings = write_settings(EngineConfig(), tmp_path)
    monkeypatch.setenv(CONFIG_VARIABLE, str(settings))
    asyncio.run(_die(tiny_folder))


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    pytest.importorskip("transformers", reason="live tests need transformers")
    return make_model(tmp_path / "model")


async def _die(folder: Path) -> None:
    from resilience.cores.torch.generation import load
    from resilience.cores.torch.server import TorchServer

    registry = CollectorRegistry()
    state = GateState(GateConfig.from_engine(EngineConfig()), GateMetrics(registry))
    arguments = parse_arguments(
        [str(folder), "--served-model-name", "base", "--max-num-seqs", "2", "--threads", "1"]
    )
    server = TorchServer(arguments, state, registry, load(arguments))
    transport = httpx.ASGITransport(server.app, client=("127.0.0.1", 1))
    async with (
        server.running(),
        httpx.AsyncClient(transport=transport, base_url="http://core", timeout=WAIT_S) as api,
    ):
        await _kill_it(server, api)


async def _kill_it(server: Any, api: httpx.AsyncClient) -> None:
    body = {"prompt": "x", "max_tokens": 2_000, "ignore_eos": True}
    whole = [asyncio.ensure_future(api.post("/v1/completions", json=body)) for _ in range(4)]
    stream = asyncio.ensure_future(
        api.post("/v1/completions", json={**body, "stream": True})
    )
    # All have been taken in: one that came between the fault and the record of it would be told
    # that the thread has ended, and not why.
    jobs = server.generator.jobs
    while len(jobs) < len(whole) + 1 or not any(job.runs for job in jobs.values()):
        await asyncio.sleep(0.01)

    def broken(_model: Any) -> None:
        raise RuntimeError("the model broke")

    manager = server.generator.manager
    record, asked = manager.background_thread_status.record_fatal_error, threading.Event()

    def recorded(error: Exception) -> None:
        # The thread tells its requests before it says so itself: it is dead in between, too.
        asked.wait(WAIT_S)
        record(error)

    manager.background_thread_status.record_fatal_error = recorded
    manager.batch_processor._generation_step = broken
    for answer in await asyncio.wait_for(asyncio.gather(*whole), WAIT_S):
        assert answer.status_code == 500
        assert "the model broke" in answer.json()["error"]["message"]
    lines = (await asyncio.wait_for(stream, WAIT_S)).text.splitlines()
    assert any("the model broke" in line for line in lines) and "data: [DONE]" in lines
    await _says_dead(api, body)
    asked.set()
    while manager.is_running():
        await asyncio.sleep(0.01)
    await _says_dead(api, body)
    assert not server.generator.jobs


async def _says_dead(api: httpx.AsyncClient, body: dict[str, Any]) -> None:
    health = await api.get("/resilience/health")
    assert health.status_code == 503 and health.json()["status"] == "dead"
    assert "the model broke" in health.text
    assert (await api.get("/health")).status_code == 503
    late = await asyncio.wait_for(api.post("/v1/completions", json=body), WAIT_S)
    assert late.status_code == 500 and late.json()["error"]["code"] == "engine_dead"
