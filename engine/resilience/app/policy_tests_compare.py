"""What a test expected beside what there was: pure comparison, and lines that show it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from resilience import knobs
from resilience.model import (
    Action,
    Claim,
    Decision,
    Impulse,
    Json,
    Labels,
    Policy,
    Reason,
    State,
    Truth,
    canonical_json,
    format_duration,
    format_float,
)
from resilience.policy.cases import Expectation, WantedClaim
from resilience.policy.document import Place

NONE = "none"


@dataclass(frozen=True, slots=True)
class View:
    """One instance of a policy at one moment. `claims` are in force, `outcomes` are the UDF calls
    of the newest tick, `fired`: it fired earlier in the test or now, `probing`: a probe is under
    way, `checked`: what has come of its `verify` and `guard`, as parts of coverage."""

    labels: Labels
    state: State
    reason: Reason
    value: float | None
    truth: Truth
    held_from: State | None = None
    claims: tuple[Claim, ...] = ()
    actions: tuple[Action, ...] = ()
    outcomes: tuple[Json, ...] = ()
    stages: int = 0
    fired: bool = False
    probing: bool = False
    checked: frozenset[str] = frozenset()

    @property
    def why(self) -> Reason:
        """Return the reason as a decision gives it: a failed UDF explains more than the trigger."""
        failed = any(o["outcome"] != "ok" for o in self.outcomes)
        return Reason.UDF_ERROR if failed and self.state is State.FIRING else self.reason

    def __str__(self) -> str:
        return label_text(self.labels)


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything that an expectation may look at: the chosen instances, all of the policy, its
    impulses so far, and the live claims of all policies. `detail` is why the trigger has no
    answer."""

    policy: Policy
    chosen: tuple[View, ...]
    views: tuple[View, ...]
    impulses: tuple[Impulse, ...]
    live: tuple[Claim, ...]
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """One expectation that did not hold. `at_ms` None: it is about the test as a whole.
    `about` is the field; `expected` and `got` are lines that only one side has; `history` are the
    last decisions before."""

    place: Place
    at_ms: int | None
    policy: str
    labels: Labels
    about: str
    message: str = ""
    expected: tuple[str, ...] = ()
    got: tuple[str, ...] = ()
    history: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """Return one line without the place."""
        if self.at_ms is None:
            return self.message
        who = self.policy + (f" {label_text(self.labels)}" if self.labels else "")
        return f"at {format_duration(self.at_ms)}: {who}: {self.message}"


def differences(
    expectation: Expectation, moment: Moment, history: Sequence[Decision]
) -> Iterator[Failure]:
    """Yield a failure for each field that is not as expected; the last one tells what led there."""
    found = list(_failures(expectation, moment))
    told = tuple(history_line(d) for d in history)
    if moment.detail is not None:
        told = (*told, f"the trigger has no answer: {moment.detail}")
    yield from found[:-1]
    yield from (replace(last, history=told) for last in found[-1:])


def _failures(expectation: Expectation, moment: Moment) -> Iterator[Failure]:
    if not moment.chosen:
        there = ", ".join(str(v) for v in moment.views)
        yield _failure(expectation, "labels",
                       f"no instance has these labels; there are {there}")
        return
    for name, compare in _FIELDS.items():
        if getattr(expectation, name) is None:
            continue
        expected, got = compare(expectation, moment)
        if expected or got:
            yield _failure(expectation, name, f"{name} differs", expected, got)


def _failure(
    expectation: Expectation, name: str, message: str,
    expected: Iterable[str] = (), got: Iterable[str] = (),
) -> Failure:
    return Failure(
        expectation.places.get(name, expectation.place), expectation.at_ms, expectation.policy,
        expectation.labels, name, message, tuple(expected), tuple(got),
    )


Lines = tuple[list[str], list[str]]
SAME: Lines = ([], [])


def _state(expectation: Expectation, moment: Moment) -> Lines:
    others = [v for v in moment.chosen if v.state is not expectation.state]
    return _pair(str(expectation.state), [_named(v, _state_text(v), moment) for v in others])


def _state_text(view: View) -> str:
    beneath = f" from {view.held_from}" if view.held_from else ""
    return f"{view.state}{beneath} (reason {view.why})"


def _reason(expectation: Expectation, moment: Moment) -> Lines:
    others = [v for v in moment.chosen if v.why is not expectation.reason]
    return _pair(str(expectation.reason), [_named(v, str(v.why), moment) for v in others])


def _value(expectation: Expectation, moment: Moment) -> Lines:
    wanted = expectation.value
    others = [v for v in moment.chosen if not _same(v.value, wanted)]
    return _pair(_shown(wanted), [_named(v, _shown(v.value), moment) for v in others])


def _pair(expected: str, got: list[str]) -> Lines:
    return ([expected], got) if got else SAME


def _named(view: View, text: str, moment: Moment) -> str:
    return f"{text} {view}" if len(moment.chosen) > 1 else text


def _claims(expectation: Expectation, moment: Moment) -> Lines:
    held = [WantedClaim(c.knob, c.scope, c.value) for v in moment.chosen for c in v.claims]
    return _unmatched(expectation.claims or (), held, _same_claim, _claim_text)


def _same_claim(a: WantedClaim, b: WantedClaim) -> bool:
    return (a.knob, a.scope) == (b.knob, b.scope) and _same(a.value, b.value)


def _claim_text(claim: WantedClaim) -> str:
    scope = label_text(claim.scope) if claim.scope else ""
    value = NONE if claim.value is None else _shown(claim.value)
    return f"{claim.knob}{scope} = {value}"


def _actions(expectation: Expectation, moment: Moment) -> Lines:
    """A key is compared with keys, a type with types; each action is taken once."""
    rest = [a for v in moment.chosen for a in v.actions]
    expected: list[str] = []
    for word in sorted(expectation.actions or (), key=lambda w: not w[-1].isdigit()):
        found = next((a for a in rest if word in (a.key, a.type)), None)
        if found is None:
            expected.append(word)
        else:
            rest.remove(found)
    return expected, [f"{a.type} (key {a.key})" for a in rest]


def _impulses(expectation: Expectation, moment: Moment) -> Lines:
    wanted = expectation.impulses or ()
    pairs = zip(wanted, moment.impulses, strict=False)
    same = len(wanted) == len(moment.impulses) and all(
        w.impulse == i.impulse and (w.args is None or _same(i.args, w.args)) for w, i in pairs
    )
    if same:
        return SAME
    return (
        [_call(w.impulse, w.args) for w in wanted] or [NONE],
        [_call(i.impulse, i.args) for i in moment.impulses] or [NONE],
    )


def _call(name: str, args: Json) -> str:
    return name if args is None else f"{name} {_shown(args)}"


def _udf(expectation: Expectation, moment: Moment) -> Lines:
    outcomes = [o for v in moment.chosen for o in v.outcomes]
    wanted = [{"function": w.function, "outcome": w.outcome, "result": w.result}
              for w in expectation.udf or ()]
    return _unmatched(wanted, outcomes, _same_outcome, _outcome_text)


def _same_outcome(wanted: Json, outcome: Json) -> bool:
    if any(outcome[k] != wanted[k] for k in ("function", "outcome")):
        return False
    result = outcome["result"] if isinstance(outcome["result"], Mapping) else {}
    return all(k in result and _same(result[k], v) for k, v in (wanted["result"] or {}).items())


def _outcome_text(outcome: Json) -> str:
    detail = f" ({outcome['detail']})" if outcome.get("detail") else ""
    result = "" if outcome["result"] is None else f" {_shown(outcome['result'])}"
    return f"{outcome['function']}: {outcome['outcome']}{result}{detail}"


def _undone(expectation: Expectation, moment: Moment) -> Lines:
    fired = any(v.fired for v in moment.chosen)
    active = [v for v in moment.chosen if v.state is not State.INACTIVE or v.claims]
    undone = fired and not active
    if undone == expectation.undone:
        return SAME
    claims = [f"holds {_claim_text(WantedClaim(c.knob, c.scope, c.value))}"
              for v in active for c in v.claims]
    still = [f"is {_named(v, _state_text(v), moment)}" for v in active]
    got = ["undone"] if undone else [*still, *claims] or ["never fired"]
    return ["undone" if expectation.undone else "not undone"], got


def _effective(expectation: Expectation, moment: Moment) -> Lines:
    live = [
        knobs.LiveClaim(c.knob, c.scope, c.value, c.policy, c.priority, 0) for c in moment.live
    ]
    folded = knobs.fold(live)
    expected: list[str] = []
    got: list[str] = []
    for wanted in expectation.effective or ():
        ruling = folded.get(wanted.knob, {}).get(knobs.scope_text(wanted.scope))
        value = None if ruling is None else ruling.value
        if not _same(value, wanted.value):
            expected.append(_claim_text(wanted))
            by = f" (by {ruling.policy})" if ruling else ""
            got.append(_claim_text(WantedClaim(wanted.knob, wanted.scope, value)) + by)
    return expected, got


_FIELDS = {
    "state": _state, "reason": _reason, "value": _value, "claims": _claims, "actions": _actions,
    "impulses": _impulses, "udf": _udf, "undone": _undone, "effective": _effective,
}


def _unmatched(wanted: Sequence[Json], there: Sequence[Json], same: Json, text: Json) -> Lines:
    """Pair each wanted item with one that is there; return what is left on both sides."""
    rest = list(there)
    missing: list[str] = []
    for item in wanted:
        found = next((i for i, other in enumerate(rest) if same(item, other)), None)
        if found is None:
            missing.append(text(item))
        else:
            del rest[found]
    return missing, [text(item) for item in rest]


def _same(a: Json, b: Json) -> bool:
    """Compare JSON values; numbers within rounding, NaN equals itself, true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) or (a != a and b != b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _shown(value: Json) -> str:
    if value is None:
        return NONE
    if isinstance(value, int | float) and not isinstance(value, bool):
        return format_float(float(value))
    return value if isinstance(value, str) else canonical_json(value)


def label_text(labels: Labels) -> str:
    """Return labels as PromQL writes them; `{}` for none."""
    return "{" + ", ".join(f'{k}="{v}"' for k, v in labels) + "}"


def history_line(decision: Decision) -> str:
    """Return one decision of a test in a few words."""
    before = {_claim_text(WantedClaim(c.knob, c.scope, c.value)) for c in decision.claims_before}
    after = {_claim_text(WantedClaim(c.knob, c.scope, c.value)) for c in decision.claims_after}
    changes = [*(f"+ {t}" for t in sorted(after - before)),
               *(f"- {t}" for t in sorted(before - after))]
    labels = f" {label_text(decision.labels)}" if decision.labels else ""
    move = f"{decision.from_state} -> {decision.to_state} ({decision.reason}){labels}"
    return "  ".join([format_duration(decision.t_ms), move, *changes])
