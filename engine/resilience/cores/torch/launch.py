"""Starting the PyTorch core's server."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from resilience.cores.process import ServerProcess, check_port, spawn, write_settings
from resilience.cores.torch.arguments import parse_arguments
from resilience.errors import UsageError
from resilience.gate.config import CONFIG_VARIABLE
from resilience.model import EngineConfig

MODULE = "resilience.cores.torch.server"
NEEDED = ("torch", "transformers", "starlette", "uvicorn")
NAME = "the PyTorch core"


def start(
    argv: Sequence[str],
    config: EngineConfig,
    state_dir: Path,
    *,
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
    control_peers: Sequence[str] = (),
    owned: bool = False,
) -> ServerProcess:
    """Start the server with `argv` (MODEL ARGS…) and return at once; `wait_ready` waits.

    `control_peers` are the networks that may drive the core, this machine alone when it is empty;
    an `owned` server ends with this process.
    Raises UsageError when a library is missing, the arguments do not fit, or the port is taken;
    then nothing was started.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"`{missing[0]}` is not installed here; install `resilience-engine[torch]`"
        )
    arguments = parse_arguments(argv)
    check_port(arguments.host, arguments.port)
    token, settings = write_settings(config, state_dir, control_peers)
    base = os.environ if env is None else env
    environment = {**base, CONFIG_VARIABLE: str(settings.resolve()), "PYTHONUNBUFFERED": "1"}
    command = [python, "-m", MODULE, *argv]
    return spawn(command, arguments.url, token, state_dir, environment, NAME, owned=owned)
