"""What people do with a candidate bundle: let it run in shadow, compare, promote or discard it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict

from resilience.app.bundles import Checked, Sources, differences
from resilience.app.canary import Canary, Started, remembered
from resilience.app.canary_compare import compare
from resilience.app.operations import Operations
from resilience.app.runtime import Runtime
from resilience.app.udfs import open_runner
from resilience.errors import ControlError, ResilienceError
from resilience.model import Json

DECISIONS_MAX = 2_000


class Candidates:
    """The one candidate of a runtime, if there is one."""

    def __init__(self, runtime: Runtime, *, threads: bool = True) -> None:
        self._runtime = runtime
        self._parts = runtime.parts
        self._operations = Operations(runtime)
        self._threads = threads

    def begin(
        self, sources: Sources, *, dry_run: bool = False, allow_missing: bool = False
    ) -> Json:
        """Let a bundle decide beside the active one; another candidate makes room.

        Raises FindingsError for a bundle that could not be applied, ControlError for the active.
        """
        with self._runtime.changes:
            return self._begun(sources, dry_run, allow_missing)

    def _begun(self, sources: Sources, dry_run: bool, allow_missing: bool) -> Json:
        checked = self._operations.check(sources, allow_missing=allow_missing)
        active = self._parts.engine.bundle
        if checked.bundle.revision == active.revision:
            raise ControlError(
                f"`{active.revision}` is the active revision: there is nothing to compare it with"
            )
        answer = {
            "applied": False, "shadow": not dry_run, **differences(active, checked.bundle),
            "git_commit": checked.bundle.git_commit,
            "findings": [asdict(f) for f in checked.findings],
        }
        if not dry_run:
            self._replace(checked, sources)
        return answer

    def _replace(self, checked: Checked, sources: Sources) -> None:
        started = Started(checked.bundle.revision, self._parts.clock.now_ms())
        self._parts.bundles.candidates.save(started.revision, sources)
        with ExitStack() as undo:
            fresh = self._make(checked, sources, started)
            undo.callback(fresh.close)
            self._drop(started.revision)
            with self._runtime.lock:
                engine = self._parts.engine
                fresh.begin(engine.bundle, engine.state, started.since_ms)
                self._use(fresh)
            undo.pop_all()

    def _make(self, checked: Checked, sources: Sources, started: Started) -> Canary:
        return Canary(
            checked, sources, started, source=self._parts.source, journal=self._parts.journal,
            files=self._parts.files, udfs=open_runner(checked.bundle),
            failed=self._runtime.troubles.failed, well=self._runtime.troubles.well,
            threads=self._threads,
        )

    def _use(self, canary: Canary) -> None:
        canary.start(self._parts.bus.capabilities)
        self._runtime.canary = canary
        self._runtime.set_intervals()

    def restore(self) -> None:
        """Go on with the candidate of the last run; one that can no longer run is dropped."""
        started = remembered(self._parts.journal)
        if started is None:
            return
        if started.revision == self._parts.engine.bundle.revision:
            self._forget()
            return
        try:
            sources = self._kept(started.revision)
            checked = self._operations.check(sources, allow_missing=True)
            with ExitStack() as undo:
                canary = self._make(checked, sources, started)
                undo.callback(canary.close)
                self._use(canary)
                undo.pop_all()
        except ResilienceError as error:
            self._parts.say(f"the candidate {started.revision} was dropped: {error}")
            self._forget()

    def _kept(self, revision: str) -> Sources:
        """Return what the candidate was made from; older engines kept it with what was applied."""
        bundles = self._parts.bundles
        apart = bundles.candidates
        return (apart if revision in apart.revisions() else bundles).load(revision)

    def _forget(self, successor: str | None = None) -> None:
        from resilience.app.canary import forget

        forget(self._parts.journal)
        self._parts.bundles.candidates.clear(but=successor)

    def _drop(self, successor: str | None = None) -> Canary | None:
        """Stop the candidate and forget it, but not what `successor` was made from."""
        with self._runtime.lock:
            canary, self._runtime.canary = self._runtime.canary, None
        if canary is not None:
            canary.close()
            self._runtime.troubles.well("canary")
            self._runtime.set_intervals()
            self._forget(successor)
        return canary

    def _needed(self, revision: str | None) -> Canary:
        canary = self._runtime.canary
        if canary is None:
            raise ControlError(
                "no candidate runs; start one with `resilience apply RULES --shadow`",
                code="not_found", status=404,
            )
        if revision and revision not in (canary.bundle.revision, "*"):
            raise ControlError(
                f"the candidate is `{canary.bundle.revision}`, not `{revision}`; look at "
                "`resilience get canary` again", code="conflict", status=412,
            )
        return canary

    def promote(self, revision: str | None = None) -> Json:
        """Make the candidate the active bundle, as an apply would."""
        with self._runtime.changes:
            canary = self._needed(revision)
            answer: Json = self._operations.apply(
                canary.sources, allow_missing=True, action="promote"
            )
            self._drop()
            return answer

    def discard(self, revision: str | None = None) -> Json:
        """Stop the candidate; the active bundle goes on."""
        with self._runtime.changes:
            canary = self._needed(revision)
            self._drop()
        return {"discarded": canary.bundle.revision}

    def view(self) -> Json:
        """Return what the candidate decided beside the active bundle since it began."""
        canary = self._needed(None)
        active = self._parts.engine.bundle
        return {
            **self._runtime.overview.canary_brief(), **differences(active, canary.bundle),
            **self._compared(canary),
        }

    def _compared(self, canary: Canary) -> Json:
        journal, since_ms = self._parts.journal, canary.started.since_ms
        theirs = journal.recent("canary_decision", limit=DECISIONS_MAX, since_ms=since_ms)
        ours = journal.recent("decision", limit=DECISIONS_MAX, since_ms=since_ms)
        full = [found[0]["t_ms"] for found in (ours, theirs) if len(found) == DECISIONS_MAX]
        from_ms, upto_ms = max(full, default=since_ms), canary.upto_ms or since_ms
        mask = self._runtime.mask()
        return {"compared_from_ms": from_ms, **compare(*(
            [mask.of(d) for d in found
             if from_ms <= d["t_ms"] <= upto_ms and d["reason"] != "revision"]
            for found in (ours, theirs)
        ))}
