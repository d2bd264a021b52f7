"""Shared by the tests of the policy language: one call from text to findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from resilience import registry
from resilience.policy.check import CheckResult, check

UDFS = {"udfs/fallback.py": "def fallback_to_cache(ctx):\n    return {}\n"}


@pytest.fixture(scope="session")
def run() -> Callable[..., CheckResult]:
    """Return `run(text, …)`, or `run({path: text, …})`, which checks as `resilience check` does."""
    actions = registry.catalogue("actions")

    def go(text: Any, udfs: Any = None, **options: Any) -> CheckResult:
        files = list(text.items()) if isinstance(text, dict) else [("p.yaml", text)]
        return check(files, UDFS if udfs is None else udfs, actions, **options)

    return go


@pytest.fixture(scope="session")
def policy() -> Callable[..., str]:
    """Return `policy(expr=…, actions=…, spec=…)`: a small policy as text, one key a line."""

    def make(
        expr: str = "up == 0", actions: str = "[{type: throttle, max_concurrency: 8}]",
        spec: str = "", name: str = "p",
    ) -> str:
        quoted = expr.replace("'", "''")
        return (
            f"apiVersion: resilience/v1\nkind: Policy\nmetadata: {{name: {name}}}\nspec:\n"
            f"  trigger: {{on_no_data: hold, expr: '{quoted}'}}\n  actions: {actions}\n{spec}"
        )

    return make
