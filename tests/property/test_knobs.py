"""Folds and leases: never two values for one knob, and each claim stands or falls alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.desired import BadDocumentError, ClaimTable, StaleDocumentError
from resilience.knobs import LiveClaim, fold, knob

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "throttle.max_concurrency": st.integers(0, 64),
    "cache.prefix_enabled": st.booleans(),
    "cache.max_running": st.integers(1, 64),
    "throttle.max_requests_per_second": st.floats(0, 100),
    "throttle.token_quota": st.fixed_dictionaries(
        {"tokens": st.integers(1, 9), "window_ms": st.sampled_from([1_000, 2_000])}
    ),
    "limiter.rule": st.fixed_dictionaries({
        "queue_time_ms": st.integers(1, 9), "time_per_token_ms": st.none(), "kv_usage": st.none(),
        "headroom": st.none() | st.sampled_from((0.1, 0.5)),
        "increase": st.just(0.15), "decrease": st.just(0.1), "minimum": st.just(1),
        "maximum": st.just(9),
    }),
    "route.model": st.fixed_dictionaries(
        {"to": st.sampled_from(["a", "b"]), "share": st.sampled_from([0.5, 1.0])}
    ),
}


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(list(VALUES)))
    axes = knob(name).axes  # type: ignore[union-attr]
    scope = draw(st.sampled_from([{}, {"tier": "core"}])) if axes else {}
    return {
        "knob": name,
        "scope": scope,
        "value": draw(VALUES[name]),
        "ttl_ms": draw(st.integers(1, 100)),
        "keep": draw(st.booleans()),
        "policy": draw(st.sampled_from(["p", "q", "r"])),
        "reason": "",
        "priority": draw(st.integers(0, 3)),
    }


def document(claims: list[dict[str, Any]], epoch: int = 1, generation: int = 1) -> dict[str, Any]:
    return {"version": 1, "epoch": epoch, "generation": generation, "claims": claims}


lists = st.lists(bodies(), max_size=6)


@given(lists, st.randoms())
def test_the_order_of_claims_does_not_matter(claims: list[dict[str, Any]], random: Any) -> None:
    table, other = ClaimTable(), ClaimTable()
    table.put(document(claims), 0)
    shuffled = list(claims)
    random.shuffle(shuffled)
    other.put(document(shuffled), 0)
    values = [
        {k: {s: c.value for s, c in scopes.items()} for k, scopes in t.folded(0).items()}
        for t in (table, other)
    ]
    assert values[0] == values[1]


@given(lists, st.integers(0, 120))
def test_a_lease_ends_alone(claims: list[dict[str, Any]], now_ms: int) -> None:
    """At any moment the table equals the fold of just the claims that are still alive."""
    table = ClaimTable()
    table.put(document(claims), 0)
    alive = [c for c in claims if c["keep"] or c["ttl_ms"] > now_ms]
    fresh = ClaimTable()
    fresh.put(document([{**c, "ttl_ms": 1_000} for c in alive]), 0)
    values = [
        {k: {s: c.value for s, c in scopes.items()} for k, scopes in folded.items()}
        for folded in (table.folded(now_ms), fresh.folded(0))
    ]
    assert values[0] == values[1]


@given(lists, st.sampled_from(["p", "q", "r"]))
def test_dropping_one_policy_leaves_the_others(claims: list[dict[str, Any]], name: str) -> None:
    table = ClaimTable()
    table.put(document([c for c in claims if c["policy"] != name]), 0)
    assert all(c.policy != name for scopes in table.folded(0).values() for c in scopes.values())


@given(st.lists(st.integers(0, 64), min_size=1, max_size=6))
def test_min_and_false_win(values: list[int]) -> None:
    claims = [
        LiveClaim("throttle.max_concurrency", (), v, f"p{i}", 0, 1) for i, v in enumerate(values)
    ]
    assert fold(claims)["throttle.max_concurrency"][""].value == min(values)
    flags = [LiveClaim("cache.prefix_enabled", (), v > 32, "p", 0, 1) for v in values]
    assert fold(flags)["cache.prefix_enabled"][""].value is all(v > 32 for v in values)


versions = st.tuples(st.integers(0, 3), st.integers(0, 3))


@given(versions, versions)
def test_an_older_document_is_refused(first: tuple[int, int], second: tuple[int, int]) -> None:
    table = ClaimTable()
    table.put(document([], *first), 0)
    if second < first:
        with pytest.raises(StaleDocumentError):
            table.put(document([], *second), 0)
        assert (table.epoch, table.generation) == first
    else:
        table.put(document([], *second), 0)
        assert (table.epoch, table.generation) == second


GOOD = {
    "knob": "throttle.max_concurrency", "scope": {}, "value": 8, "ttl_ms": 1000, "keep": False,
    "policy": "p", "reason": "", "priority": 50,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"knob": "throttle.unknown"}, {"knob": 3}, {"scope": {"colour": "m"}}, {"scope": []},
        {"scope": {"tier": 3}}, {"value": "8"}, {"value": True}, {"value": -1}, {"value": 8.5},
        {"scope": {"tenant": ""}}, {"value": float("nan")}, {"ttl_ms": 0}, {"ttl_ms": 10**9},
        {"ttl_ms": True}, {"keep": 1}, {"policy": None}, {"priority": "high"}, {"extra": 1},
        {"knob": "cache.max_running", "value": 0},
        {"knob": "route.model", "value": {"to": "m"}},
        {"knob": "route.model", "value": {"to": "", "share": 1}},
        {"knob": "route.model", "value": {"to": "m", "share": 0}},
        {"knob": "cache.prefix_enabled", "value": 0},
        {"value": 10**400}, {"knob": "throttle.max_requests_per_second", "value": 10**400},
        {"knob": "metric.x", "value": 10**400},
        {"knob": "throttle.token_quota", "value": {"tokens": 10**400, "window_ms": 1_000}},
    ],
)  # fmt: skip
def test_nonsense_changes_nothing(change: dict[str, Any]) -> None:
    table = ClaimTable()
    table.put(document([GOOD], 1, 1), 0)
    with pytest.raises(BadDocumentError):
        table.put(document([GOOD, {**GOOD, **change}], 2, 2), 0)
    assert (table.epoch, table.generation, len(table.claims)) == (1, 1, 1)


@pytest.mark.parametrize(
    "body",
    [None, [], {}, {"version": 1}, {**document([]), "version": 2}, {**document([]), "epoch": -1},
     {**document([]), "claims": {}}, {**document([]), "more": 1}, document([GOOD] * 257)],
)  # fmt: skip
def test_a_malformed_document_is_refused(body: Any) -> None:
    with pytest.raises(BadDocumentError):
        ClaimTable().put(body, 0)
