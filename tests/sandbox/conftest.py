"""Shared by the sandbox's tests: corpus, contexts, runners that are closed again."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from resilience.model import EngineConfig, UdfCall, UdfOutcome
from resilience.sandbox.runner import SandboxRunner, Settings
from tests.sandbox.patience import PATIENT_MS

ROOT = Path(__file__).resolve().parents[2]

Open = Callable[..., SandboxRunner]
Run = Callable[..., UdfOutcome]


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The shared corpus, or a skip where it is not."""
    path = Path(os.environ.get("RESILIENCE_CORPUS", ROOT.parent / "shared" / "corpus"))
    if not (path / "udf_attacks").is_dir():
        pytest.skip(f"no UDF corpus at `{path}`; set RESILIENCE_CORPUS")
    return path


def load_beside(name: str) -> ModuleType:
    """Import a plain module of this folder, which is no package."""
    path = Path(__file__).resolve().with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def attacks() -> ModuleType:
    """The module attacks.py."""
    return load_beside("attacks")


@pytest.fixture(scope="session")
def fuzz() -> ModuleType:
    """The module fuzz.py."""
    return load_beside("fuzz")


@pytest.fixture(scope="session")
def own() -> tuple[ModuleType, ModuleType]:
    """The modules own_attacks.py and own_kernel.py."""
    return load_beside("own_attacks"), load_beside("own_kernel")


@pytest.fixture
def context() -> dict[str, Any]:
    """A context of the product's shape."""
    return {
        "policy": "kv-pressure", "labels": {"model_name": "m"}, "value": 0.95,
        "now": 1767225600.0, "params": None, "metrics": {"a": 1.0, "xs": [3.0, 1.0, 2.0]},
        "claims": [], "previous": None,
    }


@pytest.fixture
def open_runner() -> Iterator[Open]:
    """Open runners that are closed when the test ends."""
    opened: list[SandboxRunner] = []

    def make(
        sources: dict[str, str], config: EngineConfig | None = None, **settings: Any
    ) -> SandboxRunner:
        runner = SandboxRunner(sources, config, replace(Settings(spares=1), **settings))
        opened.append(runner)
        return runner

    yield make
    for runner in opened:
        runner.close()


@pytest.fixture
def run_source(open_runner: Open, context: dict[str, Any]) -> Run:
    """Run `function` of one source in the real sandbox and return its outcome."""

    def run(source: str, function: str = "f", **given: Any) -> UdfOutcome:
        timeout_ms = given.pop("timeout_ms", PATIENT_MS)
        runner = open_runner({"udf.py": source}, **given)
        return runner.run([make_call(function, context, timeout_ms)], deadline_ms=PATIENT_MS)[0]

    return run


def make_call(function: str, context: Any, timeout_ms: int = PATIENT_MS) -> UdfCall:
    return UdfCall("policy", "instance", "0", function, timeout_ms, context)


@pytest.fixture
def call() -> Callable[..., UdfCall]:
    """Make a call of (function, context, timeout_ms)."""
    return make_call


@pytest.fixture(scope="session")
def shipped() -> dict[str, tuple[str, list[Any]]]:
    """The shipped UDFs: file name -> (text, test contexts)."""
    return {
        path.name: (path.read_text(), json.loads(path.with_suffix(".contexts.json").read_text()))
        for path in sorted((ROOT / "udfs").glob("*.py"))
    }
