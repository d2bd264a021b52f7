"""`make demo`: the main job on a real vLLM, measured, and proven from its own recording.

Exit code 0 only if a policy fired, the core enforced it, everything was undone, and a fresh process
decides the same from the recording alone. `python -m demo FOLDER` runs it under other rules.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from demo.engine import DemoError
from demo.processes import MemoryWatch, adopt_orphans, end_all
from demo.report import moments, table, timeline
from demo.scenario import ROOT, SHAPE, Folder, Result, dry_run, run
from tools.prepare_model import ModelError, prepare

INTERRUPTED = 130


def main(rules: Path = ROOT / "rules") -> int:
    """Run the demo under `rules`; return its exit code."""
    adopt_orphans()
    signal.signal(signal.SIGTERM, _terminate)
    start_s = time.monotonic()
    result = Result()
    memory = MemoryWatch()
    try:
        with memory:
            folder = Folder(_fresh(ROOT / "out" / "demo"), rules)
            run(prepare(), folder, result, _say)
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except (DemoError, ModelError) as error:
        _say(f"error: {error}")
        return 1
    finally:
        end_all(os.getpid())
    return _finish(folder, result, start_s, memory)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _fresh(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def _finish(folder: Folder, result: Result, start_s: float, memory: MemoryWatch) -> int:
    """Show what came of it, replay the recording, and judge."""
    _show("Timeline (seconds from the start of the load)",
          timeline([*moments(result.decisions), *result.moments], result.zero_ms))
    _show("Bare and protected, the same model and the same load",
          table(result.runs, SHAPE.patience_s))
    print(f"\nrecording: {folder.recording}")
    try:
        print(*dry_run(folder, result), sep="\n", flush=True)
    except DemoError as error:
        _say(f"error: {error}")
    print()
    for kept, promise in result.verdict():
        print(f"{'ok    ' if kept else 'FAILED'}  {promise}")
    took_s = time.monotonic() - start_s
    print(f"\n{took_s:.0f} s in all, {memory.peak_bytes / 2**30:.1f} GiB at most", flush=True)
    return 0 if all(kept for kept, _ in result.verdict()) else 1


def _show(title: str, lines: list[str]) -> None:
    print(f"\n{title}\n")
    print(*lines, sep="\n", flush=True)


def _say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(*map(Path.resolve, map(Path, sys.argv[1:2]))))
