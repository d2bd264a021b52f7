"""Find a Chromium for the tests of the report's page, or install Debian's.

`python -m tools.browser` prints where one is. Where there is none it installs the package
`chromium` by apt, which takes root; on any other machine it says why it cannot, exits with 1, and
the tests skip. Only CI calls it: a browser is a large thing to put on somebody's machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VARIABLE = "RESILIENCE_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
PACKAGES = ("chromium", "fonts-dejavu-core")
TIMEOUT_S = 600


def main() -> int:
    where = find()
    why = install() if where is None else None
    where = where or find()
    if where is None:
        print(f"browser: {why}; tests of the report's page are skipped", file=sys.stderr)
        return 1
    print(where)
    return 0


def find() -> Path | None:
    """Return the Chromium that RESILIENCE_CHROMIUM names, else the first on the path."""
    chosen = os.environ.get(VARIABLE)
    for name in (chosen,) if chosen else NAMES:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    return None


def install() -> str | None:
    """Install Debian's package; return why it could not be done, None when it was."""
    if shutil.which("apt-get") is None:
        return "there is no Chromium and no apt-get on this machine"
    if os.geteuid() != 0:
        return "there is no Chromium, and installing one takes root: apt-get install chromium"
    for words in (("update",), ("install", "-y", "--no-install-recommends", *PACKAGES)):
        why = _apt(*words)
        if why is not None:
            return why
    return None


def _apt(*words: str) -> str | None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            ["apt-get", "-qq", *words], env=environment, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"apt-get {words[0]} failed: {error}"
    if done.returncode == 0:
        return None
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no reason given"]
    return f"apt-get {words[0]} failed: {lines[-1]}"


if __name__ == "__main__":
    sys.exit(main())
