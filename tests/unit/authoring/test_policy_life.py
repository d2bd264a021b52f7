"""The page on a policy's life, and its fields from the document to what comes of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from resilience import registry
from resilience.policy.check import CheckResult, check

Run = Callable[..., Result]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "policy-life.md"

POLICY = """\
apiVersion: resilience/v1
kind: Policy
metadata: {{name: p}}
spec:
  interval: 1s
  trigger: {{expr: load > 10, on_no_data: hold, for: 2s{trigger}}}
  actions:
    - {{type: throttle, max_concurrency: 8, lease: 15s{action}}}
{more}
"""


def policy(trigger: str = "", action: str = "", more: str = "") -> str:
    return POLICY.format(trigger=trigger, action=action, more=more)


def checked(text: str, *others: str) -> CheckResult:
    files = [(f"{n}.yaml", body) for n, body in enumerate((text, *others))]
    return check(files, {}, registry.catalogue("actions"))


@pytest.mark.skipif(not PAGE.is_file(), reason="only a checkout has docs/")
def test_what_the_page_shows_passes_check() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    shown, engine = blocks
    findings = [f for f in checked(shown, engine).findings if f.code != "group-alone"]
    assert findings == []


@pytest.mark.parametrize(("text", "code", "at"), [
    (policy(action=", guard: {expr: load > 10}"), "contradiction", "load > 10}"),
    (policy(more="  guard: {expr: load > 10, quarantine: 1m}"), "contradiction", "load > 10,"),
    (policy(more="  verify: {expr: load > 10, within: 1m}"), "contradiction", "load > 10, within"),
    (policy(trigger=", resolve: {expr: load > 10}"), "contradiction", "load > 10}"),
    (policy(more="  verify: {expr: load < 9, within: 1m, on_failure: escalate}"),
     "escalate-nowhere", "escalate}"),
    (policy(more="  verify: {expr: load < 9, within: 1m, by: 5%}"), "no-effect", "by: 5%"),
    (policy(more="  probe: {after: 1m, share: 100%}"), "no-effect", "100%"),
    (policy(more="  limits: {rate: [{max: 9, per: 1h}, {max: 6, per: 1d}]}"), "no-effect",
     "{max: 9"),
    (policy(more="  group: alone"), "group-alone", "alone"),
    (policy(more="  verify: {expr: 'load[5m]', within: 1m}"), "promql-type", "'load[5m]"),
    (policy(more="  verify: {expr: load < 9}"), "required", "verify"),
    (policy(more="  guard: {expr: load <}"), "promql-syntax", "}"),
    (policy(more="  limits: {min_samples: 0}"), "range", "0}"),
])
def test_what_cannot_be_meant(text: str, code: str, at: str) -> None:
    """`at` is the text where the finding points; its last occurrence."""
    found = {f.code: (f.line, f.column) for f in checked(text).findings}
    before = text[: text.rindex(at)]
    place = before.count("\n") + 1, len(before) - before.rfind("\n")
    assert found.get(code) == place, found


def test_members_of_a_group_need_priorities() -> None:
    one = policy(more="  group: g")
    other = one.replace("name: p", "name: q").replace("load > 10,", "load > 11,")
    assert [f.code for f in checked(one, other).findings if "group" in f.code] == ["group-tie"]
    assert not [f for f in checked(one, other + "  priority: 60\n").findings if "group" in f.code]


def test_belts_that_are_off_are_said() -> None:
    engine = ("apiVersion: resilience/v1\nkind: Engine\nmetadata: {name: e}\n"
              "spec: {safety: {enabled: false}}\n")
    assert "safety-off" in [f.code for f in checked(policy(), engine).findings]


TEST = """\
interval: 1s
tests:
  - name: a lever that does not help is taken back
    input_series:
      - {series: load, values: 20x60}
      - {series: waiting, values: 5x60}
      - {series: errors, values: 0 0x59}
    expect:
      - {at: 2s, state: firing, claims: [{knob: throttle.max_concurrency, value: 8}]}
      - {at: 12s, state: inactive, reason: verify_failed, undone: true}
      - {at: 30s, state: pending, reason: quarantine}
  - name: one that helps stays
    input_series:
      - {series: load, values: 20x60}
      - {series: waiting, values: 5x4 2x56}
      - {series: errors, values: 0 0x59}
    expect:
      - {at: 50s, state: firing, reason: breach}
  - name: one that does harm is undone at once
    input_series:
      - {series: load, values: 20x60}
      - {series: waiting, values: 2x60}
      - {series: errors, values: 0 0x4 3x55}
    expect:
      - {at: 5s, state: firing}
      - {at: 6s, state: inactive, reason: guard, claims: []}
"""


def test_policy_tests_see_it(tmp_path: Path, run: Run) -> None:
    more = ("  verify: {expr: waiting, improves: down, by: 20%, within: 10s, quarantine: 1m}\n"
            "  guard: {expr: errors > 1, quarantine: 1m}")
    (tmp_path / "p.yaml").write_text(policy(more=more), encoding="utf-8")
    (tmp_path / "p.test.yaml").write_text(TEST.replace("waiting, values: 2x60",
                                                       "waiting, values: 5x2 1x58"),
                                          encoding="utf-8")
    result = run("test", tmp_path)
    assert result.return_value == 0, result.stdout
