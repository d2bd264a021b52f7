"""A bounded run of the fuzzer; `make fuzz` runs it for longer. Found cases are in test_language."""

from __future__ import annotations

from types import ModuleType

import pytest

SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
def test_generated_sources_hold(fuzz: ModuleType, seed: int) -> None:
    assert fuzz.hostile(seed, 40) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_plain_code_means_the_same_as_in_python(fuzz: ModuleType, seed: int) -> None:
    assert fuzz.same(seed, 500) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_mutated_answers_never_raise(fuzz: ModuleType, seed: int) -> None:
    assert fuzz.frames(seed, 3_000) == []
