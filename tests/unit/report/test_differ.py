"""What a change of rules changes, field by field and decision by decision."""

from __future__ import annotations

import pytest

from resilience.model import Bundle, Claim, Decision, Json, Reason, State, Truth
from resilience.report.differ import (
    Ledger,
    decision_changes,
    document_changes,
    field_changes,
    value_line,
)
from resilience.report.page_changes import changes
from resilience.report.summary import Compared, Report

FULL = """apiVersion: resilience/v1
kind: Policy
metadata: {name: NAME}
spec: {interval: INTERVAL, trigger: {expr: up == 0}}
"""


def _bundle(*documents: tuple[str, str], udfs: tuple[tuple[str, str], ...] = ()) -> Bundle:
    return Bundle("sha256:1", (), documents=documents, udfs=udfs)


def _text(name: str, interval: str = "5s") -> str:
    return FULL.replace("NAME", name).replace("INTERVAL", interval)


@pytest.mark.parametrize(("before", "after", "changes"), [
    ({"a": 1}, {"a": 1}, []),
    ({"a": {"b": 1}}, {"a": {"b": 2}}, [("a.b", "changed")]),
    ({"a": 1}, {"b": 1}, [("a", "removed"), ("b", "added")]),
    ({"a": [1, 2]}, {"a": [1, 3, 4]}, [("a[1]", "changed"), ("a[2]", "added")]),
    ({"a": [{"b": 1}]}, {"a": []}, [("a[0]", "removed")]),
    ({"a": 1}, {"a": {"b": 1}}, [("a", "changed")]),
    ({"a": None}, {}, [("a", "removed")]),
])
def test_fields_by_path(before: Json, after: Json, changes: list[tuple[str, str]]) -> None:
    assert [(c.path, c.kind) for c in field_changes(before, after)] == changes


def test_documents_by_name_wherever_they_lie() -> None:
    old = _bundle(("a.yaml", _text("one") + "---\n" + _text("two")), ("b.yaml", _text("three")))
    new = _bundle(("c.yaml", _text("one", "9s")), ("b.yaml", _text("three") + "---\n" +
                                                   _text("four")))
    found = [(c.name, c.kind, [f.path for f in c.fields]) for c in document_changes(old, new)]
    assert found == [
        ("four", "added", []), ("one", "changed", ["spec.interval"]), ("two", "removed", []),
    ]


def test_the_short_form_is_compared_as_what_it_stands_for() -> None:
    short = "on_alert: one\ntrigger_if: up == 0\nactions: [{type: throttle}]\n"
    changed = short.replace("up == 0", "up < 1")
    found = document_changes(_bundle(("a.yaml", short)), _bundle(("a.yaml", changed)))
    assert [f.path for f in found[0].fields] == ["spec.trigger.expr"]


def test_udfs_and_a_first_bundle() -> None:
    new = _bundle(("a.yaml", _text("one")), udfs=(("udfs/f.py", "x"),))
    assert [(c.document, c.name, c.kind) for c in document_changes(None, new)] == [
        ("Policy", "one", "added"), ("UDF", "udfs/f.py", "added"),
    ]


def test_values_on_one_line() -> None:
    assert value_line("a\n  b") == "a b"
    assert value_line({"b": 1, "a": [True, None]}) == '{"a":[true,null],"b":1}'


def _decision(t_ms: int, *, revision: str = "sha256:1", value: int = 4) -> Decision:
    claim = Claim("p", "i", "0", "cache.max_running", (), value, 30_000, False, 50, revision)
    return Decision(
        t_ms, revision, "p", f"hash of {revision}", "i", (), 1.0, Truth.TRUE, Reason.BREACH,
        State.INACTIVE, State.FIRING, claims_after=(claim,),
    )


def _ledger(*decisions: Decision) -> Ledger:
    ledger = Ledger()
    for decision in decisions:
        ledger.add(decision)
    return ledger


def test_another_revision_that_decides_the_same_is_no_difference() -> None:
    found = decision_changes(
        _ledger(_decision(1), _decision(2)),
        _ledger(_decision(1, revision="sha256:2"), _decision(2, revision="sha256:2")),
    )
    assert (found.same, found.differ) == (2, 0)


def test_decisions_that_are_gone_new_and_changed() -> None:
    found = decision_changes(
        _ledger(_decision(1), _decision(2), _decision(3)),
        _ledger(_decision(2, value=8), _decision(3), _decision(4)),
    )
    assert (found.before, found.after, found.same, found.differ) == (3, 3, 1, 3)
    assert [d["t_ms"] for d in found.only_before] == [1]
    assert [d["t_ms"] for d in found.only_after] == [4]
    assert [(b["claims_after"][0]["value"], a["claims_after"][0]["value"])
            for b, a in found.changed] == [(4, 8)]
    assert len(found.to_json(0)["only_before"]) == 0


def test_too_many_decisions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilience.report.differ.DECISIONS_MAX", 1)
    found = decision_changes(_ledger(_decision(1), _decision(2)), _ledger(_decision(1)))
    assert (found.before, found.dropped) == (1, 1)
    said = "1 before, 1 now: 1 the same, 0 only before, 0 only now, 0 changed; 1 not compared"
    report = Report("r", "sha256:1", 0, 1, 1, 1, (), (), (), (),
                    compared=Compared("old", (), found))
    page = "".join(changes(report, str))
    assert f"<p>Decisions: {said}.</p>" in page
