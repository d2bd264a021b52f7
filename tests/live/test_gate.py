"""The request path on a real vLLM: tiers, priorities, the queue, token limits, breakers."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import httpx
import pytest

from resilience.cores.client import HttpCore
from resilience.cores.process import ServerProcess
from resilience.model import Claim, EngineConfig, QueueSettings, Tenant, Tier, TierSource
from tests.live import serving as kit

pytestmark = pytest.mark.live
MakeClaim = Callable[..., Claim]
Eventually = Callable[..., None]

KEY = "sk-live-acme"
ENDLESS = kit.TOKENS_MAX  # far more than any machine makes before the test ends it
PATIENT_MS = 600_000
CONFIG = EngineConfig(
    tiers=(Tier("core", 0.999, 100, queue_timeout_ms=PATIENT_MS),
           Tier("elastic", 0.99, 500, queue_timeout_ms=200),
           Tier("best-effort", 0.95, queue_timeout_ms=PATIENT_MS)),
    queue=QueueSettings(32, PATIENT_MS),
)
_KEYS = itertools.count()


@pytest.fixture
def queueing(core: HttpCore) -> Iterator[None]:
    """Give the running gate a queue and a tenant, and take them away again."""
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    config = replace(CONFIG, tenants=(Tenant("acme", "core", (digest,)),))
    core.configure_gate(config, deadline_ms=60_000)
    yield
    core.configure_gate(EngineConfig(), deadline_ms=60_000)


def gate_of(server: ServerProcess) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {server.token}"}
    answer = httpx.get(
        f"{server.url}/resilience/v1/gate", headers=headers, timeout=60, trust_env=False)
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
    """Nothing waits in the gate here: the one seat is taken, and three wait in vLLM's queue. Who
    has the seat goes back to them."""
    driver.hold(claim("cache.max_running", 1))
    with ThreadPoolExecutor(3) as pool, ExitStack() as stack:
        end = begin(stack, api)
        low = [pool.submit(api.complete, f"{n} asks", ENDLESS) for n in range(3)]
        eventually(lambda: api.metric("vllm:num_requests_waiting") == 3)
        assert api.complete("core asks", 4, tier="core").status_code == 200
        assert not any(task.done() for task in low)
        end()
        abort(driver, low, eventually)


def test_a_prompt_that_is_being_read_gives_way_to_a_core_request(
    api: Any, driver: Any, claim: MakeClaim, eventually: Eventually
) -> None:
    """With one token a step the long prompt takes hundreds of steps, and the core request a few:
    vLLM alone would read the prompt to its end first."""
    driver.hold(claim("cache.step_tokens", 1))

    def gives_way() -> bool:
        """Say whether the prompt was still being read when the core request came."""
        prompt = f"{next(_KEYS)} " + " ".join(map(str, range(100, 900)))
        low = pool.submit(api.complete, prompt, 1)
        eventually(lambda: low.done() or api.metric("vllm:num_requests_running") == 1)
        preempted = api.metric("resilience_core_preempted_total")
        assert api.complete("core asks", 1, tier="core").status_code == 200
        if low.done():
            return False
        eventually(lambda: api.metric("resilience_core_preempted_total") > preempted)
        abort(driver, [low], eventually)
        return True

    with ThreadPoolExecutor(1) as pool:
        eventually(gives_way)


def abort(driver: Any, asked: Sequence[Future[Any]], eventually: Eventually) -> None:
    """End requests, also those that begin only when others have been ended."""
    def all_done() -> bool:
        driver.core.impulse(f"gate-{next(_KEYS)}", "abort_requests", {}, epoch=driver.epoch,
                            deadline_ms=60_000)
        return all(task.done() for task in asked)

    eventually(all_done)
    assert [task.result().status_code for task in asked] == [200] * len(asked)


def begin(stack: ExitStack, api: Any, tokens: int = ENDLESS) -> Callable[[], None]:
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
    with ThreadPoolExecutor(3) as pool, ExitStack() as stack:
        end = begin(stack, api)
        low = [pool.submit(api.complete, "x", ENDLESS) for _ in range(2)]
        eventually(lambda: gate_of(server)["waiting"] == 2)
        high = pool.submit(api.complete, "x", 4, tier="core")
        eventually(lambda: gate_of(server)["waiting"] == 3)
        assert api.metric("vllm:num_requests_waiting") == 0
        late = api.complete("x", 4, tier="elastic")
        assert late.status_code == 429
        assert late.headers["x-resilience-cause"] == "queue_timeout"
        end()
        assert high.result().status_code == 200
        assert not any(task.done() for task in low)
        abort(driver, low, eventually)
    eventually(lambda: gate_of(server)["in_flight"] == 0)


@pytest.mark.parametrize(("peers", "claimed", "tier"), [
    (("10.0.0.0/8",), "10.0.0.9", "best-effort"), (("127.0.0.0/8",), "192.0.2.1", "core"),
])
def test_the_peer_is_who_is_connected_not_whom_a_header_names(
    api: Any, core: HttpCore, eventually: Eventually, peers: tuple[str, ...], claimed: str,
    tier: str,
) -> None:
    def served() -> float:
        return float(api.metric("resilience_gate_requests_total", tier=tier, outcome="ok"))

    core.configure_gate(
        EngineConfig(tier_source=TierSource(trusted_peers=peers)), deadline_ms=60_000)
    try:
        before = served()
        answer = api.client.post(
            "/v1/completions", json=api.body("x", 1),
            headers={"x-slo-tier": "core", "x-forwarded-for": claimed})
        assert answer.status_code == 200
        eventually(lambda: served() == before + 1)
    finally:
        core.configure_gate(EngineConfig(), deadline_ms=60_000)


def test_a_key_makes_a_tenant_and_its_tier(
    api: Any, queueing: None, eventually: Eventually
) -> None:
    before = api.metric("resilience_gate_requests_total", tier="core", outcome="ok")
    body = api.body("x", 1)
    headers = {"authorization": f"Bearer {KEY}"}
    assert api.client.post("/v1/completions", json=body, headers=headers).status_code == 200
    eventually(
        lambda: api.metric("resilience_gate_requests_total", tier="core", outcome="ok")
        == before + 1)
    assert api.metric("resilience_gate_tenant_requests_total", tenant="acme") == 1


def test_token_limits_use_the_servers_tokenizer(
    api: Any, driver: Any, claim: MakeClaim, eventually: Eventually
) -> None:
    answer = api.complete("some words to count", 1)
    tokens = answer.json()["usage"]["prompt_tokens"]
    checked = api.metric("resilience_gate_token_estimate_checked_tokens_total")
    wrong = api.metric("resilience_gate_token_estimate_error_tokens_total")
    driver.hold(claim("throttle.max_context_tokens", tokens + 4))
    assert api.complete("some words to count", 4).status_code == 200
    refused = api.complete("some words to count " * 2, 4)
    assert refused.status_code == 429 and refused.headers["x-resilience-cause"] == "context"
    assert refused.headers["x-resilience-policy"] == "live-test"
    eventually(
        lambda: api.metric("resilience_gate_token_estimate_checked_tokens_total")
        == checked + tokens)
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
    driver.hold(claim("throttle.token_quota", {"tokens": 25, "window_ms": 3_600_000}))
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
    def second_is_refused() -> bool:
        """The first one may have ended where the machine stood still for some seconds."""
        eventually(lambda: api.metric("resilience_gate_inflight") == 0)
        with ExitStack() as stack:
            end = begin(stack, api, ENDLESS)
            status = api.complete("y", ENDLESS).status_code
            end()
        return bool(status == 429)

    driver.hold(claim("throttle.max_outstanding_tokens", ENDLESS + 200))
    eventually(second_is_refused)
    eventually(lambda: api.complete("y", 100).status_code == 200)


RULE = {
    "error_rate": None, "failures": None, "consecutive": None, "p99_ms": 1, "window_tokens": None,
    "window_ms": 600_000, "samples": 10, "evaluations": 2, "min_requests": 2, "min_rate": 0.0,
    "open_ms": 1_000, "probes": 1, "probe_timeout_ms": 60_000,
}


def refused(answer: httpx.Response) -> httpx.Response | None:
    return None if answer.status_code == 200 else answer


def test_a_breaker_opens_and_comes_back(
    api: Any, driver: Any, claim: MakeClaim, server: ServerProcess,
    eventually: Callable[..., Any],
) -> None:
    """Every answer is slower than a millisecond, so it opens; probes only have to succeed."""
    driver.hold(claim("breaker.rule", RULE, tier="elastic"))
    shut = eventually(lambda: refused(api.complete("x", 2, tier="elastic")))
    assert shut.status_code == 503 and shut.headers["x-resilience-cause"] == "breaker_open"
    assert int(shut.headers["retry-after"]) >= 1
    assert api.complete("x", 2, tier="core").status_code == 200
    eventually(lambda: api.complete("x", 2, tier="elastic").status_code == 200)
    way = [
        ("tier=elastic", "closed", "open"), ("tier=elastic", "open", "half_open"),
        ("tier=elastic", "half_open", "closed"),
    ]
    eventually(
        lambda: [(e["name"], e["from"], e["to"]) for e in gate_of(server)["events"]][-3:] == way)
    driver.hold()
    assert gate_of(server)["breakers"] == {}
