"""Whose request it is: tier and tenant, from an API key or a trusted peer's headers, never from an
untrusted client's word.

What a client says about itself is taken out of the headers; what it says in the body is taken out
by `body`. The priority that the server's scheduler sees is the tier's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from resilience.gate.answer import Header
from resilience.gate.config import GateConfig, is_within
from resilience.gate.tokens import SEVERAL
from resilience.gate.trace import WORDS as TRACE_WORDS

Headers: TypeAlias = list[Header]

OTHER = "other"
PRIORITY_HEADER = b"x-vllm-priority"
ADAPTER_HEADER = b"x-amzn-sagemaker-adapter-identifier"
_BEARER = b"bearer "
_AUTHORIZATION, _API_KEY = b"authorization", b"x-api-key"
_KEY_HEADERS = frozenset({_AUTHORIZATION, _API_KEY})
_OUR_WORD = frozenset({PRIORITY_HEADER})
_NOTHING: frozenset[bytes] = frozenset()
KNOWN_MAX = 1_024


@dataclass(frozen=True, slots=True)
class Who:
    """The owner of a request. `tenant` is `other` when it is none of the configured ones."""

    tier: str
    tenant: str


Verdict: TypeAlias = tuple[Who, frozenset[bytes]]


class Identity:
    """Reads requests by one configuration. `words` are the headers that say who a request is and
    which trace it belongs to: one pass over a request's headers finds them all.
    """

    def __init__(self, config: GateConfig) -> None:
        self._config = config
        self._tier = config.header.encode("ascii")
        self._tenant = config.tenant_header.encode("ascii")
        self._named = frozenset({self._tier, self._tenant, PRIORITY_HEADER})
        self._keys = {
            digest: name for name, tenant in config.tenants.items() for digest in tenant.key_sha256
        }
        keys: frozenset[bytes] = _KEY_HEADERS if self._keys else frozenset()
        self.words = self._named | TRACE_WORDS | keys
        self._default = self._who([], [])
        self._known: dict[tuple[str | Header, ...], Verdict] = {}

    def of(self, told: Headers, headers: Headers, peer: str) -> tuple[Who, Headers]:
        """Return whose request it is, and the headers without what it may not say itself. `told`
        are those of the headers that are among `words`."""
        if not told:
            return self._default, headers
        said = [pair for pair in told if pair[0] in self._named]
        who, stale = self._known.get((peer, *said)) or self._judge(said, told, peer)
        return who, [pair for pair in headers if pair[0] not in stale] if stale else headers

    def _judge(self, said: Headers, told: Headers, peer: str) -> Verdict:
        """Return who is there and which headers may not go on. What trusted peers say is
        remembered, as they say the same few things again and again; but no API key is."""
        if not said and not self._keys:
            return self._default, _NOTHING
        trusted = bool(said) and is_within(peer, self._config.trusted_peers)
        who = self._who(said if trusted else [], told)
        stale = _OUR_WORD if trusted else self._named
        found = who, stale if any(name in stale for name, _ in said) else _NOTHING
        if trusted and not self._keys and len(self._known) < KNOWN_MAX:
            self._known[peer, *said] = found
        return found

    def _who(self, said: Headers, headers: Headers) -> Who:
        config = self._config
        tenant = _one(said, self._tenant) or self._holder(headers) or OTHER
        if tenant not in config.tenants:
            tenant = OTHER
        tier = _one(said, self._tier)
        if tier is not None and tier in config.tiers:
            return Who(tier, tenant)
        known = config.tenants.get(tenant)
        return Who(known.tier if known is not None and known.tier else config.default, tenant)

    def _holder(self, headers: Headers) -> str | None:
        """Return the tenant whose API key the request carries. One of its keys may be for the
        server behind, or for show, as clients that must have one send `EMPTY`."""
        if not self._keys:
            return None
        for name, value in headers:
            if name == _AUTHORIZATION and value[:7].lower() == _BEARER:
                key = value[7:].strip()
            elif name == _API_KEY:
                key = value.strip()
            else:
                continue
            if (holder := self._keys.get(_digest(key))) is not None:
                return holder
        return None


def name_adapter(path: str, headers: Headers, fields: dict[str, Any]) -> None:
    """Make the adapter that a header names the model of a body, as the server does for SageMaker's
    clients on one path."""
    named = [value for name, value in headers if name == ADAPTER_HEADER and value]
    if named and path == SEVERAL:
        fields["model"] = named[0].decode("latin-1")


def with_adapter(path: str, headers: Headers, model: str | None) -> Headers:
    """Return the headers that send a request to a model: on that path no body can say it. None:
    it has no other model."""
    if path != SEVERAL or model is None:
        return headers
    kept = [pair for pair in headers if pair[0] != ADAPTER_HEADER]
    return [*kept, (ADAPTER_HEADER, model.encode("latin-1", "replace"))]


def _one(said: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """Return what a header says, if it says one thing: two values may be a client's and a proxy's.
    """
    values = {value for key, value in said if key == name}
    return values.pop().decode("latin-1").strip() if len(values) == 1 else None


def _digest(key: bytes) -> str:
    """Return the SHA-256 of a key; only digests are ever configured, and no key is kept."""
    return hashlib.sha256(key).hexdigest()
