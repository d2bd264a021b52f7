"""`serve --core torch`: a policy fires, is enforced and undone; what the core lacks is refused."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live import serving as kit
from tests.live.tiny_llama import make_model
from tools.ports import free_port

pytestmark = pytest.mark.live
LACKING = "{type: cache_degrade, kv_blocks_soft: 100, lease: 8s}"


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Any]:
    """The engine that started the server, and its `ready` event."""
    pytest.importorskip("transformers", reason="live tests need transformers")
    (home / "rules").mkdir()
    (home / "rules" / "busy.yaml").write_text(kit.busy_policy(kit.throttle(8)))
    engine = kit.EngineProcess(
        [home / "rules", "--state", home / "state", "--core", "torch", "--",
         make_model(home / "model"), "--port", str(free_port()), "--threads", "1",
         "--served-model-name", "base"],
        {**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    try:
        yield engine, engine.ready()
    finally:
        assert engine.end(signal.SIGTERM) == 0


def test_load_throttles_and_relief_undoes(served: Any) -> None:
    engine, ready = served
    load = kit.Load(ready["url"])
    try:
        engine.decided("firing")
    finally:
        load.end()
    engine.decided("inactive")
    assert httpx.get(f"{ready['url']}/health", timeout=120, trust_env=False).status_code == 200


def test_a_policy_that_needs_what_the_core_lacks_is_refused(served: Any, home: Path) -> None:
    rules = home / "other"
    rules.mkdir()
    (rules / "busy.yaml").write_text(kit.busy_policy(LACKING))
    done = kit.resilience("apply", rules, "--state", home / "state")
    assert done.returncode != 0
    assert "cache.kv_blocks_soft" in done.stdout + done.stderr
    assert "share that it keeps free" in done.stdout + done.stderr
