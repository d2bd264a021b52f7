"""What `resilience check` costs: 10,000 documents in one file and in as many files, 100 cold.

`python bench/check/run.py [DOCUMENTS]`; every run is a process of its own, from its start to its
end. With 100 documents it is a trial of a few seconds.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

POLICY = """\
apiVersion: resilience/v1
kind: Policy
metadata:
  name: p-{i}
  annotations: {{summary: "waiting", runbook_url: "https://wiki.example.org/q"}}
spec:
  interval: 5s
  trigger:
    expr: max by (model_name) (vllm:num_requests_waiting) > {i}
    for: 30s
    resolve: {{expr: 'max by (model_name) (vllm:num_requests_waiting) < 5', for: 1m}}
    on_no_data: hold
  actions:
    - {{type: throttle, tier: best-effort, max_concurrency: 8, lease: 30s}}
"""
COMMAND = (sys.executable, "-m", "resilience", "check")


def main(documents: int = 10_000) -> int:
    """Print a line a case: wall and CPU seconds, and the peak of the largest process so far."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, path, times in (
            ("100 policies, cold", _files(folder / "hundred", 100), 5),
            (f"{documents:,} in one file", _one(folder / "all.yaml", documents), 1),
            (f"{documents:,} files", _files(folder / "many", documents), 1),
        ):
            for _ in range(times):
                print(f"{title:20} {_measure(path)}", flush=True)
    return 0


def _one(path: Path, count: int) -> Path:
    path.write_text("---\n".join(POLICY.format(i=i + 10) for i in range(count)))
    return path


def _files(folder: Path, count: int) -> Path:
    folder.mkdir()
    for i in range(count):
        (folder / f"p{i:05}.yaml").write_text(POLICY.format(i=i + 10))
    return folder


def _measure(path: Path) -> str:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start_s = time.perf_counter()
    subprocess.run([*COMMAND, str(path)], check=True, capture_output=True)
    wall_s = time.perf_counter() - start_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{wall_s:6.2f} s  {cpu_s:6.2f} s CPU  {after.ru_maxrss // 1024} MiB peak"


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))
