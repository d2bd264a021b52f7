"""Compile the optional kernel of the PromQL evaluator in place.

Needs a C compiler ($CC, else cc) and Python's headers; says what is missing, and everything works
without it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

TIMEOUT_S = 120
FOLDER = Path(__file__).resolve().parents[2] / "engine" / "resilience" / "promql"


def build() -> Path:
    """Return the built file. Raises RuntimeError with the reason if it cannot be built."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    include = Path(sysconfig.get_paths()["include"])
    if shutil.which(compiler[0]) is None:
        raise RuntimeError(f"no C compiler `{compiler[0]}`: install one or set CC")
    if not (include / "Python.h").exists():
        raise RuntimeError("no Python headers: install the python3-dev package")
    target = FOLDER / f"_kernel{sysconfig.get_config_var('EXT_SUFFIX')}"
    sources = [str(FOLDER / name) for name in ("_kernel.c", "_labels.c", "_pages.c")]
    partial = target.with_name(f"{target.stem}.{os.getpid()}.partial.so")
    command = [
        *compiler, "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-shared",
        "-fPIC", "-std=c11", f"-I{include}", *sources, "-o", str(partial), "-lm",
    ]
    if sys.platform == "darwin":
        command += ["-undefined", "dynamic_lookup"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["the compiler failed"])[-1])
        partial.replace(target)  # at once: a process may have the old one loaded
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(str(error)) from None
    finally:
        partial.unlink(missing_ok=True)
    return target


def build_if_possible() -> str:
    """Build it where that can be done and say in one line what came of it; never fails."""
    try:
        return f"compiled the PromQL kernel ({build().name})"
    except (RuntimeError, OSError) as error:
        return f"no compiled PromQL kernel: {error}; everything works without it"


if __name__ == "__main__":
    print(build_if_possible())
