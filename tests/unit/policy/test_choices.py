"""A word of another system is answered by the option that means the same, not the nearest one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.policy.check import CheckResult
from resilience.policy.choices import advice, meant

Run = Callable[..., CheckResult]
Policy = Callable[..., str]
NO_DATA = ["hold", "resolve", "fire"]
MODES = ["enforce", "shadow", "off"]


@pytest.mark.parametrize(
    ("options", "word", "option"),
    [
        (NO_DATA, "ignore", "hold"), (NO_DATA, "Keep-Last-State", "hold"),
        (NO_DATA, "OK", "resolve"),
        (NO_DATA, "alerting", "fire"), (NO_DATA, "hodl", "hold"), (NO_DATA, "HOLD", "hold"),
        (NO_DATA, "resolved", "resolve"), (NO_DATA, "true", None), (NO_DATA, "fine", "fire"),
        (NO_DATA, "wire fraud", None), (NO_DATA, "foo", None), (NO_DATA, "x" * 500, None),
        (MODES, "dry-run", "shadow"), (MODES, "audit", "shadow"), (MODES, "enabled", "enforce"),
        (MODES, "disabled", "off"), (MODES, "none", "off"), (MODES, "shdow", "shadow"),
        (["error", "warn"], "ignore", "warn"), (["skip", "escalate", "hold"], "ignore", "skip"),
        (["rollback", "escalate"], "undo", "rollback"), (["baseline", "keep"], "reset", "baseline"),
    ],
)
def test_what_was_meant(options: list[str], word: str, option: str | None) -> None:
    assert meant(word, options) == option
    assert advice(word, options) == (option and f"did you mean `{option}`?")


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("on_no_data", "ignore", "did you mean `hold`?"),
        ("on_no_data", "true", "write one of `hold`, `resolve` and `fire`"),
        ("on_no_data", "3", "write one of `hold`, `resolve` and `fire`"),
    ],
)
def test_a_trigger_says_so(run: Run, policy: Policy, key: str, value: str, hint: str) -> None:
    (finding,) = run(policy().replace(f"{key}: hold", f"{key}: {value}")).findings
    assert finding.suggestion == hint


@pytest.mark.parametrize(("value", "hint"), [
    ("true", "write `enforce`"), ("false", 'write `"off"`'), ("dry", "did you mean `shadow`?"),
    ("7", "write one of `enforce`, `shadow` and `off`"),
])
def test_a_mode_says_so(run: Run, policy: Policy, value: str, hint: str) -> None:
    (finding,) = run(policy(spec=f"  mode: {value}\n")).findings
    assert finding.suggestion == hint


@pytest.mark.parametrize("action", ["abort_requests", "reset_prefix_cache", "capture_incident"])
def test_what_happens_once_holds_nothing(run: Run, policy: Policy, action: str) -> None:
    (finding,) = run(policy(actions=f"[{{type: {action}, lease: 30s}}]")).errors
    assert finding.suggestion == f"`{action}` happens once and holds nothing: leave `lease` out"


RULES = "`resilience import FILE` makes a shadow policy of each alert"


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\n", (1, 13), RULES),
        ("apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRuleList\n", (1, 13), RULES),
        ("apiVersion: resilience/v1\nkind: PrometheusRule\n", (2, 7), RULES),
        ("groups: []\n", (1, 1), RULES),
        ("name: g\nrules: [{alert: A, expr: up}]\n", (2, 1), RULES),
        ("- {alert: A, expr: up}\n", (1, 1), RULES),
        ("- {record: a, expr: up}\n", (1, 1), RULES),
        ("alert: A\nexpr: up\n", (1, 1), f"put it into a list, `- alert: …`: {RULES}"),
        ("apiVersion: v1\nkind: List\nitems: []\n", (1, 13),
         "items are not read: write each as a document of its own, separated by `---`"),
        ("apiVersion: apps/v1\nkind: Deployment\n", (1, 13),
         "a policy has `apiVersion: resilience/v1`"),
        ("- a\n", (1, 1), "begin with `apiVersion: resilience/v1`"),
    ],
)
def test_documents_of_others(run: Run, text: str, place: tuple[int, int], hint: str) -> None:
    (finding,) = run(text).findings
    assert (finding.line, finding.column) == place and finding.suggestion == hint
