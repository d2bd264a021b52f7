"""Run the test suite in stages, each with a budget of minutes, and print what each one took.

`python -m tools.run_stages static`, `… test` (everything but static), or stages by name; `report`
prints the table of the last results. A failing stage does not stop the next ones. A stage over its
budget is reported; one that takes twice its budget is ended and has failed, so nothing hangs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tools import reference_servers

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "out" / "ci"
PATIENCE = 2
GRACE_S = 20.0
TOTAL_MIN = 60
# The stages try the same examples each time, so that a change fails by its own fault only; a bare
# pytest draws new ones.
SEED = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage. `folders` are the folders of tests/ it runs; `test_s` the limit of one test."""

    name: str
    budget_min: int
    folders: tuple[str, ...] = ()
    test_s: int = 120
    commands: tuple[tuple[str, ...], ...] = ()


STAGES = (
    Stage("static", 4, commands=(
        ("-m", "ruff", "check", "."),
        ("-c", "from importlinter.cli import lint_imports_command as run; run()"),
        ("-m", "mypy"),
        ("-m", "pyright"),
    )),
    Stage("unit", 11, ("unit", "contract", "golden", "property")),
    Stage("promql", 4, ("promqltest", "differential"), test_s=300),
    Stage("sandbox", 4, ("sandbox",), test_s=300),
    Stage("live", 26, ("live",), test_s=600),
    Stage("simulation", 4, ("simulation",), test_s=300),
    Stage("wheel", 6, ("wheel", "pages"), test_s=500),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a stage went. `ended` means that it was stopped because it took far too long."""

    name: str
    budget_min: int
    took_s: float
    ok: bool
    ended: bool = False

    def line(self) -> str:
        verdict = "ended" if self.ended else "ok" if self.ok else "FAILED"
        over = "  over budget" if self.took_s > self.budget_min * 60 else ""
        time = f"{self.took_s / 60:6.1f} of {self.budget_min:2d} min"
        return f"{self.name:<12}{time}  {verdict}{over}"


def main(names: Sequence[str]) -> int:
    """Run the named stages; return 0 only if all of them passed."""
    if list(names) == ["report"]:
        return report()
    wanted = [name for given in names for name in _expand(given)]
    known = {stage.name: stage for stage in STAGES}
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        choice = ", ".join(["test", *known])
        print(f"stages: error: no stage `{' '.join(unknown)}`; choose from {choice}",
              file=sys.stderr)
        return 2
    homeless = unplaced()
    if homeless:
        print(f"stages: error: no stage runs tests/{homeless[0]}: give it one in "
              "tools/run_stages.py", file=sys.stderr)
        return 1
    if "live" in wanted:
        reference_servers.offer()
    outcomes = [_run(known[name]) for name in wanted]
    print("\n" + "\n".join(outcome.line() for outcome in outcomes), flush=True)
    return 0 if all(outcome.ok for outcome in outcomes) else 1


def _expand(name: str) -> list[str]:
    return [s.name for s in STAGES if s.folders] if name == "test" else [name]


def unplaced() -> list[str]:
    """Return the folders of tests/ that hold tests and belong to no stage."""
    placed = {folder for stage in STAGES for folder in stage.folders}
    found = {path.relative_to(ROOT / "tests").parts[0] for path in ROOT.glob("tests/**/test_*.py")}
    return sorted(found - placed)


def report() -> int:
    """Print budget and time of every stage that has run; return 0 if none of them failed."""
    outcomes = [
        Outcome(**json.loads(file.read_text()))
        for stage in STAGES if (file := RESULTS / f"{stage.name}.json").is_file()
    ]
    print("\n".join(outcome.line() for outcome in outcomes))
    total_s = sum(outcome.took_s for outcome in outcomes)
    print(f"{'total':<12}{total_s / 60:6.1f} of {TOTAL_MIN} min")
    return 0 if outcomes and all(outcome.ok for outcome in outcomes) else 1


def _run(stage: Stage) -> Outcome:
    print(f"\n=== {stage.name} (budget {stage.budget_min} min)", flush=True)
    start_s = time.monotonic()
    ends_s = start_s + stage.budget_min * 60 * PATIENCE
    codes = [_command(command, ends_s) for command in _commands(stage)]
    outcome = Outcome(
        stage.name, stage.budget_min, round(time.monotonic() - start_s, 1),
        ok=all(code == 0 for code in codes), ended=None in codes,
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{stage.name}.json").write_text(json.dumps(asdict(outcome)))
    return outcome


def _commands(stage: Stage) -> list[list[str]]:
    commands = [[sys.executable, *words] for words in stage.commands]
    folders = [f"tests/{name}" for name in stage.folders if (ROOT / "tests" / name).is_dir()]
    if folders:
        junit = RESULTS / f"{stage.name}.xml"
        commands.append([
            sys.executable, "-m", "pytest", "-q", *folders, f"--timeout={stage.test_s}",
            f"--junitxml={junit}", f"--hypothesis-seed={SEED}",
        ])
    return commands


def _command(command: Sequence[str], ends_s: float) -> int | None:
    """Run one command in a group of its own; None when it was ended for taking too long."""
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        return process.wait(max(1.0, ends_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        print(f"stages: error: ended after too long: {' '.join(command)}", file=sys.stderr)
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the command's group: pytest first asks its fixtures to clean up."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
