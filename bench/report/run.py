"""Time and memory of the weekly report: 100 policies over 7 days of one server.

`python bench/report/run.py [POLICIES] [DAYS]` generates the recording and the rules in
`out/bench-report`, then measures, each in a process of its own, the dry run with its text report,
the same with the page, a sweep of four values of one policy, and a plan without and with its page.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "engine")]

from bench.report import week  # noqa: E402

FOLDER = ROOT / "out" / "bench-report"
COMMAND = Path(sys.executable).with_name("resilience")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process took: seconds of CPU and of the clock, and MiB at its peak."""

    cpu_s: float
    wall_s: float
    peak_mib: float
    written: int


def main(policies: int = 100, days: float = 7) -> None:
    recording, rules = FOLDER / "week.parquet", FOLDER / "rules"
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    week.recording(recording, days)
    week.rules(rules, policies)
    changed = FOLDER / "changed"
    shutil.copytree(rules, changed)
    first = next(iter(sorted(changed.glob("queue-*"))))
    first.write_text(first.read_text().replace("for: 1m", "for: 2m", 1))
    page = FOLDER / "report.html"
    dry = ["apply", str(rules), "--dry-run", "--recording", str(recording)]
    name = first.stem
    tasks = {
        "dry run and text report": dry,
        "the same with `--html`": [*dry, "--html", str(page)],
        f"sweep `--set {name}.trigger.for=30s,1m,2m,5m`":
            [*dry, "--set", f"{name}.trigger.for=30s,1m,2m,5m"],
        "plan of one changed policy":
            ["plan", str(changed), "--against", str(rules), "--recording", str(recording)],
        "the same plan with `--html`":
            ["plan", str(changed), "--against", str(rules), "--recording", str(recording),
             "--html", str(FOLDER / "plan.html")],
    }
    print(f"{policies} policies, {days:g} days, interval 15 s, "
          f"recording {recording.stat().st_size / 1e6:.1f} MB")
    print("| what | CPU s | wall s | peak MiB | output MB |\n|---|---|---|---|---|")
    for what, words in tasks.items():
        cost = measure(words)
        print(f"| {what} | {cost.cpu_s:.1f} | {cost.wall_s:.1f} | {cost.peak_mib:.0f} | "
              f"{cost.written / 1e6:.2f} |", flush=True)
    print(f"the page: {page.stat().st_size / 1e6:.1f} MB")


def measure(words: Sequence[str]) -> Cost:
    """Run the command and return what it took; its output goes to a file."""
    output = FOLDER / "output.txt"
    begun = time.perf_counter()
    with output.open("wb") as out, (FOLDER / "errors.txt").open("wb") as err:
        process = subprocess.Popen([str(COMMAND), *words], stdout=out, stderr=err)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed: {(FOLDER / 'errors.txt').read_text()}")
    return Cost(
        used.ru_utime + used.ru_stime, time.perf_counter() - begun, used.ru_maxrss / 1024,
        output.stat().st_size,
    )


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((int, float), sys.argv[1:], strict=False)))
