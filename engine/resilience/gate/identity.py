"""Whose request it is: tier and tenant, from an API key or a trusted peer's headers, never from an
untrusted client's word.

What a client says about itself is taken out of the headers; what it says in the body is taken out
by `body`. The priority that the server's scheduler sees is the tier's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from resilience.gate.config import GateConfig, is_within

Headers: TypeAlias = list[tuple[bytes, bytes]]

OTHER = "other"
PRIORITY_HEADER = b"x-vllm-priority"
_BEARER = b"bearer "
_OUR_WORD = frozenset({PRIORITY_HEADER})
KNOWN_MAX = 256


@dataclass(frozen=True, slots=True)
class Who:
    """The owner of a request. `tenant` is `other` when it is none of the configured ones."""

    tier: str
    tenant: str


class Identity:
    """Reads requests by one configuration."""

    def __init__(self, config: GateConfig) -> None:
        self._config = config
        self._tier = config.header.encode("ascii")
        self._tenant = config.tenant_header.encode("ascii")
        self._named = frozenset({self._tier, self._tenant, PRIORITY_HEADER})
        self._keys = {
            digest: name for name, tenant in config.tenants.items() for digest in tenant.key_sha256
        }
        self._default = Who(config.default, OTHER)
        self._known: dict[tuple[tuple[bytes, bytes], ...], Who] = {}

    def of(self, headers: Headers, peer: str) -> tuple[Who, Headers]:
        """Return whose request it is, and the headers without what it may not say itself."""
        named = self._named
        said = [pair for pair in headers if pair[0] in named]
        if not said and not self._keys:
            return self._default, headers
        trusted = bool(said) and is_within(peer, self._config.trusted_peers)
        if self._keys:
            who = self._who(said if trusted else [], headers)
        else:
            who = self._known_who(tuple(said)) if trusted else self._default
        if said and not (trusted and len(said) == 1 and said[0][0] != PRIORITY_HEADER):
            headers = self._cleaned(headers, trusted)
        return who, headers

    def _known_who(self, said: tuple[tuple[bytes, bytes], ...]) -> Who:
        """Return whom a trusted peer's headers name; the same few are said again and again."""
        who = self._known.get(said)
        if who is None:
            who = self._who(list(said), [])
            if len(self._known) < KNOWN_MAX:
                self._known[said] = who
        return who

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
        """Return the tenant whose API key the request carries."""
        if not self._keys:
            return None
        for name, value in headers:
            if name == b"authorization" and value[:7].lower() == _BEARER:
                return self._keys.get(_digest(value[7:].strip()))
            if name == b"x-api-key":
                return self._keys.get(_digest(value.strip()))
        return None

    def _cleaned(self, headers: Headers, trusted: bool) -> Headers:
        gone = _OUR_WORD if trusted else self._named
        return [pair for pair in headers if pair[0] not in gone]


def _one(said: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """Return what a header says, if it says one thing: two values may be a client's and a proxy's.
    """
    values = {value for key, value in said if key == name}
    return values.pop().decode("latin-1").strip() if len(values) == 1 else None


@lru_cache(maxsize=1024)
def _digest(key: bytes) -> str:
    """Return the SHA-256 of a key; only digests are ever configured."""
    return hashlib.sha256(key).hexdigest()
