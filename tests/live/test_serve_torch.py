"""`serve --core torch`: a policy fires, is enforced and undone; what the core lacks is refused."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.live
kit = sys.modules["live_serving"]  # loaded by conftest.py
POLICY = """
apiVersion: resilience/v1
kind: Policy
metadata: {name: busy, annotations: {runbook_url: "https://example.org/busy"}}
spec:
  interval: 1s
  trigger:
    expr: sum by (model_name) (vllm:num_requests_running) > 2
    on_no_data: hold
    resolve: {expr: sum by (model_name) (vllm:num_requests_running) < 1}
  actions:
    - ACTION
"""
THROTTLE = "{type: throttle, tier: best-effort, max_concurrency: 1, lease: 8s}"
LACKING = "{type: cache_degrade, kv_blocks_soft: 100, lease: 8s}"


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Any]:
    """The engine that started the server, and its `ready` event."""
    pytest.importorskip("transformers", reason="live tests need transformers")
    path = Path(__file__).parent / "tiny_llama.py"
    spec = importlib.util.spec_from_file_location("serve_torch_tiny", path)
    assert spec is not None and spec.loader is not None
    tiny: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiny)
    (home / "rules").mkdir()
    (home / "rules" / "busy.yaml").write_text(POLICY.replace("ACTION", THROTTLE))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    engine = kit.EngineProcess(
        [home / "rules", "--state", home / "state", "--core", "torch", "--",
         tiny.make_model(home / "model"), "--port", port, "--threads", "1",
         "--served-model-name", "base"],
        {**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    try:
        yield engine, engine.ready()
    finally:
        assert engine.end(signal.SIGTERM) == 0


def test_load_throttles_and_relief_undoes(served: Any) -> None:
    engine, ready = served
    body = {"prompt": "x", "max_tokens": 4_000, "ignore_eos": True, "stream": True}
    with httpx.Client(base_url=ready["url"], timeout=60, trust_env=False) as api:
        with ExitStack() as load:
            for _ in range(4):
                load.enter_context(api.stream(
                    "POST", "/v1/completions", json=body, headers={"x-slo-tier": "core"}
                ))
            engine.decided("firing")
        engine.decided("inactive")
        assert api.get("/health").status_code == 200


def test_a_policy_that_needs_what_the_core_lacks_is_refused(served: Any, home: Path) -> None:
    rules = home / "other"
    rules.mkdir()
    (rules / "busy.yaml").write_text(POLICY.replace("ACTION", LACKING))
    done = kit.resilience("apply", rules, "--state", home / "state")
    assert done.returncode != 0
    assert "cache.kv_blocks_soft" in done.stdout + done.stderr
    assert "share that it keeps free" in done.stdout + done.stderr
