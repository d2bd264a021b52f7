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
    command = [
        *compiler, "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-shared",
        "-fPIC", "-std=c11", f"-I{include}", str(FOLDER / "_kernel.c"), "-o", str(target), "-lm",
    ]
    if sys.platform == "darwin":
        command += ["-undefined", "dynamic_lookup"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return target


if __name__ == "__main__":
    try:
        print(f"built {build().name}")
    except RuntimeError as error:
        sys.exit(str(error))
