"""`resilience import`: what is kept, what is said, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from hypothesis import HealthCheck, given, settings
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
    assert "`summary` other than" in told and "`label_model` stands in the annotations" in told
    assert "never unknown" in "\n".join(gone.notes) and "runbook_url" in "\n".join(gone.notes)
    assert [(f.line, f.severity, f.message) for f in done.skipped] == [
        (6, "info", "recording rule `job:waiting:sum` is left out")
    ]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("{alert: A, expr: 'sum(up'}", "5:9: error: alert `A`: PromQL: unclosed `(`"),
        ("{alert: A, expr: 'up[5m]'}", "alert `A`: `expr` is a matrix, not an instant vector"),
        ("{alert: A}", "alert `A` has no `expr`"),
        ("{alert: A, expr: up == 0, for: 5min}", "alert `A`: for: `5min` is not a duration"),
        ("{name: A, expr: up == 0}", "a rule has neither `alert` nor `record`"),
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
        ("", "no policy in the file"),
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
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
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
