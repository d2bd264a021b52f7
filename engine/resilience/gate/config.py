"""What the gate is told at start: the tiers, how a request gets one, and whom to believe.

It travels as JSON from the engine to the server's process, so the whole of it is checked here.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from resilience.model import EngineConfig, Json

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

CONFIG_VARIABLE = "RESILIENCE_CORE_CONFIG"
SWITCH_VARIABLE = "RESILIENCE_GATE"
TIERS_MAX = 64
_KEYS = {"tiers", "header", "trusted_peers", "default", "service"}


@dataclass(frozen=True, slots=True)
class GateConfig:
    """The gate's static configuration. `tiers` maps a name to its own cap, None for no cap."""

    tiers: Mapping[str, int | None]
    header: str
    trusted_peers: tuple[str, ...]
    default: str
    service: str = "vllm"

    def to_json(self) -> Json:
        return {
            "tiers": dict(self.tiers), "header": self.header,
            "trusted_peers": list(self.trusted_peers), "default": self.default,
            "service": self.service,
        }

    @classmethod
    def from_engine(cls, config: EngineConfig) -> GateConfig:
        """Take the gate's part out of the engine's configuration."""
        source = config.tier_source
        body = {
            "tiers": {tier.name: tier.max_concurrency for tier in config.tiers},
            "header": source.header, "trusted_peers": list(source.trusted_peers),
            "default": source.default, "service": config.job,
        }
        return cls.from_json(body)

    @classmethod
    def from_json(cls, body: Json) -> GateConfig:
        """Check and build; raises ValueError with a one-line reason."""
        if not isinstance(body, Mapping) or set(body) != _KEYS:
            raise ValueError("the gate's configuration has " + ", ".join(sorted(_KEYS)))
        _check_texts(body)
        tiers = _tiers(body["tiers"])
        if body["default"] not in tiers:
            known = ", ".join(f"`{t}`" for t in tiers)
            raise ValueError(f"default tier `{body['default']}` is none of {known}")
        networks(tuple(body["trusted_peers"]))
        return cls(
            tiers, body["header"].lower(), tuple(body["trusted_peers"]), body["default"],
            body["service"],
        )


def _check_texts(body: Mapping[str, Json]) -> None:
    if not isinstance(body["service"], str) or not body["service"]:
        raise ValueError("`service` of the gate's configuration is a text")
    for key in ("header", "default"):
        if not isinstance(body[key], str) or not body[key].isascii() or not body[key]:
            raise ValueError(f"`{key}` of the gate's configuration is a plain ASCII text")
    if not isinstance(body["trusted_peers"], list):
        raise ValueError("`trusted_peers` of the gate's configuration is a list of networks")


def _tiers(body: Json) -> dict[str, int | None]:
    if not isinstance(body, Mapping) or not 0 < len(body) <= TIERS_MAX:
        raise ValueError(f"the gate takes 1 to {TIERS_MAX} tiers")
    for name, cap in body.items():
        whole = isinstance(cap, int) and not isinstance(cap, bool) and cap >= 0
        if cap is not None and not whole:
            raise ValueError(f"tier `{name}` takes a whole number as its cap, not `{cap}`")
    return {str(name): cap for name, cap in body.items()}


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
