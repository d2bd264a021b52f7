"""What a trigger says: fire and domain apart, Kleene over and/or/unless, blind is not false."""

from __future__ import annotations

import numpy as np
import pytest

from resilience.model import QueryResult, Reason, Sample, TriggerObservation, Truth, labels_of
from resilience.promql.evaluate import instant
from resilience.promql.parser import parse
from resilience.promql.truth import compile_trigger, observe
from resilience.sources.store import MemoryStore

NOW = 1_039_000
SERIES = (
    ({"__name__": "kv", "m": "a"}, 0.95), ({"__name__": "kv", "m": "b"}, 0.5),
    ({"__name__": "wait", "m": "a"}, 7.0), ({"__name__": "zero", "m": "a"}, 0.0),
    ({"__name__": "info", "m": "a", "v": "1"}, 1.0),
)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    made = MemoryStore()
    labels = tuple(labels_of(d) for d, _ in SERIES)
    for i in range(40):
        made.append(1_000_000 + i * 1_000, labels, np.array([v for _, v in SERIES]))
    return made


def look(store: MemoryStore, expr: str, t_ms: int = NOW) -> TriggerObservation:
    plan = compile_trigger(expr)
    answers = instant([parse(q) for q in plan.queries], store.view(), t_ms)
    return observe(plan, dict(zip(plan.queries, answers, strict=True)), t_ms, 3_000)


def brief(observation: TriggerObservation) -> list[str]:
    return [
        f"{','.join(v for _, v in s.labels) or '-'}:{s.truth.value}:{s.reason.value}:{s.value}"
        for s in observation.series
    ]


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("kv > 0.9", ["a:true:breach:0.95", "b:false:clear:0.5"]),
        ("0.9 < kv", ["a:true:breach:0.95", "b:false:clear:0.5"]),
        ("max by (m) (kv) > 0.9 and wait > 5", ["a:true:breach:0.95", "b:false:clear:0.5"]),
        ("kv > 0.9 and on (m) nope > 1", ["a:unknown:blind_no_series:0.95", "b:false:clear:0.5"]),
        ("kv > 0.9 or nope > 1", ["a:true:breach:0.95", "b:unknown:blind_no_series:0.5"]),
        ("kv > 0.9 unless on (m) wait > 5", ["a:false:clear:0.95", "b:false:clear:0.5"]),
        ("kv > 0.9 unless on (m) wait > 9", ["a:true:breach:0.95", "b:false:clear:0.5"]),
        ("kv > 0.9 unless on (m) nope", ["a:unknown:blind_no_series:0.95", "b:false:clear:0.5"]),
        ("kv > 0.4 and on (m) wait > 9", ["a:false:clear:0.95", "b:false:clear:0.5"]),
        ("nope > 1", []),
        ('absent(nope{z="1"})', ["1:true:breach:1.0"]),
        ('absent(kv{m="a"})', ["a:false:clear:None"]),
        ("zero / zero > 1", ["a:unknown:idle:nan"]),
        ("zero / zero != 1", ["a:unknown:idle:nan"]),
        ("kv > bool 0.9", ["a:true:breach:1.0", "b:false:clear:0.0"]),
        ("kv > on (m) wait", ["a:false:clear:None"]),
        ("wait > on (m) group_left (v) info", ["a,1:true:breach:7.0"]),
        ("kv > scalar(nope)", ["a:unknown:idle:None", "b:unknown:idle:None"]),
        ("vector(1)", ["-:true:breach:1.0"]),
        ("1", ["-:true:breach:1.0"]),
        ("1 > bool 2", ["-:false:clear:0.0"]),
        ("kv", ["a:true:breach:0.95", "b:true:breach:0.5"]),
        ("count(kv) or vector(0)", ["-:true:breach:2.0"]),
        ("kv offset 10s > 0.9", ["a:true:breach:0.95", "b:false:clear:0.5"]),
    ],
)
def test_truth(store: MemoryStore, expr: str, expected: list[str]) -> None:
    assert brief(look(store, expr)) == expected


@pytest.mark.parametrize(
    "expr", ["kv > 0.9", "rate(kv[30s]) > 0.1", "kv > 0.9 or wait > 5", "sum(kv) > 0", "kv"]
)
def test_old_samples_are_unknown_not_false(store: MemoryStore, expr: str) -> None:
    assert {s.truth for s in look(store, expr, NOW + 3_000).series} <= {Truth.TRUE, Truth.FALSE}
    old = look(store, expr, NOW + 4_000)
    assert {(s.truth, s.reason) for s in old.series} == {(Truth.UNKNOWN, Reason.BLIND_STALE)}
    assert old.missing is Reason.BLIND_STALE
    assert old.detail == "newest sample: 4 s"


def test_the_other_name_of_a_metric_stands_in_for_one_that_grew_old() -> None:
    store = MemoryStore()
    for i in range(20):
        name = "old" if i < 10 else "new"
        store.append(1_000_000 + i * 1_000, (labels_of({"__name__": name}),), np.array([0.95]))
    assert brief(look(store, "(new or old) > 0.9", 1_019_000)) == ["-:true:breach:0.95"]
    assert brief(look(store, "new > 0.9 and old > 0.9", 1_019_000)) == [
        "-:unknown:blind_stale:0.95"
    ]
    assert brief(look(store, "(new or old) > 0.9", 1_024_000)) == ["-:unknown:blind_stale:0.95"]


def test_samples_fixed_in_time_do_not_grow_old(store: MemoryStore) -> None:
    assert brief(look(store, "kv @ 1030 > 0.9", NOW + 60_000))[0] == "a:true:breach:0.95"


def test_a_failed_query_makes_all_unknown(store: MemoryStore) -> None:
    plan = compile_trigger("kv > 0.9")
    answers = {q: QueryResult(q) for q in plan.queries}
    answers[plan.queries[0]] = QueryResult(plan.queries[0], error="timed out")
    found = observe(plan, answers, NOW, 3_000)
    assert (found.series, found.missing, found.detail) == (
        (), Reason.BLIND_SOURCE_ERROR, "timed out"
    )
    assert observe(plan, {}, NOW, 3_000).missing is Reason.BLIND_SOURCE_ERROR


def test_a_warning_makes_the_answer_partial(store: MemoryStore) -> None:
    plan = compile_trigger("kv > 0.9")
    labels = labels_of({"m": "a"})
    answers = {
        q: QueryResult(q, samples=(Sample(labels, 1.0),), warnings=("one store is down",))
        for q in plan.queries
    }
    found = observe(plan, answers, NOW, 3_000_000)
    assert [(s.truth, s.reason) for s in found.series] == [(Truth.UNKNOWN, Reason.BLIND_PARTIAL)]


def test_inputs_show_queries_values_and_the_newest_sample(store: MemoryStore) -> None:
    inputs = look(store, "sum(kv) > 1").inputs
    assert [(i.query, i.value, i.sample_ms) for i in inputs] == [
        ("sum(kv) > 1", 1.45, NOW), ("sum(kv)", 1.45, NOW),
    ]
    assert look(store, "kv > 0.9").inputs[0].value == [[{"__name__": "kv", "m": "a"}, 0.95]]


def test_the_domain_of_two_vectors_keeps_matching_and_labels() -> None:
    plan = compile_trigger("a > on (x) group_left (y) b")
    assert "(a) + on (x) group_left (y) (b)" in plan.queries


def test_equal_triggers_are_one_plan() -> None:
    assert compile_trigger("kv > 0.9") is compile_trigger("kv > 0.9")


@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [
        (0, ["-:true:breach:6.0"]), (3_000, ["-:true:breach:6.0"]),
        (3_001, ["-:unknown:blind_stale:6.0"]), (299_000, ["-:unknown:blind_stale:6.0"]),
    ],
)
def test_series_that_differ_by_name_only_have_an_age_too(
    age_ms: int, expected: list[str]
) -> None:
    """`timestamp` takes the names off and would fail for them."""
    made = MemoryStore()
    labels = tuple(labels_of({"__name__": name, "m": "a"}) for name in ("x_bucket", "y_bucket"))
    made.append(1_000_000, labels, np.array([2.0, 4.0]))
    expr = 'sum({__name__=~".+_bucket"}) > 5'
    assert brief(look(made, expr, 1_000_000 + age_ms)) == expected
    assert brief(look(made, 'sum({__name__=~".+_bucket"} offset 1m) > 5', 1_060_000)) == [
        "-:true:breach:6.0"
    ]


@pytest.mark.parametrize("newest", [np.nan, np.inf, -np.inf])
def test_a_server_that_answers_no_time_says_nothing_of_the_age(newest: float) -> None:
    plan = compile_trigger("kv > 0.9")
    answers = {q: QueryResult(q, "vector", (Sample((), newest),)) for q in plan.queries}
    known = {"kv > 0.9": 0.95, "kv": 0.95}
    answers |= {q: QueryResult(q, "vector", (Sample((), v),)) for q, v in known.items()}
    assert brief(observe(plan, answers, NOW, 3_000)) == ["-:unknown:blind_stale:0.95"]
