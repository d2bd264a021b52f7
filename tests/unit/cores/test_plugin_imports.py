"""What is loaded into a server's processes stays small: a fresh interpreter tells."""

from __future__ import annotations

import subprocess
import sys

import pytest

BANNED = (
    "apscheduler", "click", "pyarrow", "prometheus_api_client", "RestrictedPython", "yaml",
    "jsonschema", "numpy", "promql_parser", "vllm", "torch",
)
LOADED_BY_SERVERS = (
    "resilience.cores.vllm.plugin", "resilience.cores.vllm.endpoint",
    "resilience.cores.vllm.scheduler", "resilience.cores.vllm.place", "resilience.gate.middleware",
    "resilience.cores.torch.server",
)


@pytest.mark.parametrize("module", LOADED_BY_SERVERS)
def test_a_plug_in_drags_in_nothing_heavy(module: str) -> None:
    program = (
        f"import sys, importlib; importlib.import_module({module!r}); "
        f"print(*sorted(set({BANNED!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []
