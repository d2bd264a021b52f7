"""Fixtures over `rig.py`, a plain module that the contract tests load too."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from resilience.model import Claim


def load_rig() -> ModuleType:
    path = Path(__file__).with_name("rig.py")
    spec = importlib.util.spec_from_file_location("cores_rig", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RIG = load_rig()


@pytest.fixture
def rig() -> Iterator[Any]:
    built = RIG.Rig()
    yield built
    built.close()


@pytest.fixture
def claim() -> Callable[..., Claim]:
    return RIG.make_claim  # type: ignore[no-any-return]
