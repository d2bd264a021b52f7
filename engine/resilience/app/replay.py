"""Make one recorded decision again, offline: the same pure call over the inputs that were kept."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from resilience import __version__
from resilience.app.bundle_store import BundleStore
from resilience.app.bundles import Checked, Sources, check_sources
from resilience.app.inputs import KIND, TickInputs, code_digest
from resilience.app.journal import SqliteJournal
from resilience.app.mask import Mask
from resilience.errors import ControlError, FindingsError
from resilience.model import Bundle, Decision, Json, canonical_json
from resilience.policy.decide import decide, revise

INPUTS_SEARCHED = 1_000


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay. `recomputed` None: no decision came of the same inputs.

    `differences` are the fields that differ; `policy` is `same`, `changed` or `removed` in
    `revision_now`, which is the active bundle or the rules to compare with.
    """

    recorded: Json
    recomputed: Json | None
    differences: tuple[str, ...]
    engine_version: str
    code_changed: bool
    policy: str
    revision_now: str
    mask: Mask = Mask()

    @property
    def same(self) -> bool:
        return self.recomputed is not None and not self.differences

    def to_json(self) -> Json:
        return {
            "decision_id": self.recorded["id"], "same": self.same,
            "differences": list(self.differences), "recorded": self.mask.of(self.recorded),
            "recomputed": self.mask.of(self.recomputed) if self.recomputed is not None else None,
            "code": {"changed": self.code_changed, "engine_version": self.engine_version,
                     "engine_version_now": __version__},
            "policy": {"state": self.policy, "revision": self.recorded["revision"],
                       "revision_now": self.revision_now},
        }


def replay(
    decision_id: str, journal: SqliteJournal, bundles: BundleStore, *, now: Sources | None = None
) -> Replayed:
    """Recompute the decision whose id begins with `decision_id`; raises ControlError.

    `now`: the rules to compare the policy with; without them the last applied bundle.
    """
    recorded = _recorded(journal, decision_id)
    inputs = _inputs_of(journal, recorded)
    recomputed = _again(inputs, bundles, recorded["id"])
    body = None if recomputed is None else recomputed.to_json()
    today = check_sources(now).bundle if now is not None else _active(journal, bundles)
    return Replayed(
        recorded, body, _differences(recorded, body), inputs.engine_version,
        inputs.code != code_digest(), _policy_state(recorded, today),
        today.revision if today is not None else "",
        Mask.configured(today.config) if today is not None else Mask(),
    )


def _recorded(journal: SqliteJournal, decision_id: str) -> Json:
    found = journal.recent("decision", limit=2, key_prefix=decision_id)
    if not found:
        raise ControlError(
            f"no decision `{decision_id}` is kept here; `resilience get decisions` lists them, "
            "`--state` names another state folder", code="not_found", status=404,
        )
    if len(found) > 1:
        raise ControlError(
            f"`{decision_id}` fits several decisions; write more of it", code="ambiguous"
        )
    return found[0]


def _inputs_of(journal: SqliteJournal, recorded: Json) -> TickInputs:
    rows = journal.recent(KIND, limit=INPUTS_SEARCHED, key_prefix=f"{recorded['t_ms']:015}/")
    row = next((r for r in rows if recorded["id"] in r["ids"]), None)
    if row is None:
        raise ControlError(
            f"the inputs of decision `{recorded['id']}` are not kept (any more); a recording of "
            "that time replays it with `resilience apply RULES --dry-run --recording FILE`",
            code="not_found", status=404,
        )
    try:
        return TickInputs.of_row(row)
    except ValueError as error:
        raise ControlError(
            f"{error}; the engine that wrote them was another version", status=500
        ) from error


def _again(inputs: TickInputs, bundles: BundleStore, decision_id: str) -> Decision | None:
    bundle = _bundle(bundles, inputs.revision)
    if inputs.before is not None:
        before = _bundle(bundles, inputs.before)
        _, decisions = revise(
            before.policies, bundle.policies, inputs.state, inputs.t_ms, inputs.revision
        )
    else:
        wanted = set(inputs.policies)
        policies = [p for p in bundle.policies if p.name in wanted]
        _, decisions = decide(
            policies, inputs.state, inputs.observations, inputs.t_ms, inputs.revision, bundle
        )
    return next((d for d in decisions if d.id == decision_id), None)


def _bundle(bundles: BundleStore, revision: str) -> Bundle:
    try:
        return check_sources(bundles.load(revision)).bundle
    except FindingsError as error:
        raise ControlError(
            f"this engine no longer accepts the rules `{revision}`: {error}", status=422
        ) from error


def _active(journal: SqliteJournal, bundles: BundleStore) -> Bundle | None:
    rows = journal.recent("bundle", limit=1)
    if not rows:
        return None
    with suppress(ControlError, FindingsError):
        checked: Checked = check_sources(bundles.load(str(rows[0]["revision"])))
        return checked.bundle
    return None


def _policy_state(recorded: Mapping[str, Json], today: Bundle | None) -> str:
    found = next(
        (p for p in (today.policies if today else ()) if p.name == recorded["policy"]), None
    )
    if found is None:
        return "removed"
    return "same" if found.spec_hash == recorded["spec_hash"] else "changed"


def _differences(recorded: Json, recomputed: Json | None) -> tuple[str, ...]:
    if recomputed is None:
        return ()
    return tuple(
        name for name in sorted(recorded.keys() | recomputed.keys())
        if canonical_json(recorded.get(name)) != canonical_json(recomputed.get(name))
    )
