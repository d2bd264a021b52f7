"""Policy tests as values: a file of tests is read in two steps, and nothing is run here.

`read_suite` takes the text and says which policy files it is about; once those are checked,
case_builder.py turns the rest into cases and reports every name that the policies do not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from resilience.model import (
    Action,
    Finding,
    Json,
    Labels,
    OperatorEvent,
    Policy,
    Reason,
    State,
)
from resilience.policy.case_schema import cases_schema
from resilience.policy.document import Document, Map, Place, parse_documents
from resilience.policy.judges import shown
from resilience.policy.notation import InputSeries
from resilience.policy.shape import Form, Shaper, locate


@dataclass(frozen=True, slots=True)
class WantedClaim:
    """A claim, or a value in force; `value` None in `effective`: nobody claims the knob."""

    knob: str
    scope: Labels
    value: Json


@dataclass(frozen=True, slots=True)
class WantedUdf:
    """One UDF call; `result` None: any."""

    function: str
    outcome: str
    result: Json


@dataclass(frozen=True, slots=True)
class WantedImpulse:
    """One impulse; `args` None: any."""

    impulse: str
    args: Json


@dataclass(frozen=True, slots=True)
class Expectation:
    """What must be so at `at_ms`; None: not looked at. `places` says where each field stands."""

    at_ms: int
    policy: str
    labels: Labels
    place: Place
    places: Mapping[str, Place]
    state: State | None = None
    reason: Reason | None = None
    value: float | None = None
    claims: tuple[WantedClaim, ...] | None = None
    actions: tuple[str, ...] | None = None
    impulses: tuple[WantedImpulse, ...] | None = None
    udf: tuple[WantedUdf, ...] | None = None
    undone: bool | None = None
    effective: tuple[WantedClaim, ...] | None = None


@dataclass(frozen=True, slots=True)
class GivenResult:
    """What a UDF returns from `from_ms` on instead of being run."""

    function: str
    from_ms: int
    outcome: str
    result: Json
    place: Place


@dataclass(frozen=True, slots=True)
class GivenEvent:
    """What an operator does at `at_ms`."""

    at_ms: int
    event: OperatorEvent
    place: Place


@dataclass(frozen=True, slots=True)
class Case:
    """One test: samples, what UDFs and operators do, and what is expected, in order of time."""

    name: str
    place: Place
    interval_ms: int
    series: tuple[InputSeries, ...]
    given: tuple[GivenResult, ...]
    operator: tuple[GivenEvent, ...]
    capacities: Mapping[str, float]
    expect: tuple[Expectation, ...]

    @property
    def end_ms(self) -> int:
        return self.expect[-1].at_ms


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of one file, about these policies."""

    file: str
    policies: tuple[str, ...]
    cases: tuple[Case, ...]


def read_suite(file: str, content: str | bytes) -> tuple[Document | None, tuple[Finding, ...]]:
    """Return the document of a test file that has the right shape, or what is wrong with it."""
    documents, parsed = parse_documents([(file, content)])
    findings = tuple(_as_text(f) for f in parsed)
    if any(f.severity == "error" for f in findings):
        return None, findings
    if not documents:
        return None, (_no_tests(file, Place(1, 1)),)
    document, *others = documents
    if others:
        return None, (others[0].finding(
            others[0].place, "error", "test-file", "a second document in a test file",
            "write one a file"),)
    if not isinstance(document.data, Map):
        return None, (document.finding(
            document.place, "error", "type", f"document is {shown(document.data)}, need a mapping",
            "begin with `tests:`"),)
    shaper = Shaper(document, {})
    shaper.check(_form(), document.data, (), "")
    found = tuple(shaper.findings)
    if document.data.get("tests") in (None, []):
        place = document.data.keys_at.get("tests", document.place)
        strange = tuple(f for f in found if f.code == "unknown-field")
        return None, strange or (_no_tests(file, place),)
    return (None if found else document), found


def _as_text(finding: Finding) -> Finding:
    """`0x5` in the notation is no hexadecimal number, so nobody wants its decimal."""
    if finding.code != "yaml-ambiguous" or not finding.message.startswith("`values`"):
        return finding
    return replace(finding, suggestion="quote it: the notation is text")


def _no_tests(file: str, place: Place) -> Finding:
    return Finding(file, place.line, place.column, "error", "test-file", "no tests in the file",
                   "write at least one below `tests:`")


@cache
def _form() -> Form:
    return Form(cases_schema())


def policy_files(document: Document) -> tuple[tuple[str, Place], ...]:
    """Return the policy files that a test document names; none: the one beside it."""
    names: Any = document.data.get("policy_files", ())
    return tuple(
        (name, locate(document, ("policy_files", i))[1]) for i, name in enumerate(names)
    )


def all_actions(policy: Policy) -> Iterator[Action]:
    """Yield the actions of a policy, those of its escalations after its own."""
    yield from policy.actions
    for stage in policy.escalation:
        yield from stage.actions
