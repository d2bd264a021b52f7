"""A test document and the policies that it is about -> cases, or every name that does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilience import knobs
from resilience.model import (
    EngineConfig,
    Finding,
    Json,
    Labels,
    OperatorEvent,
    Policy,
    Reason,
    State,
    labels_of,
    parse_duration,
)
from resilience.policy.cases import (
    Case,
    Expectation,
    GivenEvent,
    GivenResult,
    Suite,
    WantedClaim,
    WantedImpulse,
    WantedUdf,
    all_actions,
)
from resilience.policy.document import Document, Map, Place
from resilience.policy.kinds import Actions
from resilience.policy.notation import InputSeries, NotationError, parse_labels, parse_values
from resilience.policy.places import value_place
from resilience.policy.shape import locate
from resilience.policy.words import did_you_mean, listed, quoted
from resilience.promql.parser import parse_checked
from resilience.promql.plan import Matcher, selectors

INTERVAL_DEFAULT = "15s"
TICKS_MAX = 200_000
Path = tuple[str | int, ...]


def build_suite(
    document: Document, policies: Sequence[Policy], config: EngineConfig, catalogue: Actions
) -> tuple[Suite | None, tuple[Finding, ...]]:
    """Return the suite, or None and what is wrong: notation, unknown names, nothing expected."""
    builder = _Builder(document, {p.name: p for p in policies}, config, catalogue)
    cases = tuple(builder.case(index) for index in range(len(document.data["tests"])))
    builder.check_names_of_cases()
    if builder.findings:
        return None, tuple(builder.findings)
    return Suite(document.file, tuple(p.name for p in policies), cases), ()


@dataclass(slots=True)
class _Builder:
    document: Document
    policies: Mapping[str, Policy]
    config: EngineConfig
    catalogue: Actions
    findings: list[Finding] = field(default_factory=list[Finding])

    def place(self, *path: str | int) -> Place:
        return locate(self.document, path)[1]

    def key(self, *path: str | int) -> Place:
        return locate(self.document, path)[0]

    def add(self, place: Place, code: str, message: str, suggestion: str | None = None) -> None:
        self.findings.append(self.document.finding(place, "error", code, message, suggestion))

    def unknown(self, place: Place, what: str, name: str, known: Iterable[str]) -> None:
        names = list(known)
        hint = did_you_mean(name, names) or (f"known are {listed(names)}" if names else None)
        self.add(place, "test-name", f"{what} {quoted(name)} is not known here", hint)

    # --- one case --------------------------------------------------------------------------------

    def case(self, index: int) -> Case:
        path: Path = ("tests", index)
        raw = self.document.data["tests"][index]
        interval = raw.get("interval", self.document.data.get("interval", INTERVAL_DEFAULT))
        expect = [self.expectation(raw, (*path, "expect", i)) for i in range(len(raw["expect"]))]
        made = Case(
            name=raw["name"], place=self.place(*path), interval_ms=parse_duration(str(interval)),
            series=tuple(self.series(raw, path)), given=tuple(self.given(raw, path)),
            operator=tuple(self.operator(raw, path)),
            capacities={k: float(v) for k, v in raw.get("capacities", {}).items()},
            expect=tuple(sorted(expect, key=lambda e: e.at_ms)),
        )
        for knob in made.capacities:
            self.check_knob(knob, self.key(*path, "capacities", knob))
        self.check_length(made)
        return made

    def check_length(self, case: Case) -> None:
        for name in {e.policy for e in case.expect} & self.policies.keys():
            if case.end_ms // self.policies[name].interval_ms > TICKS_MAX:
                self.add(case.expect[-1].place, "test-case",
                         f"more than {TICKS_MAX} ticks of `{name}` until then", "test less time")

    def series(self, raw: Json, path: Path) -> Iterator[InputSeries]:
        seen: set[Labels] = set()
        for index, item in enumerate(raw.get("input_series", ())):
            at: Path = (*path, "input_series", index)
            labels = self.notation(parse_labels, item["series"], (*at, "series"))
            values = self.notation(parse_values, item["values"], (*at, "values"))
            if labels is None or values is None:
                continue
            if labels in seen:
                self.add(self.place(*at, "series"), "test-series",
                         f"series {quoted(item['series'])} stands twice", "remove one of them")
            seen.add(labels)
            made = InputSeries(labels, values)
            self.check_read(made, item["series"], self.place(*at, "series"))
            yield made

    def notation(self, read: Any, text: str, path: Path) -> Any:
        place = self.place(*path)
        try:
            return read(text)
        except NotationError as error:
            at = value_place(self.document, place, text, error.offset)
            self.add(at, "test-series", f"{path[-1]}: {error}", error.hint)
            return None

    def check_read(self, series: InputSeries, text: str, place: Place) -> None:
        """A series that no expression reads is a name that somebody mistyped."""
        labels = dict(series.labels)
        wanted = list(_selected(self.policies.values()))
        if any(all(_fits(m, labels) for m in matchers) for matchers in wanted):
            return
        names = sorted({m.value for ms in wanted for m in ms if m.name == "__name__"})
        message = f"no expression of the policies reads {quoted(text)}"
        hint = did_you_mean(series.name, names) if series.name not in names else \
            "its labels do not fit the selectors"
        self.add(place, "test-series", message, hint or f"they read {listed(names)}")

    def given(self, raw: Json, path: Path) -> Iterator[GivenResult]:
        for index, item in enumerate(raw.get("udf_results", ())):
            at: Path = (*path, "udf_results", index)
            self.check_function(item["function"], self.policies.values(),
                                self.place(*at, "function"))
            yield GivenResult(
                item["function"], _ms(item.get("from")), item.get("outcome", "ok"),
                item.get("result"), self.place(*at),
            )

    def operator(self, raw: Json, path: Path) -> Iterator[GivenEvent]:
        for index, item in enumerate(raw.get("operator", ())):
            at: Path = (*path, "operator", index)
            words = [w for w in ("pause", "resume") if w in item]
            if len(words) != 1 or ("for" in item and words == ["resume"]):
                self.add(self.place(*at), "test-case", "an operator event is one `pause` or one "
                         "`resume`", "write `{at: 30s, pause: NAME, for: 10m}`")
                continue
            word = words[0]
            name = item[word]
            if name != "*" and name not in self.policies:
                self.unknown(self.place(*at, word), "policy", name, self.policies)
            at_ms = _ms(item["at"])
            until_ms = at_ms + _ms(item["for"]) if "for" in item else None
            policy = None if name == "*" else name
            event = OperatorEvent("pause", policy, until_ms, "test") if word == "pause" \
                else OperatorEvent("resume", policy)
            yield GivenEvent(at_ms, event, self.place(*at))

    # --- one expectation -------------------------------------------------------------------------

    def expectation(self, case: Json, path: Path) -> Expectation:
        raw: Map = case["expect"][path[-1]]
        policy = self.policy_of(raw, path)
        if not raw.keys() - {"at", "policy", "labels"}:
            self.add(self.place(*path), "test-case", "nothing is expected here",
                     "write `state:`, `claims:` or another field")
        places = {key: raw.keys_at[key] for key in raw if key in raw.keys_at}
        made = Expectation(
            at_ms=_ms(raw["at"]), policy=policy.name if policy else "",
            labels=labels_of(raw.get("labels", {})), place=self.place(*path), places=places,
            state=State(raw["state"]) if "state" in raw else None,
            reason=Reason(raw["reason"]) if "reason" in raw else None,
            value=raw.get("value"), claims=self.claims(raw, path, "claims"),
            actions=tuple(raw["actions"]) if "actions" in raw else None,
            impulses=self.impulses(raw), udf=self.udf(raw), undone=raw.get("undone"),
            effective=self.claims(raw, path, "effective"),
        )
        if policy is not None:
            self.check_expected(raw, path, policy)
        return made

    def policy_of(self, raw: Map, path: Path) -> Policy | None:
        name = raw.get("policy")
        if name is None and len(self.policies) == 1:
            name = next(iter(self.policies))
        if name is None:
            self.add(self.place(*path), "test-name", "`policy` is required: the file tests "
                     f"{listed(self.policies)}", "write `policy: NAME`")
            return None
        if name not in self.policies:
            self.unknown(self.place(*path, "policy"), "policy", name, self.policies)
            return None
        return self.policies[name]

    def claims(self, raw: Map, path: Path, key: str) -> tuple[WantedClaim, ...] | None:
        if key not in raw:
            return None
        for index, item in enumerate(raw[key]):
            self.check_claim(item, (*path, key, index), key == "effective")
        none = "none" if key == "effective" else object()
        return tuple(
            WantedClaim(i["knob"], labels_of(i.get("scope", {})),
                        None if i["value"] == none else i["value"])
            for i in raw[key]
        )

    def impulses(self, raw: Map) -> tuple[WantedImpulse, ...] | None:
        if "impulses" not in raw:
            return None
        return tuple(WantedImpulse(i["impulse"], i.get("args")) for i in raw["impulses"])

    def udf(self, raw: Map) -> tuple[WantedUdf, ...] | None:
        if "udf" not in raw:
            return None
        return tuple(
            WantedUdf(i["function"], i.get("outcome", "ok"), i.get("result")) for i in raw["udf"]
        )

    # --- names -----------------------------------------------------------------------------------

    def check_expected(self, raw: Map, path: Path, policy: Policy) -> None:
        for index, word in enumerate(raw.get("actions", ())):
            keys = [a.key for a in all_actions(policy)]
            if word not in self.catalogue and word not in keys:
                self.unknown(self.place(*path, "actions", index), "action", word,
                             dict.fromkeys([*(a.type for a in all_actions(policy)), *keys]))
        for index, item in enumerate(raw.get("udf", ())):
            self.check_function(item["function"], [policy],
                                self.place(*path, "udf", index, "function"))
        known = {i.impulse for a in all_actions(policy) for i in a.impulses}
        if any(a.udf for a in all_actions(policy)):
            return                                       # a UDF may propose others
        for index, item in enumerate(raw.get("impulses", ())):
            if item["impulse"] not in known:
                self.unknown(self.place(*path, "impulses", index, "impulse"), "impulse",
                             item["impulse"], sorted(known))

    def check_function(self, name: str, policies: Iterable[Policy], place: Place) -> None:
        called = sorted({a.udf.function for p in policies for a in all_actions(p) if a.udf})
        if name not in called:
            self.unknown(place, "function", name, called)

    def check_knob(self, name: str, place: Place) -> knobs.Knob | None:
        found = knobs.knob(name)
        if found is None:
            known = [*(k.name for k in knobs.KNOBS), "metric.NAME", "notify.RECEIVER"]
            self.unknown(place, "knob", name, known)
        return found

    def check_claim(self, item: Json, path: Path, may_be_none: bool) -> None:
        knob = self.check_knob(item["knob"], self.place(*path, "knob"))
        if knob is None:
            return
        scope = item.get("scope", {})
        tiers = [t.name for t in self.config.tiers]
        if "tier" in scope and scope["tier"] not in tiers:
            self.unknown(self.place(*path, "scope", "tier"), "tier", scope["tier"], tiers)
        if may_be_none and item["value"] == "none":
            return
        why = knob.check(item["value"], scope)
        if why:
            self.add(self.place(*path), "test-case", f"this can never be: {why}")

    def check_names_of_cases(self) -> None:
        """Two tests of one name cannot be told apart in a report."""
        seen: dict[str, Place] = {}
        for index, raw in enumerate(self.document.data["tests"]):
            place = self.place("tests", index, "name")
            if raw["name"] in seen:
                self.add(place, "test-case", f"test {quoted(raw['name'])} stands twice, first at "
                         f"line {seen[raw['name']].line}", "give it a name of its own")
            seen.setdefault(raw["name"], place)


def _ms(value: Json) -> int:
    return 0 if value is None else parse_duration(str(value))


def _selected(policies: Iterable[Policy]) -> Iterator[tuple[Matcher, ...]]:
    """Yield the matchers of every selector in the expressions of `policies`."""
    for policy in policies:
        for expr in policy.expressions():
            for selector in selectors(parse_checked(expr)):
                yield selector.matchers


def _fits(matcher: Matcher, labels: Mapping[str, str]) -> bool:
    """Whether a label set may match; regular expressions are given the benefit of the doubt."""
    value = labels.get(matcher.name, "")
    if matcher.op == "=":
        return value == matcher.value
    return value != matcher.value if matcher.op == "!=" else True
