"""Whose request it is: keys, trusted peers, and what a client may not say about itself."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from resilience.gate.body import may_claim, parsed, strip, with_priority
from resilience.gate.config import GateConfig, GateTenant
from resilience.gate.identity import Identity

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
    who, _ = identity.of(pairs, peer)
    assert (who.tier, who.tenant) == (tier, tenant)


def test_two_values_of_a_trusted_header_are_none(identity: Identity) -> None:
    """A proxy that adds its header leaves the client's own before it."""
    said = [(b"x-slo-tier", b"core"), (b"x-slo-tier", b"best-effort")]
    assert identity.of(said, INSIDE)[0].tier == "best-effort"
    assert identity.of([(b"x-slo-tier", b"core")] * 2, INSIDE)[0].tier == "core"


def test_what_a_client_says_is_taken_out(identity: Identity) -> None:
    said = [(b"host", b"h"), (b"x-slo-tier", b"core"), (b"x-tenant", b"acme"),
            (b"x-vllm-priority", b"-9")]
    assert identity.of(said, OUTSIDE)[1] == [(b"host", b"h")]
    assert identity.of(said, INSIDE)[1] == said[:3]  # the priority is the gate's to say


@pytest.mark.parametrize(
    ("body", "suspect", "left"),
    [
        (b'{"prompt": "priority, tier and tenant"}', False, None),
        (b'{"prompt": "say \\"priority\\": 1"}', False, None),
        (b'{"priority": -5, "prompt": "x"}', True, {"prompt": "x"}),
        (b'{"pr\\u0069ority": -5}', True, {}),
        (b'{"tier": "core", "tenant": "a", "x": {"tier": 1}}', True, {"x": {"tier": 1}}),
        (b'{"vllm_xargs": {"tenant": "a", "k": 1}}', True, {"vllm_xargs": {"k": 1}}),
        (b'{"prompt": "priority", "stop": "tier"}', True, {"prompt": "priority", "stop": "tier"}),
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
    changed = with_priority(body, 10)
    if changed is not None:
        with pytest.raises(ValueError):
            json.loads(changed)


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


def test_without_priorities_the_body_stays_byte_for_byte(bench: Any) -> None:
    sent = b'{ "model":"m" , "prompt": "\\u20ac" }'
    asyncio.run(bench.ask(sent))
    assert bench.seen[-1][1] == sent
