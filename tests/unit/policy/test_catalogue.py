"""The metric catalogue: its tables are whole, and its versions answer as the servers did."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from resilience.gate.metrics import GateMetrics
from resilience.policy import catalogue
from resilience.policy.catalogue import Target, lookup, target_of

ROOT = Path(__file__).resolve().parents[3]
CORPUS = Path(os.environ.get("RESILIENCE_CORPUS", ROOT.parent / "shared" / "corpus")) / "metrics"
SERVERS = {  # a saved page -> what made it
    "01_vllm_0.5.4_kubeai_mock.txt": "vllm@0.5.4",
    "07_sglang_0.4_docs_full.txt": "sglang@0.4",
    "13_vllm_v1_dp_two_engines_kaito.txt": "vllm",
    "17_vllm_0.2x_spec_decode_no_help.txt": "vllm@0.25",
    "19_vllm_0.8_v1_router_issue.txt": "vllm@0.8",
    "21_vllm_lora_model_names.txt": "vllm@0.6.6",
    "23_vllm_waiting_by_reason_burst.txt": "vllm",
    "25_tgi_plain_mock.txt": "tgi",
    "27_dcgm_a100_no_type_spaces.txt": "vllm",
    "33_sglang_path_model_name.txt": "sglang",
    "39_ray_prefixed_vllm.txt": "vllm@0.6.6",
}


def test_every_line_of_the_tables_is_a_metric_of_its_own() -> None:
    names = [metric.name for metric in catalogue.metrics()]
    assert len(names) == len(set(names)) > 250
    for metric in catalogue.metrics():
        assert metric.unit in ("", "fraction", "percent", "seconds", "milliseconds",
                               "microseconds", "bytes", "mebibytes", "epoch"), metric
        assert metric.since is None or metric.last is None or metric.since <= metric.last
        assert metric.now is None or metric.last is not None


def test_every_successor_is_in_the_catalogue_and_current() -> None:
    for name, known in catalogue.series().items():
        now = known.successor()
        for word in re.findall(r"[a-z]+:[a-z_]+", now or ""):
            found = lookup(word)
            assert found is not None and found.metric.last is None, (name, word)


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"),
        ("ray_vllm:gpu_cache_usage_perc", "ray_vllm:kv_cache_usage_perc"),
        ("ray_vllm_gpu_cache_usage_perc", "ray_vllm_kv_cache_usage_perc"),
        ("kserve_vllm:gpu_cache_usage_perc", "kserve_vllm:kv_cache_usage_perc"),
        ("vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"),
        ("vllm:time_per_output_token_seconds_bucket", "vllm:inter_token_latency_seconds_bucket"),
        ("vllm:time_in_queue_requests_sum", "vllm:request_queue_time_seconds_sum"),
        ("vllm:num_requests_swapped", None),
        ("gpu_cache_usage_perc", "kv_cache_usage_perc"),
    ],
)
def test_successors_keep_part_and_platform(name: str, now: str | None) -> None:
    known = lookup(name)
    assert known is not None and known.successor() == now


@pytest.mark.parametrize(
    ("metric", "first", "last"),
    [
        ("vllm:kv_cache_usage_perc", "0.9.2", None), ("vllm:gpu_cache_usage_perc", None, "0.10"),
        ("vllm:inter_token_latency_seconds_sum", "0.10.2", None),
        ("vllm:time_per_output_token_seconds_sum", None, "0.11"),
        ("vllm:num_requests_swapped", None, "0.8"), ("vllm:num_requests_waiting", None, None),
    ],
)
def test_versions(metric: str, first: str | None, last: str | None) -> None:
    known = lookup(metric)
    assert known is not None
    for version in ("0.5", "0.8.5", "0.9.1", "0.9.2", "0.10.1", "0.10.2", "0.11.0", "0.12.0",
                    "0.32.1"):
        mine = tuple(map(int, version.split(".")))
        target = target_of(f"vllm@{version}")
        too_old = first is not None and mine < tuple(map(int, first.split(".")))
        too_new = last is not None and mine[:2] > tuple(map(int, last.split(".")))
        assert target.lacks_yet(known.metric) is too_old, version
        assert target.dropped(known.metric) is too_new, version


@pytest.mark.parametrize("text", ["vllm@0.11", "vllm@v0.11.0", "vLLM@0.11.0rc1", "vllm@0.11.0+cpu"])
def test_targets(text: str) -> None:
    target = target_of(text)
    assert (target.stack, (target.version or ())[:2]) == ("vllm", (0, 11))


@pytest.mark.parametrize(
    "text", ["", "vllm@", "vllm@new", "llama@1", "vllm 0.11", "@1", "vllm@1" * 99]
)
def test_no_targets(text: str) -> None:
    with pytest.raises(ValueError, match="as in `vllm@0.11`"):
        target_of(text)
    assert str(Target("vllm", (0, 11))) == "vLLM 0.11"


def test_the_gate_exports_what_the_catalogue_says() -> None:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    GateMetrics(registry)
    for family in registry.collect():
        known = lookup(f"{family.name}_total" if family.type == "counter" else family.name)
        assert known is not None and known.metric.stack == "gate", family.name
        assert known.metric.type == family.type


@pytest.mark.skipif(not CORPUS.is_dir(), reason="no corpus: set RESILIENCE_CORPUS")
@pytest.mark.parametrize("file", SERVERS)
def test_pages_of_real_servers(file: str) -> None:
    """Every series that a server of this version showed is in the catalogue, of its type, with its
    labels, and neither too old nor too new for it."""
    target = target_of(SERVERS[file])
    text = (CORPUS / file).read_text(encoding="utf-8")
    types = dict(re.findall(r"(?m)^ *# TYPE (\S+) (\S+)", text))
    seen = 0
    for name, body in re.findall(r"(?m)^ *([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*?)\})? +\S+ *$", text):
        if name.startswith(("litellm", "go_")):
            continue
        known = lookup(name)
        assert known is not None, name
        labels = {label for label, _ in re.findall(r'([A-Za-z_]+)="([^"]*)"', body)}
        own = known.labels
        assert own is None or name.startswith("ray_") or labels <= own | {"pid"}, (name, labels)
        if target.version:
            assert not target.dropped(known.metric) and not target.lacks_yet(known.metric), name
        kind = types.get(name)
        assert kind is None or known.part == "created" or known.metric.type in (
            kind, f"bare_{kind}"
        ), (name, kind)
        seen += 1
    assert seen >= 3


@pytest.mark.parametrize(
    ("target", "like"),
    [("vllm@0.4", "0.5"), ("vllm@0.4.3", "0.5"), ("vllm@0.5", None), ("vllm@0.5.4", None),
     ("vllm@0.33.9", None), ("vllm@0.34", "0.33"), ("vllm@99", "0.33"), ("vllm@1", "0.33"),
     ("vllm@0", "0.5"), ("vllm", None), ("sglang@0.9", None)],
)
def test_versions_that_the_catalogue_does_not_reach(target: str, like: str | None) -> None:
    said = catalogue.target_of(target).outside()
    assert (said is None) if like is None else bool(said and said.endswith(f"judged like {like}"))
