"""Every lever of the vLLM core on a real server: enforced, seen by users, and undone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any

import pytest

from resilience.cores.client import HttpCore
from resilience.cores.process import ServerProcess
from resilience.errors import CoreFencedError, CoreRefusedError, CoreUnauthorizedError
from resilience.model import Claim, Desired
from tests.live import serving as kit

pytestmark = pytest.mark.live
MakeClaim = Callable[..., Claim]
Eventually = Callable[..., None]

LONG = 600
ENDLESS = kit.TOKENS_MAX  # far more than any machine makes before the test ends it
PROMPT_BLOCKS = 3 * 128 + 17


def running(api: Any) -> float:
    return float(api.metric("vllm:num_requests_running"))


def inflight(api: Any) -> float:
    return float(api.metric("resilience_gate_inflight"))


def begin(stack: ExitStack, api: Any, prompt: str) -> None:
    """Open an endless stream, until `stack` ends, and wait for its first chunk: then it runs."""
    response = stack.enter_context(api.stream(prompt, ENDLESS))
    assert response.status_code == 200
    lines = stack.enter_context(closing(response.iter_lines()))
    assert next(lines).startswith("data: ")


def test_the_core_names_its_levers(core: HttpCore, served_names: Sequence[str]) -> None:
    found = core.capabilities(deadline_ms=60_000)
    grades = {knob: capability.grade for knob, capability in found.knobs.items()}
    assert {knob for knob, grade in grades.items() if grade == "gate"} >= {
        "throttle.max_concurrency", "route.model",
    }
    assert {knob: grade for knob, grade in grades.items() if grade != "gate"} == {
        "cache.prefix_enabled": "subclass", "cache.max_running": "subclass",
        "cache.step_tokens": "attribute", "cache.admit_running": "attribute",
        "cache.kv_blocks": "subclass", "cache.kv_blocks_soft": "attribute",
        "cache.batching": "attribute", "cache.mode": "subclass",
    }
    assert found.models == tuple(served_names)
    assert found.impulses == (
        "reset_prefix_cache", "pause", "resume", "drain", "abort_requests", "capture_incident",
    )
    assert found.dropped == ()
    assert found.knobs["throttle.max_concurrency"].capacity == 8.0


def test_a_throttle_refuses_one_tier_and_is_undone(
    api: Any, driver: Any, claim: MakeClaim, eventually: Eventually
) -> None:
    eventually(lambda: inflight(api) == 0)
    driver.hold(claim("throttle.max_concurrency", 1, tier="best-effort"))
    with ExitStack() as stack:
        begin(stack, api, "first")
        refused = api.complete("second")
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 5
        assert refused.headers["x-resilience-policy"] == "live-test"
        assert refused.headers["x-resilience-reason"] == "overload"
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert api.complete("other tier", tier="core").status_code == 200
        driver.hold()
        assert api.complete("third").status_code == 200
    eventually(lambda: inflight(api) == 0)


def test_a_throttle_of_the_whole_server_counts_all_tiers(
    api: Any, driver: Any, claim: MakeClaim
) -> None:
    driver.hold(claim("throttle.max_concurrency", 0))
    assert api.complete("x", tier="core").status_code == 429
    assert api.complete("x").status_code == 429
    driver.hold()
    assert api.complete("x", tier="core").status_code == 200


def test_a_client_that_leaves_is_counted_down(api: Any, eventually: Eventually) -> None:
    eventually(lambda: inflight(api) == 0)
    left = api.metric("resilience_gate_requests_total", outcome="disconnected")
    with ExitStack() as stack:
        begin(stack, api, "leaving")
        assert inflight(api) == 1
    eventually(lambda: inflight(api) == 0 and running(api) == 0)
    eventually(
        lambda: api.metric("resilience_gate_requests_total", outcome="disconnected") == left + 1)


def hit_rate(api: Any, prompt: str) -> float:
    """Send a prompt and return the share of its tokens that came from the prefix cache."""
    names = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
    before = [api.metric(name) for name in names]
    assert api.complete(prompt, 2).status_code == 200
    hits, queries = (api.metric(n) - b for n, b in zip(names, before, strict=True))
    assert queries > 0
    return float(hits / queries)


def test_the_prefix_cache_goes_to_zero_and_back(api: Any, driver: Any, claim: MakeClaim) -> None:
    prompt = "p" * PROMPT_BLOCKS
    hit_rate(api, prompt)
    assert hit_rate(api, prompt) > 0.9
    driver.hold(claim("cache.prefix_enabled", False))
    assert hit_rate(api, prompt) == 0.0
    driver.hold()
    assert hit_rate(api, prompt) > 0.9


def test_running_sequences_are_cut_and_restored(
    api: Any, driver: Any, claim: MakeClaim, eventually: Eventually
) -> None:
    preempted = api.metric("vllm:num_preemptions_total")

    def all_are_cut() -> bool:
        """Say whether four were preempted, told with their next tokens. Between two answers a user
        has none that runs, so that the limit may find fewer than six."""
        eventually(lambda: running(api) == 6)
        driver.hold(claim("cache.max_running", 2))
        eventually(lambda: running(api) == 2 and api.metric("vllm:num_requests_waiting") == 4)
        driver.hold()
        eventually(lambda: running(api) == 6)
        return bool(api.metric("vllm:num_preemptions_total") >= preempted + 4)

    with kit.Users(lambda who: api.complete(who, LONG), 6) as users:
        eventually(all_are_cut)
    assert users.lengths() == {LONG}


def test_a_step_takes_fewer_tokens_and_again_as_many(
    api: Any, driver: Any, claim: MakeClaim, eventually: Eventually
) -> None:
    """With one token a step one request takes it, so that the other is not even admitted. Both
    ask again when they have their answer, so a machine that stands still ends nothing."""
    driver.hold(claim("cache.step_tokens", 1))
    with kit.Users(lambda who: api.complete(who, LONG), 2) as users:
        eventually(lambda: api.metric("vllm:num_requests_waiting") == 1 == running(api))
        driver.hold()
        eventually(lambda: running(api) == 2)
    assert users.lengths() == {LONG}


def test_a_route_leads_to_the_adapter_and_back(
    api: Any, driver: Any, claim: MakeClaim, served_names: Sequence[str]
) -> None:
    base, adapter = served_names
    usual = api.complete("route", 16)
    assert usual.json()["model"] == base and "x-resilience-model" not in usual.headers
    driver.hold(claim("route.model", {"to": adapter, "share": 1.0}, tier="best-effort"))
    routed = api.complete("route", 16)
    assert routed.json()["model"] == adapter
    assert routed.headers["x-resilience-model"] == adapter
    assert routed.headers["x-resilience-policy"] == "live-test"
    assert routed.json()["choices"][0]["text"] != usual.json()["choices"][0]["text"]
    assert api.complete("route", 2, tier="core").json()["model"] == base
    driver.hold(claim("route.model", {"to": adapter, "share": 0.5}))
    models = [api.complete("route", 2).json()["model"] for _ in range(4)]
    assert sorted(models) == [base, base, adapter, adapter]
    driver.hold()
    assert api.complete("route", 16).json()["model"] == base


def test_a_routed_stream_says_so_and_ends_whole(
    api: Any, driver: Any, claim: MakeClaim, served_names: Sequence[str]
) -> None:
    driver.hold(claim("route.model", {"to": served_names[1], "share": 1.0}))
    with api.stream("stream", 8) as response:
        assert response.headers["x-resilience-model"] == served_names[1]
        chunks = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert chunks[-1] == "[DONE]"
    assert {json.loads(chunk)["model"] for chunk in chunks[:-1]} == {served_names[1]}


def test_what_the_core_cannot_honour_changes_nothing(
    core: HttpCore, driver: Any, claim: MakeClaim
) -> None:
    good = claim("throttle.max_concurrency", 5, tier="core")
    driver.hold(good)
    for bad in (
        claim("route.model", {"to": "nowhere", "share": 1.0}),
        claim("throttle.max_concurrency", 1, tier="platinum"),
        claim("cache.max_running", 0),
    ):
        with pytest.raises(CoreRefusedError, match="`"):
            driver.hold(good, bad)
    effective = core.actual(deadline_ms=60_000).effective
    assert {k: list(v) for k, v in effective.items()} == {"throttle.max_concurrency": ["tier=core"]}


@pytest.mark.parametrize("token", ["", "wrong", "é"])
def test_a_wrong_or_missing_token_is_refused(server: ServerProcess, token: str) -> None:
    import httpx

    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    for method, path in (
        ("GET", "capabilities"), ("GET", "actual"), ("PUT", "desired"), ("POST", "impulses/k"),
    ):
        url = f"{server.url}/resilience/v1/{path}"
        assert httpx.request(method, url, headers=headers, timeout=60).status_code == 401
    assert httpx.get(f"{server.url}/resilience/health", timeout=60).status_code == 200
    with HttpCore(server.url, "wrong") as stranger, pytest.raises(CoreUnauthorizedError):
        stranger.actual(deadline_ms=60_000)


def test_an_older_engine_is_fenced_off(core: HttpCore, driver: Any, claim: MakeClaim) -> None:
    mine = claim("throttle.max_concurrency", 3, tier="core")
    driver.hold(mine)
    with pytest.raises(CoreFencedError) as caught:
        core.put_desired(Desired(driver.epoch - 1, 99), deadline_ms=60_000)
    assert caught.value.epoch == driver.epoch
    with pytest.raises(CoreFencedError):
        core.impulse(
            "old", "reset_prefix_cache", None, epoch=driver.epoch - 1, deadline_ms=60_000
        )
    effective = core.actual(deadline_ms=60_000).effective["throttle.max_concurrency"]
    assert effective["tier=core"].value == 3


def test_a_repeated_impulse_gets_the_stored_result(
    api: Any, core: HttpCore, driver: Any
) -> None:
    prompt = "i" * PROMPT_BLOCKS
    driver.hold()
    hit_rate(api, prompt)
    key = f"impulse-{driver.epoch}"

    def reset() -> Any:
        return core.impulse(
            key, "reset_prefix_cache", None, epoch=driver.epoch, deadline_ms=60_000
        )

    first = reset()
    assert first["done"] is True
    assert hit_rate(api, prompt) == 0.0
    assert reset() == first
    assert hit_rate(api, prompt) > 0.9  # the repeat did not empty the cache again


def test_the_prefix_cache_is_forgotten_while_others_run(
    api: Any, core: HttpCore, driver: Any
) -> None:
    prompt = "w" * PROMPT_BLOCKS
    driver.hold()
    hit_rate(api, prompt)
    preempted = api.metric("vllm:num_preemptions_total")
    with ExitStack() as stack:
        begin(stack, api, "other")
        result = core.impulse(
            f"running-{driver.epoch}", "reset_prefix_cache", None, epoch=driver.epoch,
            deadline_ms=60_000,
        )
        assert result == {"done": True, "how": "evicted"}
        assert hit_rate(api, prompt) == 0.0
    assert api.metric("vllm:num_preemptions_total") == preempted


def test_a_client_that_stops_renewing_loses_its_claims_in_both_processes(
    api: Any, core: HttpCore, server: ServerProcess, driver: Any, claim: MakeClaim,
    eventually: Eventually,
) -> None:
    def enforced() -> bool:
        """Renew, and see it in both processes."""
        held = driver.hold(
            claim("throttle.max_concurrency", 0, ttl_ms=3_000, tier="best-effort"),
            claim("throttle.max_concurrency", 7, ttl_ms=600_000, tier="core"),
            claim("cache.max_running", 1, ttl_ms=3_000),
        )
        if "cache.max_running" not in held.effective:   # it has ended again: a slow machine
            return False
        assert held.effective["cache.max_running"][""].value == 1
        return api.complete("x").status_code == 429 and running(api) == 1

    load = kit.Load(server.url)
    try:
        eventually(enforced)
        eventually(lambda: api.complete("x", 1).status_code == 200)
        eventually(lambda: running(api) > 1)
    finally:
        load.end()
    effective = core.actual(deadline_ms=60_000).effective
    assert {k: list(v) for k, v in effective.items()} == {"throttle.max_concurrency": ["tier=core"]}


def test_the_gate_exports_what_it_did(api: Any, driver: Any, claim: MakeClaim) -> None:
    driver.hold(claim("throttle.max_concurrency", 0, tier="elastic"))
    before = api.metric("resilience_gate_refused_total", tier="elastic", policy="live-test")
    streams = api.metric("resilience_gate_ttft_seconds_count", tier="core")
    assert api.complete("x", tier="elastic").status_code == 429
    headers = {"x-slo-tier": "core"}
    body = api.body("x", 4, stream=True)
    with api.client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        response.read()
    assert api.metric("resilience_gate_refused_total", tier="elastic") == before + 1
    assert api.metric("resilience_gate_ttft_seconds_count", tier="core") == streams + 1
    assert api.metric("resilience_gate_failed_open_total") == 0


def test_the_gate_still_closes_when_the_engine_process_hangs(
    api: Any, server: ServerProcess, driver: Any, claim: MakeClaim
) -> None:
    wanted = (
        claim("throttle.max_concurrency", 0, tier="elastic"), claim("cache.max_running", 3),
    )
    (pid,) = kit.of_engine(server.pid, "EngineCore")
    os.kill(pid, signal.SIGSTOP)
    try:
        driver.generation += 1
        desired = Desired(driver.epoch, driver.generation, wanted)
        with HttpCore(server.url, server.token) as core:
            held = core.put_desired(desired, deadline_ms=60_000)
        assert held.effective["throttle.max_concurrency"]["tier=elastic"].value == 0
        assert [entry["knob"] for entry in held.dropped] == ["cache.max_running"]
        assert api.complete("x", tier="elastic").status_code == 429
    finally:
        os.kill(pid, signal.SIGCONT)
    held = driver.hold(*wanted)
    assert held.effective["cache.max_running"][""].value == 3 and held.dropped == ()
    assert api.complete("x").status_code == 200
