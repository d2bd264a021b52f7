"""What people do to a running engine: swap bundles, pause and resume, record.

Called from the control API's threads. A swap takes the tick's lock, so it lies between two ticks.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from resilience import __version__
from resilience.app import views
from resilience.app.bundles import Checked, Sources, check_sources, differences
from resilience.app.runtime import BUS_DEADLINE_MS, Runtime
from resilience.app.saved_state import unheard
from resilience.errors import ControlError, JournalError, SourceError
from resilience.model import Bundle, EngineConfig, JournalEntry, Json, OperatorEvent

NAMES_DEADLINE_MS = 5_000
PAUSE_MAX_MS = 30 * 24 * 3_600_000
TOLD_TO_THE_GATE = ("tiers", "tier_source", "tenants", "queue", "limiter", "budget", "ladder")
FIXED_AT_START = (
    "scrape_interval_ms", "retention_ms", "job", "prometheus", "max_series", "health",
)


class Operations:
    """The operations of one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._parts = runtime.parts

    # --- the bundle ----------------------------------------------------------------------------

    def check(self, sources: Sources, *, allow_missing: bool = False) -> Checked:
        """Check `sources` against the running target; raises FindingsError."""
        names: frozenset[str] | None
        try:
            names = self._parts.source.metric_names(deadline_ms=NAMES_DEADLINE_MS)
        except SourceError:
            names = None
        return check_sources(
            sources, metric_names=names or None,
            capabilities=self._parts.bus.ask_capabilities(NAMES_DEADLINE_MS),
            require_metrics=not (allow_missing or self._parts.allow_missing_metrics),
            scrape_interval_ms=self._parts.source.scrape_interval_ms,
            remote=self._parts.scraper is None,
        )

    def apply(
        self, sources: Sources, *, if_match: str | None = None, dry_run: bool = False,
        allow_missing: bool = False, action: str = "apply",
    ) -> Json:
        """Swap the whole bundle between two ticks, or say what that would change.

        Raises ControlError when `if_match` is not the active revision, FindingsError for documents
        that may not run; then nothing has changed.
        """
        with self._runtime.changes:
            return self._applied(sources, if_match, dry_run, allow_missing, action)

    def _applied(
        self, sources: Sources, if_match: str | None, dry_run: bool, allow_missing: bool,
        action: str,
    ) -> Json:
        checked = self.check(sources, allow_missing=allow_missing)
        active = self._parts.engine.bundle
        if if_match is not None and if_match not in (active.revision, "*"):
            raise ControlError(
                f"the active revision is `{active.revision}`, not `{if_match}`; look at the "
                "difference and apply again", code="conflict", status=412,
            )
        difference = differences(active, checked.bundle)
        if checked.bundle.revision != active.revision:
            if dry_run:
                self._parts.udfs.prepare(checked.bundle).discard()
            else:
                self.adopt(checked.bundle, sources, action)
        return {
            "applied": not dry_run, **difference, "git_commit": checked.bundle.git_commit,
            "findings": [asdict(f) for f in checked.findings],
        }

    def adopt(self, bundle: Bundle, sources: Sources, action: str) -> None:
        """Make `bundle` the active one: sandbox first, then all at once, then the rest."""
        engine = self._parts.engine
        old_config = engine.bundle.config
        swap = self._parts.udfs.prepare(bundle)
        with ExitStack() as undo:
            undo.callback(swap.discard)
            self._parts.bundles.save(bundle.revision, sources, active=engine.bundle.revision)
            with self._runtime.lock:
                if self._runtime.ended:
                    raise ControlError("the engine is stopping", code="stopping", status=503)
                now_ms = self._parts.clock.now_ms()
                decisions = engine.swap(bundle, now_ms, [_history(bundle, action, now_ms)])
                undo.pop_all()
                swap.commit()
                executions = self._parts.bus.drive(
                    decisions, engine.snapshot().claims, now_ms, BUS_DEADLINE_MS
                )
        self._parts.on_decisions(decisions)
        self._runtime.keep(executions)
        self._runtime.follow(bundle)
        self._runtime.set_intervals()
        self._configure(old_config, bundle.config)

    def remember(self, bundle: Bundle, action: str) -> None:
        """Write down that `bundle` is the active one from now on."""
        self._parts.journal.append([_history(bundle, action, self._parts.clock.now_ms())])

    def _configure(self, old: EngineConfig, new: EngineConfig) -> None:
        """Tell the gate about other tiers; what only a restart changes is said."""
        self._parts.bus.correct_drift = new.on_drift == "correct"
        self._parts.files.limit(new.record_max_bytes, new.record_files)
        if self._parts.notifier is not None:
            self._parts.notifier.configure(new)
        self._runtime.notify()
        if any(getattr(old, n) != getattr(new, n) for n in TOLD_TO_THE_GATE):
            self._runtime.tell_gate()
        changed = [n for n in FIXED_AT_START if getattr(old, n) != getattr(new, n)]
        if changed:
            self._parts.say(f"takes effect at the next start: {', '.join(changed)}")

    # --- break-glass -----------------------------------------------------------------------------

    def pause(self, policy: str, for_ms: int | None, reason: str) -> Json:
        """Suspend a policy, or `*`, until it is resumed or `for_ms` is over."""
        self._known(policy)
        if for_ms is not None and not 0 < for_ms <= PAUSE_MAX_MS:
            raise ControlError(
                "a pause lasts longer than 0 and at most 30 days", code="bad_request")
        until_ms = None if for_ms is None else self._parts.clock.now_ms() + for_ms
        name = None if policy == views.ALL_POLICIES else policy
        self._operate(OperatorEvent("pause", name, until_ms, reason))
        return {"policy": policy, "paused": True, "until_ms": until_ms, "reason": reason}

    def resume(self, policy: str, reason: str) -> Json:
        """End a pause. `*` also takes the core back from whoever fenced this engine.

        The answer says whether there was a pause, and what one of all policies leaves paused."""
        self._known(policy)
        paused = self._parts.engine.paused(self._parts.clock.now_ms())
        name = None if policy == views.ALL_POLICIES else policy
        fenced = name is None and self._parts.bus.fenced
        if fenced:
            self._parts.bus.take_over(deadline_ms=BUS_DEADLINE_MS)
            self._runtime.say_taken_back()
        self._operate(OperatorEvent("resume", name, None, reason))
        released = self._parts.bus.view().released is not None
        everyone = views.ALL_POLICIES
        was = bool(paused) if name is None else policy in paused
        return {
            "policy": policy, "was_paused": was, "paused": name is not None and everyone in paused,
            "until_ms": None if name is None else paused.get(everyone), "taken_back": fenced,
            "released": released,
        }

    def _known(self, policy: str) -> None:
        names = {p.name for p in self._parts.engine.bundle.policies}
        if policy != views.ALL_POLICIES and policy not in names:
            raise ControlError(
                f"no policy `{policy}`; `resilience get policies` lists them", code="not_found",
                status=404,
            )

    def _operate(self, event: OperatorEvent) -> None:
        now_ms = self._parts.clock.now_ms()
        body = {
            "t_ms": now_ms, "action": event.kind, "policy": event.policy,
            "until_ms": event.until_ms, "reason": event.reason,
        }
        if self._parts.engine.crowded:
            raise ControlError(
                "too many pauses and resumes wait for the next tick; try again after it",
                code="busy", status=503)
        key = f"{now_ms:015}/{event.kind}/{event.policy}"
        row = JournalEntry("operator", key, body)
        try:
            self._parts.journal.append([row, unheard(event, key)])
        except JournalError:  # break-glass works on a full disk
            self._runtime.records.write([row])
            key = ""
        self._parts.engine.operator(event, key)
        if self._runtime.canary is not None:
            self._runtime.canary.operator(event)

    # --- recording -------------------------------------------------------------------------------

    def record(self, action: str, path: Json) -> Json:
        """Begin or end a recording of samples and events; raises ControlError."""
        recorder = self._parts.recorder
        if recorder is None:
            raise ControlError("this engine cannot record", code="refused")
        if action == "stop":
            return {"recording": False, "path": _text(recorder.stop())}
        if action != "start" or not isinstance(path, str) or not path:
            raise ControlError("say `start` with a `path`, or `stop`", code="bad_request")
        from resilience.sources.recording import RecordingMeta

        meta = RecordingMeta(
            "resilience", __version__, self._parts.source.scrape_interval_ms,
            revision=self._parts.engine.bundle.revision,
        )
        with self._runtime.lock:
            recorder.start(Path(path).absolute(), meta)
            self._parts.engine.begin_recording()
        return {"recording": True, "path": _text(recorder.path)}


def _history(bundle: Bundle, action: str, now_ms: int) -> JournalEntry:
    """Return the row that says which bundle is active from `now_ms` on."""
    return JournalEntry("bundle", f"{now_ms:015}/{action}/{bundle.revision}", {
        "t_ms": now_ms, "revision": bundle.revision, "git_commit": bundle.git_commit,
        "action": action, "policies": len(bundle.policies),
    })


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
