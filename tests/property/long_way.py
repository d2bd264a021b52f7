"""The decision core without its short ways, to compare them with."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

SHORT_WAYS = ("stands_still", "burns_plainly", "is_quiet")


@contextmanager
def long_way() -> Generator[None]:
    """Let `decide` look at every instance of every policy, whatever it could leave alone."""
    with pytest.MonkeyPatch.context() as patch:
        for name in SHORT_WAYS:
            patch.setattr(f"resilience.policy.decide.{name}", lambda *args: False)
        yield
