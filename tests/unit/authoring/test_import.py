"""`resilience import`: what is kept, what is said, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience import registry
from resilience.app.importing import import_rules, slug
from resilience.app.importing_text import scalar
from resilience.policy.check import check
from resilience.policy.document import parse_documents

Run = Callable[..., Result]
GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "authoring"
CORPUS = Path(os.environ.get("RESILIENCE_CORPUS") or
              Path(__file__).resolve().parents[4] / "shared" / "corpus")
RULES = """\
groups:
  - name: serving
    interval: 30s
    labels: {team: llm}
    rules:
      - record: job:waiting:sum
        expr: sum by (job) (vllm:num_requests_waiting)
      - alert: QueueTooLong
        expr: |
          job:waiting:sum
            > 10   # more than anybody waits for
        for: 2m
        keep_firing_for: 5m
        labels: {severity: critical, model: '{{ $labels.model }}'}
        annotations:
          summary: "{{ $value | humanize }} wait"
          runbook_url: https://example.com/queue
      - alert: MetricsGone
        expr: absent(up{job="vllm"})
        labels: {page: yes}
"""


def imported(text: str) -> str:
    done = import_rules([("rules.yaml", text.encode())])
    return "---\n".join(p.text for p in done.policies)


def test_the_whole_text_is_the_golden_one() -> None:
    golden = GOLDEN / "imported.yaml"
    assert imported(RULES) == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", ["{alert: A, record: '', expr: up == 0}",
                                  "{record: , alert: A, expr: up == 0}"])
def test_what_a_rule_is_not_may_stand_there_empty(rule: str) -> None:
    """As templates write it, and as promtool takes it."""
    assert "name: a\n" in imported(f"groups: [{{name: g, rules: [{rule}]}}]")


@pytest.mark.parametrize("rule", [
    r'{alert: A, expr: "\x01"}', r'{alert: "\x01", expr: up}',
    r'{alert: A, expr: up, labels: {a: "\x01"}}', r'{alert: A, expr: up, for: "\x01"}',
])
def test_a_control_character_is_one_error_and_the_other_rules_go_on(rule: str) -> None:
    text = f"groups: [{{name: g, rules: [{rule}, {{alert: B, expr: up == 0}}]}}]"
    done = import_rules([("r.yaml", text.encode())])
    assert [f.code for f in done.skipped] == ["control-character"]
    assert [p.alert for p in done.policies] == ["B"]


@pytest.mark.parametrize("text", [
    r'groups: "\x01"', r'"\x01"', r'a: "\x01"', "\x01",
    r'groups: [{name: "\x01", rules: [{alert: B, expr: up}]}]',
])
def test_a_control_character_around_the_rules_is_one_error(text: str) -> None:
    done = import_rules([("r.yaml", text.encode())])
    assert [f.code for f in done.skipped] == ["control-character"]


def test_an_empty_file_is_told_what_a_rule_file_is() -> None:
    (said,) = import_rules([("r.yaml", b"")]).skipped
    assert (said.message, said.suggestion) == (
        "no rules in the file", "a rule file has `groups:`")


def test_what_prometheus_means_is_kept() -> None:
    queue, gone = yaml.safe_load_all(imported(RULES))
    assert queue["spec"]["mode"] == "shadow"
    assert queue["spec"]["interval"] == "30s"
    trigger = queue["spec"]["trigger"]
    assert (trigger["for"], trigger["keep_firing_for"]) == ("2m", "5m")
    assert trigger["expr"] == "job:waiting:sum\n  > 10   # more than anybody waits for"
    assert queue["metadata"]["labels"] == {"team": "llm", "severity": "critical"}
    assert queue["metadata"]["annotations"] == {
        "summary": "{{ $value | humanize }} wait", "runbook_url": "https://example.com/queue",
        "label_model": "{{ $labels.model }}", "prometheus_alert": "QueueTooLong",
        "prometheus_group": "serving",
    }
    assert gone["metadata"]["labels"] == {"team": "llm", "page": "yes"}
    assert "for" not in gone["spec"]["trigger"]


def test_a_human_is_told_what_to_decide() -> None:
    done = import_rules([("rules.yaml", RULES.encode())])
    queue, gone = done.policies
    assert [n.split(":")[0] for n in queue.notes[:3]] == ["actions", "resolve", "on_no_data"]
    told = "\n".join(queue.notes)
    assert "`job:waiting:sum` comes from a recording rule" in told
    assert "`summary` other than" in told and "`label_model` among the annotations" in told
    assert "never unknown" in "\n".join(gone.notes) and "runbook_url" in "\n".join(gone.notes)
    assert [(f.line, f.severity, f.message) for f in done.skipped] == [
        (6, "info", "recording rule `job:waiting:sum` is left out")
    ]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("{alert: A, expr: 'sum(up'}", "5:30: error: alert `A`: PromQL: unclosed `(`"),
        ("{alert: A, expr: 'up[5m]'}", "alert `A`: `expr` is a matrix, not an instant vector"),
        ("{alert: A}", "alert `A` has no `expr`"),
        ("{alert: A, expr: up == 0, for: 5min}", "alert `A`: for: `5min` is not a duration"),
        ("{alert: A, expr: up == 0, for: 5 m}", "`5 m` is not a duration; write it without blanks"),
        ("{uid: a, title: A, condition: C, data: []}", "a rule of Grafana's own alerting"),
        ("{alert: A, expr: 'rate({app=\"x\"} |= \"e\" [5m]) > 1'}", "(LogQL), not metrics"),
        ("{name: A, expr: up == 0}", "a rule has neither `alert` nor `record`"),
        ("{alert: A, record: a, expr: up == 0}", "a rule has both `alert` and `record`"),
        ("just text", "a rule is a mapping"),
        ("{alert: A, expr: 'no_such_function(x) > 1'}", "alert `A`: PromQL:"),
        ("{alert: A, expr: \"up\\u00a0> 1\"}", "alert `A`:"),
    ],
)
def test_a_rule_that_cannot_be(rule: str, message: str, tmp_path: Path, run: Run) -> None:
    text = ("groups:\n  - name: g\n    rules:\n      - {alert: Fine, expr: up == 0}\n"
            f"      - {rule}\n")
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    result = run("import", file)
    assert result.return_value == 3
    assert message in result.stderr
    assert "name: fine" in result.stdout


HEAD = "groups:\n  - name: g\n    rules:\n      - "


@pytest.mark.parametrize(
    ("rule", "column", "message"),
    [
        ("{alert: [a], expr: up}", 17, "`alert` must be text, got a list"),
        ("{alert: {a: b}, expr: up}", 17, "`alert` must be text, got a mapping"),
        ("{alert: , expr: up}", 17, "an alert has no name"),
        ("{alert: '', expr: up}", 17, "an alert has no name"),
        ("{record: [a], expr: up}", 18, "`record` must be text, got a list"),
        ("{alert: A, expr: [up]}", 26, "alert `A`: `expr` must be text, got a list"),
        ("{alert: A, expr: {up: 1}}", 26, "alert `A`: `expr` must be text, got a mapping"),
        ("{alert: A, expr: }", 26, "alert `A` has no `expr`"),
        ("{alert: A, expr: up, for: [1m]}", 35, "alert `A`: `for` must be text, got a list"),
        ("{alert: A, expr: up, for: 5}", 35, "alert `A`: for: `5` is not a duration"),
        ("{alert: A, expr: up, keep_firing_for: {}}", 47, "`keep_firing_for` must be text"),
        ("{alert: A, expr: up, labels: [a]}", 38, "`labels` must be a mapping, got a list"),
        ("{alert: A, expr: up, labels: text}", 38, "must be a mapping, got string `text`"),
        ("{alert: A, expr: up, labels: {a: [b]}}", 42, "alert `A`: labels: `a` must be text"),
        ("{alert: A, expr: up, annotations: {a: {b: c}}}", 47, "annotations: `a` must be text"),
        ("{alert: A, expr: up, annotations: 3}", 43, "must be a mapping, got integer 3"),
        ("[a]", 9, "a rule is a mapping, not a list"),
        ("3", 9, "a rule is a mapping, not integer 3"),
    ],
)
def test_a_wrong_type_is_said_where_it_stands(rule: str, column: int, message: str) -> None:
    done = import_rules([("r.yaml", f"{HEAD}{rule}\n      - {{alert: B, expr: up}}\n".encode())])
    (found,) = done.skipped
    assert (found.line, found.column, found.severity) == (4, column, "error"), found
    assert message in found.message and "[" not in found.message.replace("[1m]", "")
    assert [p.alert for p in done.policies] == ["B"]


@pytest.mark.parametrize(
    ("text", "place", "message", "alerts"),
    [
        ("groups: {a: b}\n", (1, 9), "`groups` must be a list, got a mapping", 0),
        ("groups: text\n", (1, 9), "`groups` must be a list, got string `text`", 0),
        ("groups: [3]\n", (1, 10), "a group is a mapping, not integer 3", 0),
        ("groups: [{name: g, rules: {}}]\n", (1, 27), "a group without a list `rules`", 0),
        ("groups: [{name: [g], rules: [{alert: A, expr: up}]}]\n", (1, 17),
         "group: `name` must be text, got a list", 1),
        ("groups: [{name: g, interval: [1m], rules: [{alert: A, expr: up}]}]\n", (1, 30),
         "group: `interval` must be text, got a list", 1),
        ("groups: [{name: g, labels: {a: [x, y]}, rules: [{alert: A, expr: up}]}]\n", (1, 32),
         "group: labels: `a` must be text, got a list", 1),
        ("kind: [PrometheusRule]\nspec: {}\n", (1, 1), "not a Prometheus rule file", 0),
        ("kind: PrometheusRule\nspec: [a]\n", (1, 1), "not a Prometheus rule file", 0),
        ("3\n", (1, 1), "not a Prometheus rule file, but integer 3", 0),
    ],
)
def test_a_wrong_type_around_the_rules(
    text: str, place: tuple[int, int], message: str, alerts: int
) -> None:
    done = import_rules([("r.yaml", text.encode())])
    (found,) = done.skipped
    assert (found.line, found.column) == place and message in found.message, found
    assert len(done.policies) == alerts
    assert all("labels:" not in policy.text for policy in done.policies)


def test_scalars_are_the_text_that_prometheus_reads() -> None:
    rule = ("- alert: 007\n  expr: 1.50\n  for: 0\n  labels: {version: 1.10, n: 0x1F, page: yes, "
            "on: 2026-01-01, id: 99999999999999999999, t: true, none: , e: ''}\n")
    done = import_rules([("r.yaml", rule.encode())])
    assert done.skipped == ()
    (document,) = yaml.safe_load_all(done.policies[0].text)
    assert done.policies[0].alert == "007" and document["spec"]["trigger"]["expr"] == "1.50"
    assert document["metadata"]["labels"] == {
        "version": "1.10", "n": "0x1F", "page": "yes", "on": "2026-01-01",
        "id": "99999999999999999999", "t": "true"}


def test_an_experimental_function_is_imported_with_what_it_needs() -> None:
    text = RULES.replace('absent(up{job="vllm"})',
                         "double_exponential_smoothing(up[5m], 0.5, 0.5) < 1")
    done = import_rules([("rules.yaml", text.encode())])
    assert [f for f in done.skipped if f.severity == "error"] == []
    notes = " ".join(note for p in done.policies for note in p.notes)
    assert "`double_exponential_smoothing` is experimental: it needs `enable_features: [" in notes


def test_a_comment_that_cuts_the_expression_is_said_and_kept(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("groups:\n- name: g\n  rules:\n  - alert: A\n    expr: >-\n"
                    "      vllm:num_requests_waiting  # queue\n      > 5\n")
    result = run("import", file)
    assert result.return_value == 0
    assert "r.yaml:6:34: warning: alert `A`: `#` begins a comment that swallows" in result.stderr
    assert "imported 1 policy, 1 warning" in result.stderr
    (document,) = yaml.safe_load_all(result.stdout)
    assert document["spec"]["trigger"]["expr"] == "vllm:num_requests_waiting  # queue > 5"
    assert "# - expr: `#` at line 6 made a comment of the lines after it" in result.stdout


def test_fields_without_a_counterpart_are_told() -> None:
    text = ("groups: [{name: g, limit: 3, partial_response_strategy: warn, rules: "
            "[{alert: A, expr: up, severity: page}]}]\n")
    done = import_rules([("r.yaml", text.encode())])
    assert ("nothing here corresponds to `severity`, `limit` and `partial_response_strategy` of "
            "the rule or its group") in done.policies[0].notes


def test_what_is_beyond_the_limit_is_told() -> None:
    labels = ", ".join(f"l{i}: v" for i in range(50))
    done = import_rules([("r.yaml", f"- {{alert: A, expr: up, labels: {{{labels}}}}}\n".encode())])
    assert "labels: the 2 after the first 48 are left out" in done.policies[0].notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\n", "kind `ScaledObject` of"),
        ("apiVersion: v1\nkind: ConfigMap\ndata:\n  a.yaml: |\n    groups: []\n",
         "a ConfigMap holds rules as text in `a.yaml`"),
        ("scrape_configs: []\n", "a configuration of Prometheus, not rules"),
        ("rule_files: [a]\ntests: []\n", "unit tests of promtool"),
        ("a: {{ .Values.x }}\n", "render the template first"),
        ("{% if x %}\na: 1\n{% endif %}\n", "looks like a template"),
        ("groups:\n  - name: g\n", "a group without a list `rules`"),
        ("hello\n", "not a Prometheus rule file"),
        ("", "no rules in the file; a rule file has `groups:`"),
        ("a: 1\na: 2\ngroups: []\n", "duplicate key"),
    ],
)
def test_a_file_that_holds_no_rules(text: str, message: str, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    result = run("import", file)
    assert (result.return_value, result.stdout) == (3, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {name: x}\n"
        "spec:\n  groups:\n  - name: g\n    rules:\n    - {alert: A, expr: up == 0}\n",
        "apiVersion: v1\nkind: List\nitems:\n- apiVersion: monitoring.coreos.com/v1\n"
        "  kind: PrometheusRule\n  spec: {groups: [{name: g, rules: "
        "[{alert: A, expr: up == 0}]}]}\n",
        "- {alert: A, expr: up == 0}\n",
        "rules:\n- {alert: A, expr: up == 0}\n",
    ],
)
def test_other_homes_of_rules(text: str) -> None:
    done = import_rules([("r.yaml", text.encode())])
    assert [p.name for p in done.policies] == ["a"]
    assert done.errors == 0


@pytest.mark.parametrize(
    ("alert", "name"),
    [
        ("GPUHighUtilization", "gpu-high-utilization"), ("LLMHighTTFT", "llm-high-ttft"),
        ("Queue too long!", "queue-too-long"), ("kv_cache.full", "kv-cache-full"),
        ("___", "alert"), ("A" * 100, "a" * 63), ("P99Latency", "p99-latency"),
    ],
)
def test_names(alert: str, name: str) -> None:
    assert slug(alert) == name


def test_two_alerts_of_one_name_become_two_policies() -> None:
    text = "- {alert: A, expr: up == 0}\n- {alert: A, expr: up == 2}\n"
    done = import_rules([("r.yaml", text.encode()), ("s.yaml", text.encode())])
    assert [p.name for p in done.policies] == ["a", "a-2", "a-3", "a-4"]


@pytest.mark.parametrize("alert", ["No", "ON", "007", "1e3", "2026-01-01", "Null", "1_000"])
def test_a_name_that_yaml_would_read_as_something_else_is_quoted(alert: str) -> None:
    done = import_rules([("r.yaml", f"- {{alert: '{alert}', expr: up}}\n".encode())])
    assert done.skipped == ()
    assert check([("p.yaml", done.policies[0].text)], {}, registry.catalogue("actions")).policies


def test_files_are_written_and_never_overwritten(tmp_path: Path, run: Run) -> None:
    rules, out = tmp_path / "rules.yaml", tmp_path / "out"
    rules.write_text(RULES)
    result = run("import", rules, "--write", out, "-o", "json")
    assert result.return_value == 0
    body = json.loads(result.stdout)
    assert [p["written"] for p in body["policies"]] == [
        str(out / "queue-too-long.yaml"), str(out / "metrics-gone.yaml")
    ]
    assert run("check", out).return_value == 0
    (out / "metrics-gone.yaml").unlink()
    (out / "queue-too-long.yaml").write_text("mine")
    again = run("import", rules, "--write", out)
    assert "exists already and is not overwritten" in str(again.exception)
    assert not (out / "metrics-gone.yaml").exists()
    assert (out / "queue-too-long.yaml").read_text() == "mine"


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]) | st.just("\n"),
               min_size=1, max_size=60))
@settings(max_examples=300)
def test_any_text_survives(text: str) -> None:
    documents, findings = parse_documents([("x.yaml", f"a: {scalar(text, 2)}\nb: 1\n")])
    if any(f.code == "control-character" for f in findings):
        return                                          # a character that no policy may hold
    assert findings == ()
    lines = "\n".join(line.rstrip() for line in text.split("\n"))
    assert documents[0].data["a"] in (text, lines)


@pytest.mark.skipif(not CORPUS.is_dir(), reason="no corpus: set RESILIENCE_CORPUS")
def test_the_corpus_imports_or_says_why_not() -> None:
    for file in sorted((CORPUS / "yaml").iterdir()):
        done = import_rules([(file.name, file.read_bytes())])
        assert done.policies or done.skipped, file.name
        for finding in done.skipped:
            assert finding.line >= 1 and finding.message and finding.suggestion, finding
        texts = [(f"{p.name}.yaml", p.text) for p in done.policies]
        if texts:
            assert check(texts, {}, registry.catalogue("actions")).errors == ()


def test_rules_of_the_other_operator_are_the_same(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("apiVersion: operator.victoriametrics.com/v1beta1\nkind: VMRule\n"
                    "metadata: {name: x}\nspec: {groups: [{name: g, rules: "
                    "[{alert: A, expr: up == 0}]}]}\n")
    result = run("import", file)
    assert (result.return_value, "name: a" in result.stdout) == (0, True)
