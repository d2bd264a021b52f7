"""The endpoint plug-in put together as vLLM does it, over a stand-in for the engine's client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from resilience.cores.vllm import endpoint as module
from resilience.cores.vllm.endpoint import ResilienceEndpoint
from resilience.cores.vllm.plugin import engine_utility
from resilience.gate.config import CONFIG_VARIABLE, GateConfig
from resilience.model import EngineConfig

TOKEN = "t" * 32
pytestmark = pytest.mark.filterwarnings("ignore")


class EngineClient:
    """vLLM's client as far as the plug-in asks it; the engine is in this process."""

    def __init__(self, scheduler: Any) -> None:
        # No `timeout`: a late answer would be taken for the next step's.
        executor = SimpleNamespace(collective_rpc=lambda work, args=(): [0.002])
        self._engine = SimpleNamespace(
            scheduler=scheduler, model_executor=executor, _send_abort_outputs=lambda ended: None
        )
        self.engine_core = self
        self.errored = False
        self.paused: list[str] = []
        self.vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_seqs=8, policy="fcfs"),
            model_config=SimpleNamespace(max_model_len=4096),
            cache_config=SimpleNamespace(num_gpu_blocks=128, block_size=128),
        )

    async def call_utility_async(self, name: str, payload: Any) -> Any:
        return engine_utility(self._engine, payload)

    def get_tokenizer(self) -> None:
        return None

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        assert clear_cache is False
        self.paused.append(mode)

    async def resume_generation(self) -> None:
        self.paused.append("resume")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "core.token").write_text(TOKEN)
    body = {
        "version": 1, "token_file": str(tmp_path / "core.token"),
        "gate": GateConfig.from_engine(EngineConfig()).to_json(),
    }
    (tmp_path / "core.json").write_text(json.dumps(body))
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "core.json"))
    yield tmp_path


def scenario(
    rig: Any, monkeypatch: pytest.MonkeyPatch, ask: Callable[[httpx.AsyncClient, EngineClient], Any]
) -> Any:
    """Start the plug-in, let it look once, and run `ask` with a client of its routes."""
    pytest.importorskip("vllm", reason="needs vLLM", exc_type=ImportError)
    from starlette.applications import Starlette

    monkeypatch.setattr(module, "shared", lambda: rig.state)
    monkeypatch.setattr(module, "export", lambda monitor: None)

    async def run() -> Any:
        client, app, plugin = EngineClient(rig.scheduler), Starlette(), ResilienceEndpoint()
        plugin.attach_router(app)
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://core",
            headers={"authorization": f"Bearer {TOKEN}"},
        ) as http:
            assert (await http.get("/resilience/health")).status_code == 503
            await plugin.init_state(client, SimpleNamespace(openai_serving_models=None), None)
            assert plugin._monitor is not None and plugin._watching is not None
            plugin._watching.cancel()
            assert plugin._feeding is not None
            plugin._feeding.cancel()
            await plugin._monitor.round()
            return await ask(http, client)

    return asyncio.run(run())


def test_it_is_well_and_says_what_it_can_do(
    rig: Any, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(http: httpx.AsyncClient, client: EngineClient) -> Any:
        health = await http.get("/resilience/health", headers={"authorization": ""})
        assert (health.status_code, health.json()["status"]) == (200, "well")
        client.errored = True
        dead = await http.get("/resilience/health")
        assert (dead.status_code, dead.json()["status"]) == (503, "dead")
        return (await http.get("/resilience/v1/capabilities")).json()

    found = scenario(rig, monkeypatch, ask)
    assert set(found["impulses"]) == {
        "reset_prefix_cache", "pause", "resume", "drain", "abort_requests", "capture_incident",
    }
    assert found["dropped"] == []


def test_impulses_reach_the_server_and_a_release_ends_them(
    rig: Any, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(http: httpx.AsyncClient, client: EngineClient) -> Any:
        async def give(name: str, **args: Any) -> Any:
            body = {"impulse": name, "args": args, "epoch": 1}
            answer = await http.post(f"/resilience/v1/impulses/{name}", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["result"]

        assert (await give("pause", mode="abort", for_ms=60_000))["settled"] is True
        assert (await give("drain", for_ms=60_000))["done"] is True
        assert (await http.get("/resilience/health")).status_code == 503
        released = await http.post("/resilience/v1/release", json={"reason": "x", "t_ms": 1})
        assert released.status_code == 200
        assert (await http.get("/resilience/health")).json()["released"] is True
        assert (await http.get("/resilience/health")).status_code == 200
        return client.paused

    assert scenario(rig, monkeypatch, ask) == ["abort", "resume"]


def test_a_bundle_lies_in_the_state_folder(
    rig: Any, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(http: httpx.AsyncClient, client: EngineClient) -> Any:
        body = {"impulse": "capture_incident", "args": {"duration_ms": 1_000}, "epoch": 1}
        answer = await http.post("/resilience/v1/impulses/c", json=body)
        path = Path(answer.json()["result"]["file"])
        ends_s = asyncio.get_running_loop().time() + 30.0
        while not path.exists():
            assert asyncio.get_running_loop().time() < ends_s
            await asyncio.sleep(0.05)
        return path

    path = scenario(rig, monkeypatch, ask)
    assert path.parent == settings / "captures"
    bundle = json.loads(path.read_text())
    assert bundle["samples"][0]["engine"]["blocks"]["total"] == 128
    assert bundle["health"]["status"] == "well"
