"""Fixtures over `rig.py` and `scheduler_rig.py`, plain modules that other tests load too."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from resilience.model import Claim


def load_beside(name: str) -> ModuleType:
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"cores_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RIG = load_beside("rig")


@pytest.fixture
def rig() -> Iterator[Any]:
    built = RIG.Rig()
    yield built
    built.close()


@pytest.fixture
def claim() -> Callable[..., Claim]:
    return RIG.make_claim  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("vllm", reason="needs vLLM", exc_type=ImportError)
    folder: Path = load_beside("scheduler_rig").write_model(tmp_path_factory.mktemp("config"))
    return folder


@pytest.fixture
def make_rig(model_folder: Path) -> Callable[..., Any]:
    """Build vLLM's scheduler with the counting model; see `scheduler_rig.Rig`."""
    scheduler_rig = load_beside("scheduler_rig")

    def make(asynchronous: bool = False, **kwargs: Any) -> Any:
        return scheduler_rig.Rig(model_folder, asynchronous=asynchronous, **kwargs)

    return make
