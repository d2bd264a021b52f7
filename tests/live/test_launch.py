"""A server that cannot start says why in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from resilience.cores.vllm.launch import start
from resilience.errors import CoreError, UsageError
from resilience.model import EngineConfig
from tools.ports import free_port

pytestmark = pytest.mark.live


def test_a_wrong_option_is_reported_with_vllms_words(tiny_model: Any, tmp_path: Path) -> None:
    argv = [*tiny_model.arguments(free_port()), "--no-such-option"]
    process = start(argv, EngineConfig(), tmp_path / "state", env=tiny_model.environment)
    try:
        with pytest.raises(CoreError) as caught:
            process.wait_ready(400.0)
    finally:
        process.stop(10.0)
    text = str(caught.value)
    assert "\n" not in text and "before it was ready" in text
    assert "unrecognized arguments: --no-such-option" in text and "core.log" in text


def test_the_port_of_a_running_server_is_taken(
    server: Any, tiny_model: Any, tmp_path: Path
) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(UsageError, match=f"port `{port}`"):
        start(tiny_model.arguments(port), EngineConfig(), tmp_path / "state")
    assert server.exit_code is None
