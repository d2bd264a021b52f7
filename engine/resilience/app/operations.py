"""What people do to a running engine: swap bundles, pause and resume, record.

Called from the control API's threads. A swap takes the tick's lock, so it lies between two ticks.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from resilience import __version__
from resilience.app import views
from resilience.app.bundles import Checked, Sources, check_sources, differences
from resilience.app.runtime import BUS_DEADLINE_MS, Runtime
from resilience.errors import ControlError, CoreError, JournalError, SourceError
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
            sources, metric_names=names or None, capabilities=self._parts.bus.capabilities,
            require_metrics=not (allow_missing or self._parts.allow_missing_metrics),
            scrape_interval_ms=self._parts.source.scrape_interval_ms,
        )

    def apply(
        self, sources: Sources, *, if_match: str | None = None, dry_run: bool = False,
        allow_missing: bool = False, action: str = "apply",
    ) -> Json:
        """Swap the whole bundle between two ticks, or say what that would change.

        Raises ControlError when `if_match` is not the active revision, FindingsError for documents
        that may not run; then nothing has changed.
        """
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
        engine, now_ms = self._parts.engine, self._parts.clock.now_ms()
        old_config = engine.bundle.config
        swap = self._parts.udfs.prepare(bundle)
        self._parts.bundles.save(bundle.revision, sources)
        with self._runtime.lock:
            try:
                decisions = engine.swap(bundle, now_ms)
            except JournalError:
                swap.discard()
                raise
            swap.commit()
            executions = self._parts.bus.drive(
                decisions, engine.snapshot().claims, now_ms, BUS_DEADLINE_MS
            )
        self.remember(bundle, action)
        self._parts.on_decisions(decisions)
        self._runtime.keep(executions)
        self._runtime.forget(bundle)
        self._parts.on_intervals(self._runtime.intervals())
        self._configure(old_config, bundle.config)

    def remember(self, bundle: Bundle, action: str) -> None:
        """Write down that `bundle` is the active one from now on."""
        now_ms = self._parts.clock.now_ms()
        body = {
            "t_ms": now_ms, "revision": bundle.revision, "git_commit": bundle.git_commit,
            "action": action, "policies": len(bundle.policies),
        }
        key = f"{now_ms:015}/{action}/{bundle.revision}"
        self._parts.journal.append([JournalEntry("bundle", key, body)])

    def _configure(self, old: EngineConfig, new: EngineConfig) -> None:
        """Tell the gate about other tiers; what only a restart changes is said."""
        self._parts.bus.correct_drift = new.on_drift == "correct"
        self._parts.files.limit(new.record_max_bytes, new.record_files)
        if self._parts.notifier is not None:
            self._parts.notifier.configure(new)
        self._runtime.notify()
        changed = [n for n in TOLD_TO_THE_GATE if getattr(old, n) != getattr(new, n)]
        if changed and self._parts.configure:
            try:
                self._parts.configure(new)
            except CoreError as error:
                self._runtime.note("gate", f"the gate did not take the new tiers: {error}")
        changed = [n for n in FIXED_AT_START if getattr(old, n) != getattr(new, n)]
        if changed:
            self._parts.say(f"takes effect at the next start: {', '.join(changed)}")

    # --- break-glass -----------------------------------------------------------------------------

    def pause(self, policy: str, for_ms: int | None, reason: str) -> Json:
        """Suspend a policy, or `*`, until it is resumed or `for_ms` is over."""
        self._known(policy)
        if for_ms is not None and not 0 < for_ms <= PAUSE_MAX_MS:
            raise ControlError("a pause lasts at most 30 days", code="bad_request")
        until_ms = None if for_ms is None else self._parts.clock.now_ms() + for_ms
        name = None if policy == views.ALL_POLICIES else policy
        self._operate(OperatorEvent("pause", name, until_ms, reason))
        return {"policy": policy, "paused": True, "until_ms": until_ms, "reason": reason}

    def resume(self, policy: str, reason: str) -> Json:
        """End a pause. `*` also takes the core back from whoever fenced this engine."""
        self._known(policy)
        name = None if policy == views.ALL_POLICIES else policy
        if name is None and self._parts.bus.fenced:
            self._parts.bus.take_over(deadline_ms=BUS_DEADLINE_MS)
            self._runtime.say_fenced_again()
        self._operate(OperatorEvent("resume", name, None, reason))
        released = self._parts.bus.view().released is not None
        return {"policy": policy, "paused": False, "released": released}

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
        key = f"{now_ms:015}/{event.kind}/{event.policy}"
        self._parts.engine.operator(event)
        if self._runtime.canary is not None:
            self._runtime.canary.operator(event)
        try:
            self._parts.journal.append([JournalEntry("operator", key, body)])
        except JournalError as error:  # break-glass works on a full disk; `history` lacks it
            self._runtime.note("journal", str(error))

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


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
