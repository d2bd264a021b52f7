"""Whose request it is: keys, trusted peers, and what a client may not say about itself."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from dataclasses import replace
from typing import Any

import pytest

from resilience.gate.body import may_claim, parsed, strip, with_priority
from resilience.gate.config import GateConfig, GateTenant
from resilience.gate.identity import Identity, Who

KEY = "sk-acme-1"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()
TENANTS = {
    "acme": GateTenant((DIGEST,), "core", 2.0), "labs": GateTenant((), "elastic"),
    "plain": GateTenant(),
}
OUTSIDE, INSIDE = "203.0.113.9", "127.0.0.1"


@pytest.fixture
def identity(config: GateConfig) -> Identity:
    return Identity(replace(config, tenants=TENANTS))


@pytest.mark.parametrize(
    ("peer", "headers", "tier", "tenant"),
    [
        (OUTSIDE, {}, "best-effort", "other"),
        (OUTSIDE, {"authorization": f"Bearer {KEY}"}, "core", "acme"),
        (OUTSIDE, {"authorization": f"bearer  {KEY} "}, "core", "acme"),
        (OUTSIDE, {"x-api-key": KEY}, "core", "acme"),
        (OUTSIDE, {"authorization": "Bearer guess"}, "best-effort", "other"),
        (OUTSIDE, {"authorization": "Bearer EMPTY", "x-api-key": KEY}, "core", "acme"),
        (OUTSIDE, {"x-api-key": "guess", "authorization": f"Bearer {KEY}"}, "core", "acme"),
        (OUTSIDE, {"x-slo-tier": "core"}, "best-effort", "other"),
        (OUTSIDE, {"x-tenant": "acme"}, "best-effort", "other"),
        (OUTSIDE, {"authorization": f"Bearer {KEY}", "x-tenant": "labs"}, "core", "acme"),
        (INSIDE, {"x-tenant": "labs"}, "elastic", "labs"),
        (INSIDE, {"x-tenant": "plain"}, "best-effort", "plain"),
        (INSIDE, {"x-tenant": "nobody"}, "best-effort", "other"),
        (INSIDE, {"x-tenant": "labs", "x-slo-tier": "core"}, "core", "labs"),
        (INSIDE, {"authorization": f"Bearer {KEY}", "x-slo-tier": "elastic"}, "elastic", "acme"),
    ],
)
def test_tier_and_tenant(
    identity: Identity, peer: str, headers: dict[str, str], tier: str, tenant: str
) -> None:
    pairs = [(k.encode(), v.encode()) for k, v in headers.items()]
    who, _ = identity.of(pairs, pairs, peer)
    assert (who.tier, who.tenant) == (tier, tenant)


def test_what_is_remembered_of_a_trusted_peer_holds_for_it_alone(config: GateConfig) -> None:
    """Without API keys, who is named is remembered; a trace beside it changes nothing."""
    known = Identity(config)
    said = [(b"x-slo-tier", b"core"), (b"x-vllm-priority", b"-9")]
    traced = [*said, (b"traceparent", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01")]
    for told in (said, said, traced):
        assert known.of(told, told, INSIDE) == (
            Who("core", "other"), [pair for pair in told if pair[0] != b"x-vllm-priority"])
        assert known.of(told, told, OUTSIDE) == (Who("best-effort", "other"), told[2:])


def test_two_values_of_a_trusted_header_are_none(identity: Identity) -> None:
    """A proxy that adds its header leaves the client's own before it."""
    said = [(b"x-slo-tier", b"core"), (b"x-slo-tier", b"best-effort")]
    assert identity.of(said, said, INSIDE)[0].tier == "best-effort"
    twice = [(b"x-slo-tier", b"core")] * 2
    assert identity.of(twice, twice, INSIDE)[0].tier == "core"


def test_what_a_client_says_is_taken_out(identity: Identity) -> None:
    said = [(b"host", b"h"), (b"x-slo-tier", b"core"), (b"x-tenant", b"acme"),
            (b"x-vllm-priority", b"-9")]
    assert identity.of(said, said, OUTSIDE)[1] == [(b"host", b"h")]
    assert identity.of(said, said, INSIDE)[1] == said[:3]  # the priority is the gate's to say


@pytest.mark.parametrize(
    ("body", "suspect", "left"),
    [
        (b'{"prompt": "priority, tier and tenant"}', False, None),
        (b'{"prompt": "say \\"priority\\": 1"}', False, None),
        (b'{"priority": -5, "prompt": "x"}', True, {"prompt": "x"}),
        (b'{"pr\\u0069ority": -5}', True, {}),
        (b'{"prompt": "priority", "stop": "tier"}', False, None),
        (b'{"x": {"tier": 1}}', False, None),
        (b'{"tier": "core", "tenant": "a", "x": {"tier": 1}}', True, {"x": {"tier": 1}}),
        (b'{"vllm_xargs": {"tenant": "a", "k": 1}}', True, {"vllm_xargs": {"k": 1}}),
        (b'{"seed": Infinity, "priority": 1}', True, {"seed": math.inf}),
        (b'{"priority": 1, "\\ud800": 2}', True, {"\ud800": 2}),
        *((json.dumps({"priority": -5, "p": "x"}).encode(code), True, {"p": "x"})
          for code in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")),
    ],
)
def test_a_body_says_nothing_about_itself(body: bytes, suspect: bool, left: Any) -> None:
    assert may_claim(body) is suspect
    if suspect:
        fields = parsed(body)
        assert isinstance(fields, dict)
        strip(fields)
        assert fields == left


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{}", {"priority": 10}), (b' { } \n', {"priority": 10}),
        (b'{"a": "}"}', {"a": "}", "priority": 10}),
        (b'{"priority": -9}', {"priority": 10}), (b'{"a": {"b": 1}}\n', None),
    ],
)
def test_our_priority_is_the_last_word(body: bytes, told: Any) -> None:
    changed = with_priority(body, 10)
    assert changed is not None
    found = json.loads(changed)
    assert found["priority"] == 10 and (told is None or found == told)


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b'"}"', b"null", b'{"a": 1', b'{"a": "b}', b"{,}", b'{"a": 1}}',
             b'{"a": {"b": 1}', b'{"a" 1}', b'{"a": "x}'],
)
def test_what_is_no_object_does_not_become_one(body: bytes) -> None:
    assert with_priority(body, 10) is None


def test_an_object_that_only_python_reads_gets_its_priority() -> None:
    for body in (b'{"a": NaN}', b'\xef\xbb\xbf{"a": 1}'):
        changed = with_priority(body, 10)
        assert changed is not None and json.loads(changed)["priority"] == 10


@pytest.mark.parametrize("header", [True, False])
def test_the_scheduler_hears_the_tiers_priority(bench: Any, header: bool) -> None:
    bench.state.by_priority, bench.state.priority_header = True, header
    sent = b'{"model": "m", "priority": -7}'
    asyncio.run(bench.ask(sent, x_slo_tier="elastic", x_vllm_priority="-9"))
    scope, body = bench.seen[-1]
    told = dict(scope["headers"])
    if header:
        assert told[b"x-vllm-priority"] == b"10" and json.loads(body) == {"model": "m"}
    else:
        assert b"x-vllm-priority" not in told
        assert json.loads(body) == {"model": "m", "priority": 10}
    assert int(told[b"content-length"]) == len(body)


@pytest.mark.parametrize("path", [
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings",
    "/v2/embed", "/v1/chat/completions/batch", "/v1/systemone", "/invocations", "/cohere/v2/chat",
    "/inference/v1/generate", "/v1/score", "/pooling",
])
def test_no_path_lets_a_request_pass_for_a_more_important_one(bench: Any, path: str) -> None:
    """vLLM takes a request that says nothing for one of priority 0, the core tier's."""
    bench.state.by_priority = bench.state.priority_header = True
    asyncio.run(bench.ask(b'{"model": "m"}', path=path))
    scope, body = bench.seen[-1]
    heard = dict(scope["headers"]).get(b"x-vllm-priority", b"0")
    assert 20 in (int(heard), json.loads(body).get("priority"))


def test_a_field_that_an_api_lacks_is_not_put_into_its_body(bench: Any) -> None:
    bench.state.by_priority, bench.state.priority_header = True, False
    asyncio.run(bench.ask(b'{"model": "m"}', path="/v1/messages"))
    assert bench.seen[-1][1] == b'{"model": "m"}'


@pytest.mark.parametrize("code", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_a_body_in_another_encoding_says_nothing_about_itself_either(
    bench: Any, code: str
) -> None:
    bench.state.by_priority, bench.state.priority_header = True, False
    said = json.dumps({"input": "\u20ac", "priority": -7}, ensure_ascii=False)
    asyncio.run(bench.ask(said.encode(code), path="/v1/embeddings"))
    assert json.loads(bench.seen[-1][1]) == {"input": "\u20ac", "priority": 20}


def test_without_priorities_the_body_stays_byte_for_byte(bench: Any) -> None:
    sent = b'{ "model":"m" , "prompt": "\\u20ac" }'
    asyncio.run(bench.ask(sent))
    assert bench.seen[-1][1] == sent
