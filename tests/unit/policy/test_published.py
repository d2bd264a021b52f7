"""Rules that people have published: what is wrong with them is found, what is right stays quiet.

The table is the whole corpus folder: a file that nobody looked at is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from resilience.policy.check import CheckResult

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(os.environ.get("RESILIENCE_CORPUS", ROOT.parent / "shared" / "corpus")) / "yaml"
FIELDS = ("expr", "query", "query_string")
# No alert but something to plot or to scale by: it has no comparison, and that is all.
PLOTTED = {"no-comparison"}
OWN = {"metric-unknown"}                      # metrics of their own exporters and recording rules

# file -> (what is found in any of its expressions, expressions that are quiet). None: no
# plain YAML, an error as a policy file.
FOUND: dict[str, tuple[set[str], int] | None] = {
    "01_llmkube_alerts.yaml": ({"metric-optional"} | OWN, 5),
    "03_triton_recording.yaml": (PLOTTED, 0),
    "05_keda_vllm_waiting.yaml": (PLOTTED, 0),
    "07_keda_vllm_helm_test.yaml": (PLOTTED, 0),
    "09_keda_nim.yaml": (PLOTTED, 0),
    "11_hpa_vllm_batch.yaml": (set(), 0),
    "13_hpa_gpu_duty.yaml": (set(), 0),
    "15_hpa_vllm_multihost.yaml": (set(), 0),
    "17_prom_adapter_opea.yaml": None,
    "19_aibrix_kpa.yaml": (set(), 0),
    "21_aibrix_apa.yaml": (set(), 0),
    "23_llmd_bench_keda_multi.yaml.j2": None,
    "25_keda_external_inference.yaml": (set(), 0),
    "27_aperture_openai_values1.yaml": (set(), 0),
    "29_aperture_pod_autoscale.yaml": (PLOTTED | OWN, 0),
    "33_llmkube_prometheusrule_template.yaml": None,
    "35_hello_prometheus_config.yaml": (set(), 0),
    "37_litellm_published_not_yaml_equals.yaml": None,
    "39_litellm_retry_policy_flow_with_tabs.yaml": None,
    "41_litellm_health_routing.yaml": (set(), 0),
    "43_wva_keda_fallback.yaml": (PLOTTED | OWN, 0),
    "45_kv_storm_rules_blog.yaml": ({"metric-renamed"}, 1),
    "47_nim_alert_table.yaml": (set(), 8),
    "49_drift_absent_on_up.yaml": (set(), 1),
    "51_dummy_alert_expr_in_labels.yaml": ({"always-true"}, 0),
    "53_always_firing_vector1.yaml": ({"constant-expr"}, 2),
    "55_k8sai_llm_prometheusrule.yaml": (PLOTTED | OWN, 3),
    "57_k8sai_llm_rules_test.yaml": (PLOTTED | OWN, 0),
}
Run = Callable[..., CheckResult]
needs_corpus = pytest.mark.skipif(not FOLDER.is_dir(), reason="no corpus: set RESILIENCE_CORPUS")


def expressions(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in FIELDS and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)
    elif isinstance(node, list):
        for item in node:
            yield from expressions(item)


def codes(run: Run, expr: str, **options: Any) -> set[str]:
    document = {
        "apiVersion": "resilience/v1", "kind": "Policy", "metadata": {"name": "a"},
        "spec": {"trigger": {"expr": expr, "on_no_data": "hold"},
                 "actions": [{"type": "throttle", "max_concurrency": 3}]},
    }
    return {f.code for f in run({"p.yaml": json.dumps(document)}, remote=True, **options).findings}


@needs_corpus
def test_every_file_has_been_looked_at() -> None:
    assert {p.name for p in FOLDER.iterdir()} == set(FOUND)


@needs_corpus
@pytest.mark.parametrize("name", FOUND)
def test_published_rules(run: Run, name: str) -> None:
    wanted = FOUND[name]
    text = (FOLDER / name).read_text(encoding="utf-8")
    if wanted is None:
        assert run({name: text.encode()}).errors
        return
    found = [codes(run, e) for d in yaml.safe_load_all(text) for e in expressions(d)]
    assert set().union(*found) == wanted[0]
    assert sum(not one for one in found) == wanted[1]


@needs_corpus
def test_thousands_of_expressions_raise_few_alarms(run: Run) -> None:
    """What is wrong in them was read one by one: labels of `status` that cannot meet in a sum."""
    lines = (FOLDER.parent / "exprs.jsonl").read_text(encoding="utf-8").splitlines()
    alarms = {"join-cannot-match", "label-unknown", "always-true", "never-true", "unit-mismatch",
              "avg-of-quantile", "rate-of-sum", "rate-of-gauge", "quantile-of-avg",
              "bool-comparison", "argument-range", "delta-of-counter"}
    hits = [expr for expr in (json.loads(line)["expr"] for line in lines)
            if codes(run, expr) & alarms]
    assert len(lines) > 1_500
    assert all("memcached_commands_total" in expr for expr in hits), hits


# The lesson of each published file, as a case of our own.
@pytest.mark.parametrize(
    ("expr", "code"),
    [
        ("DCGM_FI_DEV_FB_USED / DCGM_FI_DEV_FB_TOTAL > 0.9", "metric-optional"),
        ("DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 0.9", None),
        ("vllm:gpu_cache_usage_perc > 0.95", "metric-renamed"),
        ("(vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc) > 0.9", None),
        ("rate(vllm:request_success_total[1m]) >= 0", "always-true"),
        ("vector(1)", "constant-expr"),
        ("max(num_requests_running) by (pod) > 3", None),
        ("absent(vllm:num_requests_running{model_name=\"a\"}) and on() up == 1", None),
        ("rate(vllm:request_success_total{finished_reason=\"abort\"}[5m]) > 0.01", None),
        ("kserve_vllm:num_requests_waiting > 3", None),
        ("ray_vllm:gpu_prefix_cache_hit_rate > 0.3", "metric-renamed"),
        ("llm:ttft:p95_5m > 2", "metric-unknown"),
    ],
)
def test_lessons(run: Run, expr: str, code: str | None) -> None:
    assert codes(run, expr) == ({code} if code else set())
