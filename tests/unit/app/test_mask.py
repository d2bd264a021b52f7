"""What the configuration masks shows in no record, and both runs mask alike."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from resilience.app.bundles import Sources
from resilience.app.files import LineFiles
from resilience.app.mask import Mask

kit = sys.modules["app_rig"]  # loaded by conftest.py
ENGINE = """
---
apiVersion: resilience/v1
kind: Engine
metadata: {name: engine}
spec:
  records: {max_mebibytes: 1, files: 2, mask: {labels: [model_name], fields: [value]}}
"""
SUMMARY = 'metadata: {name: queue, annotations: {summary: "slow {{ $labels.model_name }}"}}'


def masked_sources() -> Sources:
    (path, body), = kit.sources(extra=ENGINE).files
    text = body.decode().replace("metadata: {name: queue}", SUMMARY)
    return Sources(((path, text.encode()),))


def test_a_masked_label_shows_nowhere_and_everything_else_does(rig: Any, tmp_path: Path) -> None:
    rig.labels = ((("__name__", kit.WAITING), ("model_name", "secret-model")),)
    rig.operations.apply(masked_sources())
    kit.fire(rig)
    (fired,) = rig.ask("GET", "decisions")["decisions"]
    told = rig.ask("GET", f"decisions/{fired['id']}")
    lines = (tmp_path / "state" / "decisions.jsonl").read_text()
    for text in (json.dumps(fired), json.dumps(told), lines):
        assert "secret-model" not in text
    assert fired["labels"] == {"model_name": "***"} and fired["value"] == "***"
    assert fired["claims_after"][0]["reason"] == "slow ***"
    assert (fired["reason"], fired["to"]) == ("breach", "firing")
    assert fired["inputs"][0]["value"] == [[{"model_name": "***"}, 20.0]]
    (row,) = rig.journal.load("decision").values()       # what replay needs stays in the journal
    assert row["labels"] == {"model_name": "secret-model"}


def test_nothing_configured_is_the_same_object() -> None:
    record = {"labels": {"a": "b"}}
    assert Mask().of(record) is record


def test_a_value_that_is_a_part_of_our_own_words_does_not_spoil_them() -> None:
    record = {"id": "b0b", "to": "firing", "reason": "breach", "labels": {"user": "b"},
              "claims_after": [{"knob": "b.b", "scope": {"user": "b"}, "reason": "b waits"}]}
    assert Mask(("user",)).of(record) == {
        "id": "b0b", "to": "firing", "reason": "breach", "labels": {"user": "***"},
        "claims_after": [{"knob": "b.b", "scope": {"user": "***"}, "reason": "*** waits"}]}


def test_a_label_with_the_name_of_one_of_our_fields_is_masked_and_the_field_is_not() -> None:
    record = {"instance": "f00", "policy": "p", "labels": {"instance": "host:1", "policy": "mine"},
              "inputs": [{"query": "up", "value": [[{"instance": "host:1"}, 1.0]]}],
              "claims_after": [{"instance": "f00", "scope": {}, "reason": "host:1 waits"}]}
    assert Mask(("instance",)).of(record) == {
        "instance": "f00", "policy": "p", "labels": {"instance": "***", "policy": "mine"},
        "inputs": [{"query": "up", "value": [[{"instance": "***"}, 1.0]]}],
        "claims_after": [{"instance": "f00", "scope": {}, "reason": "*** waits"}]}


def test_a_masked_label_shows_in_no_scope_of_an_execution() -> None:
    held = {"value": 4, "policy": "p", "remaining_ms": 5}
    record = {"decision_id": "d", "error": "`k` for tenant=acme,tier=core is `4`, wanted `2`",
              "read_back": {"effective": {"k": {"tenant=acme,tier=core": held, "": held}}}}
    assert Mask(("tenant",)).of(record) == {
        "decision_id": "d", "error": "`k` for tenant=***,tier=core is `4`, wanted `2`",
        "read_back": {"effective": {"k": {"tenant=***,tier=core": held, "": held}}}}


def test_fewer_files_are_kept_from_now_on(tmp_path: Path) -> None:
    files = LineFiles(tmp_path, rotate_bytes=10, kept=5)
    for n in range(8):
        files.append_line("decisions.jsonl", f"line {n} of eight")
    files.limit(10, 2)
    files.append_line("decisions.jsonl", "the last line")
    files.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["decisions.jsonl", "decisions.jsonl.1"]
