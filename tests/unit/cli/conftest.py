"""A live engine in memory behind a real control socket, and the command line in this process."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from resilience.app.control import routes
from resilience.app.http import listen_unix
from resilience.cli import main
from tests.unit.cli.dry_run_rig import QUEUE, write_recording


def _load_rig() -> ModuleType:
    path = Path(__file__).parent.parent / "app" / "rig.py"
    spec = importlib.util.spec_from_file_location("cli_rig", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


kit = _load_rig()


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """Runs `resilience …` in this process and returns what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: str | Path) -> Result:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in args])
        said = self._capsys.readouterr()
        code = ended.value.code
        return Result(code if isinstance(code, int) else 0, said.out, said.err)


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Cli:
    monkeypatch.setenv("RESILIENCE_STATE", str(tmp_path / "cli-state"))
    for name in ("RESILIENCE_SOCKET", "RESILIENCE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return Cli(capsys)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Any]:
    clock = kit.HandClock()
    made = kit.Rig(tmp_path / "state", kit.SmallCore(clock), clock)
    yield made
    made.close()


@pytest.fixture
def engine(rig: Any, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The rig, found by every command that looks for a running engine."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        server = listen_unix(Path(folder) / "s")
        server.start(routes(rig.runtime), rig.fault)
        monkeypatch.setenv("RESILIENCE_SOCKET", str(Path(folder) / "s"))  # after `cli` cleared it
        yield rig
        server.stop()


@pytest.fixture
def fired(engine: Any) -> Any:
    kit.fire(engine)
    return engine


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A rules folder with the policy that the engine runs."""
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "queue.yaml").write_text(kit.POLICY.replace("LIMIT", "10"))
    return folder


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Twelve seconds of a queue that is too long twice."""
    return write_recording(tmp_path / "week.parquet", {"vllm:num_requests_waiting": QUEUE})


@pytest.fixture
def over(cli: Any, rules: Path, recording: Path) -> Any:
    def run(*options: str) -> Any:
        return cli("apply", rules, "--dry-run", "--recording", recording, *options)

    return run
