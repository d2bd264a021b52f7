"""What the gate is told at start: the tiers, how a request gets one, and whom to believe.

It travels as JSON from the engine to the server's process, so the whole of it is checked here.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from resilience.gate.limiter import LimiterRule
from resilience.gate.rungs import rungs_from_json
from resilience.knobs import knob
from resilience.model import BudgetSettings, EngineConfig, Json, Rung, Tenant, Tier

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

CONFIG_VARIABLE = "RESILIENCE_CORE_CONFIG"
SWITCH_VARIABLE = "RESILIENCE_GATE"
TIERS_MAX = 64
TENANTS_MAX = 1_000
ATTEMPTS_MAX = 3
_KEYS = {
    "tiers", "header", "tenant_header", "trusted_peers", "default", "service", "tenants", "queue",
    "limiter", "budget", "ladder",
}
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")


@dataclass(frozen=True, slots=True)
class GateTier:
    """A tier: its own cap (None: none), its number in the queue and in the server's scheduler
    (lower goes first), how long it waits at most, its objectives (0..1, ms; None: no bound), and
    its deadline (None: the budget's)."""

    max_concurrency: int | None = None
    priority: int = 0
    queue_timeout_ms: int = 5_000
    success: float = 0.95
    p99_ms: int | None = None
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GateTenant:
    """A tenant: the SHA-256 of its API keys, its tier, its weight against others, its caps."""

    key_sha256: tuple[str, ...] = ()
    tier: str | None = None
    share: float = 1.0
    max_concurrency: int | None = None
    max_outstanding_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class GateConfig:
    """The gate's static configuration, made from the Engine document.

    `queue_max` 0: nobody waits in the gate. `ageing_ms` None: strict priorities.
    """

    tiers: Mapping[str, GateTier]
    header: str
    trusted_peers: tuple[str, ...]
    default: str
    service: str = "vllm"
    tenant_header: str = "x-tenant"
    tenants: Mapping[str, GateTenant] = field(default_factory=dict[str, GateTenant])
    queue_max: int = 0
    ageing_ms: int | None = 5_000
    limiter: LimiterRule | None = None
    budget: BudgetSettings | None = None
    ladder: tuple[Rung, ...] = ()

    def to_json(self) -> Json:
        return {
            "tiers": {name: asdict(tier) for name, tier in self.tiers.items()},
            "header": self.header, "tenant_header": self.tenant_header,
            "trusted_peers": list(self.trusted_peers), "default": self.default,
            "service": self.service,
            "tenants": {
                name: {**asdict(tenant), "key_sha256": list(tenant.key_sha256)}
                for name, tenant in self.tenants.items()
            },
            "queue": {"max_waiting": self.queue_max, "ageing_ms": self.ageing_ms},
            "limiter": None if self.limiter is None else asdict(self.limiter),
            "budget": None if self.budget is None else asdict(self.budget),
            "ladder": [asdict(rung) for rung in self.ladder],
        }

    @classmethod
    def from_engine(cls, config: EngineConfig) -> GateConfig:
        """Take the gate's part out of the engine's configuration."""
        source = config.tier_source
        body = {
            "tiers": {tier.name: _tier_json(tier, n) for n, tier in enumerate(config.tiers)},
            "header": source.header, "tenant_header": source.tenant_header,
            "trusted_peers": list(source.trusted_peers), "default": source.default,
            "service": config.job,
            "tenants": {tenant.name: _tenant_json(tenant) for tenant in config.tenants},
            "queue": {
                "max_waiting": config.queue.max_waiting, "ageing_ms": config.queue.ageing_ms,
            },
            "limiter": None if config.limiter is None else asdict(config.limiter),
            "budget": None if config.budget is None else asdict(config.budget),
            "ladder": [asdict(rung) for rung in config.ladder],
        }
        return cls.from_json(body)

    @classmethod
    def from_json(cls, body: Json) -> GateConfig:
        """Check and build; raises ValueError with a one-line reason."""
        if not isinstance(body, Mapping) or set(body) != _KEYS:
            raise ValueError("the gate's configuration has " + ", ".join(sorted(_KEYS)))
        _check_texts(body)
        tiers = {n: _record(GateTier, t, f"tier `{n}`") for n, t in _some(body, "tiers").items()}
        if not 0 < len(tiers) <= TIERS_MAX:
            raise ValueError(f"the gate takes 1 to {TIERS_MAX} tiers")
        if body["default"] not in tiers:
            known = ", ".join(f"`{t}`" for t in tiers)
            raise ValueError(f"default tier `{body['default']}` is none of {known}")
        networks(tuple(body["trusted_peers"]))
        queue_max, ageing_ms = _queue(body["queue"])
        return cls(
            tiers, body["header"].lower(), tuple(body["trusted_peers"]), body["default"],
            body["service"], body["tenant_header"].lower(), _tenants(body, tiers), queue_max,
            ageing_ms, _limiter(body["limiter"]), _budget(body["budget"]),
            rungs_from_json(body["ladder"]),
        )


def _tier_json(tier: Tier, number: int) -> Json:
    return {
        "max_concurrency": tier.max_concurrency,
        "priority": 10 * number if tier.priority is None else tier.priority,
        "queue_timeout_ms": tier.queue_timeout_ms, "success": tier.success, "p99_ms": tier.p99_ms,
        "deadline_ms": tier.deadline_ms,
    }


def _tenant_json(tenant: Tenant) -> Json:
    return {
        "key_sha256": list(tenant.key_sha256), "tier": tenant.tier, "share": tenant.share,
        "max_concurrency": tenant.max_concurrency,
        "max_outstanding_tokens": tenant.max_outstanding_tokens,
    }


def _check_texts(body: Mapping[str, Json]) -> None:
    if not isinstance(body["service"], str) or not body["service"]:
        raise ValueError("`service` of the gate's configuration is a text")
    if not isinstance(body["default"], str) or not body["default"]:
        raise ValueError("`default` of the gate's configuration is a text")
    for key in ("header", "tenant_header"):
        if not isinstance(body[key], str) or not _HEADER.fullmatch(body[key]):
            raise ValueError(f"`{key}` of the gate's configuration is a header name, plain ASCII")
    if not isinstance(body["trusted_peers"], list):
        raise ValueError("`trusted_peers` of the gate's configuration is a list of networks")


def _some(body: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    found = body[key]
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"`{key}` of the gate's configuration is a map by name")
    return found


R = TypeVar("R")


def _record(kind: type[R], body: Json, what: str) -> R:
    """Build a small record from JSON: exactly its fields, numbers that are not negative."""
    names = {f.name for f in fields(cast(Any, kind))}
    if not isinstance(body, Mapping) or set(body) != names:
        raise ValueError(f"{what} has " + ", ".join(sorted(names)))
    for name, value in body.items():
        if name in ("key_sha256", "tier", "request_id_header") or value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or (
            value < 0 and name != "priority"
        ):
            raise ValueError(f"{what} takes a whole number as its {name}, not `{value}`")
    return kind(**body)


def _tenants(body: Mapping[str, Json], tiers: Mapping[str, Any]) -> dict[str, GateTenant]:
    found: dict[str, GateTenant] = {}
    for name, raw in _some(body, "tenants").items():
        tenant = _record(GateTenant, raw, f"tenant `{name}`")
        keys: Any = tenant.key_sha256  # as it came; a record checks numbers only
        if not isinstance(keys, list | tuple) or not all(
            isinstance(k, str) and _DIGEST.fullmatch(k) for k in keys
        ):
            raise ValueError(f"tenant `{name}` takes SHA-256 digests, 64 hex digits, as key_sha256")
        if tenant.tier is not None and tenant.tier not in tiers:
            raise ValueError(f"tenant `{name}` has the tier `{tenant.tier}`, which is not defined")
        if tenant.share <= 0:
            raise ValueError(f"tenant `{name}` takes a share above 0, not `{tenant.share}`")
        found[name] = replace(tenant, key_sha256=tuple(keys))
    if len(found) > TENANTS_MAX:
        raise ValueError(f"the gate takes at most {TENANTS_MAX} tenants")
    return found


def _queue(body: Json) -> tuple[int, int | None]:
    if not isinstance(body, Mapping) or set(body) != {"max_waiting", "ageing_ms"}:
        raise ValueError("`queue` of the gate's configuration has ageing_ms, max_waiting")
    most, ageing = body["max_waiting"], body["ageing_ms"]
    for value in (most, 1 if ageing is None else ageing):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"`queue` of the gate's configuration takes no `{value}`")
    return most, ageing or None


def _budget(body: Json) -> BudgetSettings | None:
    if body is None:
        return None
    if not isinstance(body, Mapping) or not isinstance(body.get("request_id_header"), str):
        raise ValueError("`budget` of the gate's configuration names a `request_id_header`")
    budget = _record(BudgetSettings, body, "`budget`")
    if not 1 <= budget.attempts <= ATTEMPTS_MAX:
        raise ValueError(f"`budget` takes 1 to {ATTEMPTS_MAX} attempts, not `{budget.attempts}`")
    return budget


def _limiter(body: Json) -> LimiterRule | None:
    if body is None:
        return None
    definition = knob("limiter.rule")
    why = definition.check(body, {}) if definition is not None else None
    if why:
        raise ValueError(why)
    return LimiterRule.from_json(body)


@lru_cache(maxsize=64)
def networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    """Parse CIDRs; raises ValueError that names the wrong one."""
    found: list[Network] = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            raise ValueError(
                f"trusted peer `{text}` is not a network such as `10.0.0.0/8`"
            ) from None
    return tuple(found)


@lru_cache(maxsize=4096)
def is_within(host: str, texts: tuple[str, ...]) -> bool:
    """Say whether the address `host` lies in one of the networks; no address lies in none."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(
        address.version == network.version and address in network for network in networks(texts)
    )


def core_settings() -> Mapping[str, Json]:
    """Read the file that the launcher wrote for this server; {} when there is none.

    Raises ValueError when the file is named but unreadable: the server must not start half set up.
    """
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        return {}
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read `{path}` of ${CONFIG_VARIABLE}: {error}") from None
    if not isinstance(body, dict) or body.get("version") != 1:
        raise ValueError(f"`{path}` of ${CONFIG_VARIABLE} is not a version 1 core configuration")
    return body


def load_config() -> GateConfig:
    """Return the gate's configuration of this process, the defaults without a launcher."""
    settings = core_settings()
    if "gate" not in settings:
        return GateConfig.from_engine(EngineConfig())
    return GateConfig.from_json(settings["gate"])


def is_switched_off() -> bool:
    """Say whether RESILIENCE_GATE=off takes the gate out of the request path."""
    return os.environ.get(SWITCH_VARIABLE, "").strip().lower() == "off"
