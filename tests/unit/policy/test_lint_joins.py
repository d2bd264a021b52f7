"""Joins and groupings by labels: which sides have them, by the catalogue and by aggregation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.policy.check import CheckResult

Run = Callable[..., CheckResult]
Policy = Callable[..., str]


@pytest.mark.parametrize(
    ("expr", "codes"),
    [
        # joins by labels that one side does not have
        (
            "vllm:num_requests_waiting > 5 and on (gpu) DCGM_FI_DEV_GPU_UTIL > 90",
            ["join-cannot-match"],
        ),
        (
            "vllm:num_requests_waiting > 5 and on (model_name) DCGM_FI_DEV_GPU_UTIL > 90",
            ["join-cannot-match"],
        ),
        ("vllm:num_requests_waiting > 5 and on (model_name) up == 1", ["join-cannot-match"]),
        (
            "vllm:num_requests_waiting > 5 and on (model_name)"
            " nv_inference_pending_request_count > 5",
            ["join-cannot-match"],
        ),
        (
            "vllm:num_requests_waiting / on (finished_reason)"
            " rate(vllm:request_success_total[1m]) > 5",
            ["join-cannot-match"],
        ),
        ("sum by (model_name, gpu) (vllm:num_requests_waiting) > 5", ["label-unknown"]),
        ("sum by (gpu) (vllm:num_requests_waiting) > 5", ["label-unknown"]),
        ("sum by (instance) (sum by (job) (up)) < 2", ["label-unknown"]),
        (
            "max by (model_name) (sum without (model_name) (vllm:num_requests_waiting)) > 5",
            ["label-unknown"],
        ),
        (
            "vllm:num_requests_waiting * on (pod) group_left (gpu)"
            " vllm:num_requests_running > 5",
            ["label-unknown"],
        ),
        (
            "vllm:num_requests_waiting * on (instance) group_left (model_name) up > 5",
            ["label-unknown"],
        ),
        (
            "up * on (instance) group_right (finished_reason)"
            " rate(vllm:request_success_total[1m]) > 5",
            ["label-unknown"],
        ),
        (
            "vllm:num_requests_waiting * on (job) group_left (instance) sum by (job) (up)"
            " > 5",
            ["label-unknown"],
        ),
        (
            "rate(vllm:request_success_total[1m]) / on (model_name)"
            " vllm:num_requests_running > 5",
            ["join-cannot-match"],
        ),
        (
            "rate(vllm:request_success_total[1m]) / ignoring (finished_reason)"
            " vllm:num_requests_running > 5",
            ["join-cannot-match"],
        ),
        (
            "vllm:num_requests_running / on (instance) group_left"
            " rate(vllm:request_success_total[1m]) > 5",
            ["join-cannot-match"],
        ),
        (
            "vllm:num_requests_waiting > 5 and ignoring (gpu) DCGM_FI_DEV_GPU_UTIL > 90",
            ["join-cannot-match"],
        ),
        # joins that can match
        ("vllm:num_requests_waiting > 5 and on (pod) DCGM_FI_DEV_GPU_UTIL > 90", []),
        (
            "vllm:num_requests_waiting > 5 and on (namespace, pod) max by (namespace, pod)"
            " (DCGM_FI_DEV_GPU_UTIL) > 90",
            [],
        ),
        ("vllm:num_requests_waiting > 5 and on (instance) up == 1", []),
        (
            "rate(vllm:request_success_total[1m]) / on (instance, model_name) group_left"
            " vllm:num_requests_running > 5",
            [],
        ),
        (
            "sum by (model_name) (rate(vllm:request_success_total[1m])) / on (model_name)"
            " sum by (model_name) (vllm:num_requests_running) > 5",
            [],
        ),
        (
            'rate(vllm:request_success_total{finished_reason="abort"}[1m]) / ignoring'
            " (finished_reason) vllm:num_requests_running > 5",
            [],
        ),
        (
            "vllm:num_requests_waiting * on (pod) group_left (gpu, modelName)"
            " DCGM_FI_DEV_GPU_UTIL > 5",
            [],
        ),
        ("vllm:num_requests_waiting * on (instance) group_left (team) up > 5", []),
        ("sum by (job) (sum by (job, instance) (up)) < 2", []),
        ("sum by (team) (vllm:num_requests_waiting) > 5", []),
        ("max by (gpu) (DCGM_FI_DEV_GPU_UTIL) > 90", []),
        ("sum by (model, version) (rate(nv_inference_request_failure[5m])) > 1", []),
        ("DCGM_FI_DEV_GPU_UTIL * on (UUID) group_left () DCGM_FI_DEV_FB_USED > 5", []),
        ("vllm:num_requests_waiting * on () group_left () count(up) > 5", []),
        (
            'label_replace(DCGM_FI_DEV_GPU_UTIL, "model_name", "a", "", "") > 90 and on'
            " (model_name) vllm:num_requests_waiting > 5",
            [],
        ),
        (
            "sum by (node) (kube_pod_info * on (pod) group_left ()"
            " vllm:num_requests_waiting) > 5",
            [],
        ),
    ],
)
def test_joins(run: Run, policy: Policy, expr: str, codes: list[str]) -> None:
    findings = run(policy(expr)).findings
    assert sorted({f.code for f in findings} - {"metric-unknown"}) == codes, findings


def test_the_labels_of_a_target_come_first(run: Run, policy: Policy) -> None:
    """A target that has been asked knows better than the catalogue what its series have."""
    expr = "vllm:num_requests_waiting > 5 and on (gpu) vllm:num_requests_running > 5"
    names = ["vllm:num_requests_waiting", "vllm:num_requests_running"]
    both = {name: frozenset({"gpu", "model_name"}) for name in names}
    assert not run(policy(expr), metric_names=names, metric_labels=both).findings
    one = both | {names[1]: frozenset({"model_name"})}
    (finding,) = run(policy(expr), metric_names=names, metric_labels=one).findings
    assert finding.code == "join-cannot-match" and names[1] in finding.message
