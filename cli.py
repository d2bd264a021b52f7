"""Launcher for a checkout: `python cli.py …`; installed, the same command is `resilience …`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "engine"))
from resilience.__main__ import main  # noqa: E402

if __name__ == "__main__":
    main()
