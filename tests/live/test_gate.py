"""The request path on a real vLLM: tiers, priorities, the queue, token limits, breakers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import httpx
import pytest

from resilience.cores.client import HttpCore
from resilience.cores.process import ServerProcess
from resilience.model import Claim, EngineConfig, QueueSettings, Tenant, Tier

pytestmark = pytest.mark.live
MakeClaim = Callable[..., Claim]
Eventually = Callable[..., None]

KEY = "sk-live-acme"
LONG = 1_200
CONFIG = EngineConfig(
    tiers=(Tier("core", 0.999, 100, queue_timeout_ms=60_000),
           Tier("elastic", 0.99, 500, queue_timeout_ms=200),
           Tier("best-effort", 0.95, queue_timeout_ms=60_000)),
    queue=QueueSettings(32, 60_000),
)


@pytest.fixture
def queueing(core: HttpCore) -> Iterator[None]:
    """Give the running gate a queue and a tenant, and take them away again."""
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    config = replace(CONFIG, tenants=(Tenant("acme", "core", (digest,)),))
    core.configure_gate(config, deadline_ms=5_000)
    yield
    core.configure_gate(EngineConfig(), deadline_ms=5_000)


def gate_of(server: ServerProcess) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {server.token}"}
    answer = httpx.get(f"{server.url}/resilience/v1/gate", headers=headers, trust_env=False)
    found: dict[str, Any] = answer.json()
    return found


def test_the_gate_says_what_it_does(server: ServerProcess) -> None:
    found = gate_of(server)
    assert found["waiting"] == 0 and found["breakers"] == {}
    assert set(found["config"]["tiers"]) == {"core", "elastic", "best-effort"}


def test_a_client_cannot_say_its_own_priority(api: Any) -> None:
    """Bare vLLM refuses what is no number; here what a client says is not even read."""
    for said in ("highest", -9_999, 2**70):
        assert api.complete("x", 1, priority=said).status_code == 200


def test_core_requests_go_first_in_vllms_own_scheduler(
    api: Any, driver: Any, claim: MakeClaim, eventually: Eventually
) -> None:
    """Nothing waits in the gate here: eight seats are taken, and vLLM's queue has both tiers."""
    driver.hold(claim("cache.max_running", 1))

    def ask(tier: str) -> tuple[float, str]:
        answer = api.complete(f"{tier} asks", 120, tier=tier)
        assert answer.status_code == 200
        return answer.elapsed.total_seconds(), tier

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(ask, "best-effort")
        eventually(lambda: api.metric("vllm:num_requests_running") == 1)
        low = [pool.submit(ask, "best-effort") for _ in range(3)]
        eventually(lambda: api.metric("vllm:num_requests_waiting") == 3)
        high = pool.submit(ask, "core")
        core_s, _ = high.result()
        still_waiting = [not task.done() for task in low]
        first.result()
        assert sum(still_waiting) >= 2 and core_s > 0
        assert all(task.result()[1] == "best-effort" for task in low)


def begin(stack: ExitStack, api: Any, tokens: int = LONG) -> Callable[[], None]:
    """Open a stream and wait for its first chunk; returns what ends it."""
    response = stack.enter_context(api.stream("long", tokens))
    assert response.status_code == 200
    lines = stack.enter_context(closing(response.iter_lines()))
    assert next(lines).startswith("data: ")
    return response.close  # type: ignore[no-any-return]


def test_requests_wait_in_the_gate_and_core_goes_first(
    api: Any, driver: Any, claim: MakeClaim, queueing: None, server: ServerProcess,
    eventually: Eventually,
) -> None:
    driver.hold(claim("throttle.max_concurrency", 1))
    order: list[str] = []

    def ask(tier: str) -> int:
        answer = api.complete("x", 4, tier=tier)
        order.append(tier)
        return int(answer.status_code)

    with ThreadPoolExecutor(4) as pool, ExitStack() as stack:
        end = begin(stack, api)
        low = [pool.submit(ask, "best-effort") for _ in range(2)]
        eventually(lambda: gate_of(server)["waiting"] == 2)
        high = pool.submit(ask, "core")
        eventually(lambda: gate_of(server)["waiting"] == 3)
        assert api.metric("vllm:num_requests_waiting") == 0
        late = api.complete("x", 4, tier="elastic")
        assert late.status_code == 429
        assert late.headers["x-resilience-cause"] == "queue_timeout"
        end()
        assert [high.result(), *(task.result() for task in low)] == [200] * 3
    assert order == ["core", "best-effort", "best-effort"]
    eventually(lambda: gate_of(server)["in_flight"] == 0)


def test_a_key_makes_a_tenant_and_its_tier(api: Any, queueing: None) -> None:
    before = api.metric("resilience_gate_requests_total", tier="core", outcome="ok")
    body = api.body("x", 1)
    headers = {"authorization": f"Bearer {KEY}"}
    assert api.client.post("/v1/completions", json=body, headers=headers).status_code == 200
    assert api.metric("resilience_gate_requests_total", tier="core", outcome="ok") == before + 1
    assert api.metric("resilience_gate_tenant_requests_total", tenant="acme") == 1


def test_token_limits_use_the_servers_tokenizer(api: Any, driver: Any, claim: MakeClaim) -> None:
    answer = api.complete("some words to count", 1)
    tokens = answer.json()["usage"]["prompt_tokens"]
    checked = api.metric("resilience_gate_token_estimate_checked_tokens_total")
    wrong = api.metric("resilience_gate_token_estimate_error_tokens_total")
    driver.hold(claim("throttle.max_context_tokens", tokens + 4))
    assert api.complete("some words to count", 4).status_code == 200
    refused = api.complete("some words to count " * 2, 4)
    assert refused.status_code == 429 and refused.headers["x-resilience-cause"] == "context"
    assert refused.headers["x-resilience-policy"] == "live-test"
    now = api.metric("resilience_gate_token_estimate_checked_tokens_total")
    assert now == checked + tokens
    error = api.metric("resilience_gate_token_estimate_error_tokens_total") - wrong
    assert error <= 1  # at most the token that opens every text


def test_output_is_cut_in_a_stream_too(api: Any, driver: Any, claim: MakeClaim) -> None:
    driver.hold(claim("throttle.max_output_tokens", 5))
    with api.stream("x", 50) as response:
        assert response.headers["x-resilience-policy"] == "live-test"
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]
    assert json.loads(lines[-1][6:])["choices"][0]["finish_reason"] == "length"
    assert len(lines) <= 5
    assert api.complete("x", 3).headers.get("x-resilience-reason") is None


def test_streamed_tokens_fill_the_quota(
    api: Any, driver: Any, claim: MakeClaim, eventually: Eventually
) -> None:
    # what a prompt alone counts is far below the quota, also in tokens of the reference
    driver.hold(claim("throttle.token_quota", {"tokens": 25, "window_ms": 60_000}))
    with api.stream("x", 120) as response:
        assert response.status_code == 200
        for _ in response.iter_lines():
            pass
    refused = api.complete("y", 1)
    assert refused.status_code == 429 and refused.headers["x-resilience-cause"] == "tokens"
    driver.hold()
    assert api.complete("y", 1).status_code == 200


def test_outstanding_tokens_hold_back_a_second_stream(
    api: Any, driver: Any, claim: MakeClaim, eventually: Eventually
) -> None:
    eventually(lambda: api.metric("resilience_gate_inflight") == 0)
    driver.hold(claim("throttle.max_outstanding_tokens", 300))
    with ExitStack() as stack:
        end = begin(stack, api, 250)
        assert api.complete("y", 100).status_code == 429
        end()
    eventually(lambda: api.complete("y", 100).status_code == 200)


RULE = {
    "error_rate": None, "failures": None, "consecutive": None, "p99_ms": 1, "window_tokens": None,
    "window_ms": 10_000, "samples": 10, "evaluations": 2, "min_requests": 2, "min_rate": 0.0,
    "open_ms": 300, "probes": 1, "probe_timeout_ms": 60_000,
}


def test_a_breaker_opens_and_comes_back(
    api: Any, driver: Any, claim: MakeClaim, server: ServerProcess, eventually: Eventually
) -> None:
    """Every answer is slower than a millisecond, so it opens; probes only have to succeed."""
    driver.hold(claim("breaker.rule", RULE, tier="elastic"))
    for _ in range(3):
        assert api.complete("x", 2, tier="elastic").status_code == 200
    shut = api.complete("x", 2, tier="elastic")
    assert shut.status_code == 503 and shut.headers["x-resilience-cause"] == "breaker_open"
    assert int(shut.headers["retry-after"]) >= 1
    assert api.complete("x", 2, tier="core").status_code == 200
    eventually(lambda: api.complete("x", 2, tier="elastic").status_code == 200)
    events = [(e["name"], e["from"], e["to"]) for e in gate_of(server)["events"]]
    assert events[-3:] == [
        ("tier=elastic", "closed", "open"), ("tier=elastic", "open", "half_open"),
        ("tier=elastic", "half_open", "closed"),
    ]
    driver.hold()
    assert gate_of(server)["breakers"] == {}
