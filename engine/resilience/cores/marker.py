"""A release by an operator, remembered beside the token: a server that restarts stays released."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from resilience.model import Json

MARKER_FILE = "core.released"


class MarkerFile:
    """One small JSON file. Where the folder cannot be written (a mounted secret) the release holds
    for the life of the server process only."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / MARKER_FILE

    def read(self) -> Mapping[str, Json] | None:
        """Return what the file says; one that cannot be read still means released."""
        try:
            body = json.loads(self._path.read_text(encoding="utf-8"))
            return {"t_ms": int(body["t_ms"]), "reason": str(body["reason"])}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return {"t_ms": 0, "reason": f"the file `{self._path}` says so"}

    def write(self, released: Mapping[str, Json]) -> None:
        fresh = self._path.with_suffix(".new")
        with suppress(OSError):
            fresh.write_text(json.dumps(dict(released)), encoding="utf-8")
            os.replace(fresh, self._path)

    def clear(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
