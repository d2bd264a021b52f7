"""Applied bundles in the state folder: what `rollback`, `replay` and a start without RULES go back
to. A candidate lies apart, so that it pushes no applied one out."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from resilience.app.bundles import Sources
from resilience.errors import ControlError
from resilience.model import canonical_json, digest16

STORED_MAX = 50
CANDIDATE = "candidate"


class BundleStore:
    """Applied bundles in the state folder, one file each by revision, the newest ones kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def candidates(self) -> BundleStore:
        """Where the one candidate is kept."""
        return BundleStore(self._folder / CANDIDATE)

    def save(self, revision: str, sources: Sources, *, active: str | None = None) -> None:
        """Keep what `revision` was made from; written aside and moved, so never half.

        The oldest gives way, but not this one, whatever the clock says, nor the one that is
        `active` now. Raises ControlError where it cannot be written.
        """
        path = self._path(revision)
        needed = {path} if active is None else {path, self._path(active)}
        kept = sources.to_json()
        body = canonical_json({"revision": revision, "digest": digest16(kept), **kept})
        fresh = path.with_suffix(".new")
        try:
            if self._folder.name == CANDIDATE:
                self._folder.mkdir(exist_ok=True, mode=0o700)
            fresh.write_text(body, encoding="utf-8")
            os.replace(fresh, path)
            others = [p for p in self._by_age() if p not in needed]
            for old in others[STORED_MAX - len(needed):]:
                old.unlink(missing_ok=True)
        except OSError as error:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
            reason = (error.strerror or str(error)).lower()
            raise ControlError(
                f"the bundle cannot be kept in `{self._folder}`: {reason}", code="failed",
                status=500,
            ) from error

    def load(self, revision: str) -> Sources:
        """Return the sources of `revision`, or of the only one that begins so."""
        stem = _stem(revision)
        found = [p for p in self._by_age() if p.stem.startswith(stem)]
        if not found:
            raise ControlError(
                f"revision `{revision}` is not kept here; `resilience history` lists them",
                code="not_found", status=404,
            )
        if len(found) > 1 and self._path(revision) not in found:
            raise ControlError(f"revision `{revision}` fits several; write more of it")
        path = self._path(revision) if self._path(revision) in found else found[0]
        try:
            return _kept(path)
        except (OSError, ValueError, KeyError, RecursionError, ControlError) as error:
            raise ControlError(
                f"the kept bundle `{path}` is damaged; apply the rules again", status=500
            ) from error

    def clear(self, *, but: str | None = None) -> None:
        """Forget all that is kept here `but` one revision; what cannot be removed stays."""
        left = None if but is None else self._path(but)
        with suppress(OSError):
            for path in self._by_age():
                if path != left:
                    path.unlink(missing_ok=True)

    def revisions(self) -> list[str]:
        """Return the kept revisions, newest first."""
        return [f"sha256:{p.stem}" for p in self._by_age()]

    def _path(self, revision: str) -> Path:
        return self._folder / f"{_stem(revision)}.json"

    def _by_age(self) -> list[Path]:
        return sorted(self._folder.glob("*.json"), key=lambda p: p.stat().st_mtime_ns, reverse=True)


def _kept(path: Path) -> Sources:
    """Read a file of `save`; one that somebody or something has changed is worth nothing."""
    body = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(body, dict):
        raise ValueError("not an object")
    del body["revision"]
    digest = body.pop("digest", None)  # older engines wrote none
    if digest not in (None, digest16(body)):
        raise ValueError("its content is not what was kept")
    return Sources.from_json(body)


def _stem(revision: str) -> str:
    """Return the hex digits of a revision; anything else must not become part of a path."""
    digits = revision.removeprefix("sha256:")
    if not digits or any(c not in "0123456789abcdef" for c in digits):
        raise ControlError(
            f"`{revision}` is not a revision; it looks like `sha256:0123456789ab`",
            code="bad_request",
        )
    return digits
