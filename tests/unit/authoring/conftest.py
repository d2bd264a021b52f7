"""A small folder of one policy with everything that a test can look at, and a call of the CLI."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from resilience.cli import resilience

POLICY = """\
apiVersion: resilience/v1
kind: Policy
metadata: {name: queue}
spec:
  interval: 5s
  trigger:
    expr: 'vllm:num_requests_waiting > 4'
    for: 10s
    resolve: {expr: 'vllm:num_requests_waiting < 2', for: 10s}
    on_no_data: hold
  actions:
    - {type: throttle, tier: best-effort, max_concurrency: 4}
    - {type: reset_prefix_cache, preempt: true}
    - {type: udf_call, function: smaller}
  escalation:
    - {after: 30s, actions: [{type: throttle, tier: elastic, max_concurrency: 8}]}
  recovery: {steps: [50%, 100%], every: 10s}
"""
UDF = """\
def smaller(ctx):
    return {"actions": [{"type": "cache_degrade", "max_running": 16}], "note": "smaller"}
"""
TEST = """\
interval: 5s
tests:
  - name: all of it
    input_series:
      - {series: 'vllm:num_requests_waiting', values: 0x3 9x9 0x20}
{given}    expect:
"""
GIVEN = """\
    udf_results:
      - {function: smaller, result: {actions: [{type: cache_degrade, max_running: 16}]}}
"""
MAIN = "from resilience.cli import main; main()"


@dataclass(frozen=True)
class Ended:
    """A finished process of the command line."""

    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a rules folder `rules/` with a policy, and its UDF beside it in `udfs/`."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "udfs").mkdir()
    (tmp_path / "rules" / "queue.yaml").write_text(POLICY)
    (tmp_path / "udfs" / "smaller.py").write_text(UDF)
    return tmp_path


@pytest.fixture
def run() -> Callable[..., Result]:
    """Return `run("test", path, …)`: the command line in this process, errors as they are."""

    def go(*args: object) -> Result:
        return CliRunner().invoke(
            resilience, [str(a) for a in args], standalone_mode=False, catch_exceptions=True
        )

    return go


@pytest.fixture
def suite(folder: Path, run: Callable[..., Result]) -> Callable[..., Result]:
    """Return `suite(expectations, *options)`: write queue.test.yaml and run it.

    Before 30s nothing fires. `sandbox`: run the UDF; otherwise what it returns is given.
    """

    def go(expect: str, *options: str, text: str = TEST, sandbox: bool = True) -> Result:
        text = text.replace("{given}", "" if sandbox else GIVEN)
        lines = "".join(f"      {line}\n" for line in expect.strip().splitlines())
        (folder / "rules" / "queue.test.yaml").write_text(text + lines)
        return run("test", folder / "rules", *options)

    return go


@pytest.fixture
def shell() -> Callable[..., Ended]:
    """Return `shell(*args, env=…, cwd=…)`: the command line in a process of its own."""

    def go(*args: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Ended:
        kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *map(str, args)], cwd=cwd, timeout=120,
            capture_output=True, check=False, stdin=subprocess.DEVNULL, env={**kept, **(env or {})},
        )
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    return go
