"""A document of `kind: Engine` -> model.EngineConfig."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from resilience.knobs import MAPS
from resilience.model import (
    BudgetSettings,
    EngineConfig,
    HealthSettings,
    Json,
    LimiterSettings,
    PrometheusAccess,
    QueueSettings,
    Safety,
    Tenant,
    Tier,
    TierSource,
    labels_of,
    parse_duration,
)
from resilience.policy.addresses import check_address
from resilience.policy.context import Context
from resilience.policy.document import Document
from resilience.policy.fragments import share_of
from resilience.policy.ladders import build_ladder, check_ladder
from resilience.policy.receivers import build_receivers, check_receivers
from resilience.policy.shape import locate
from resilience.policy.words import did_you_mean, listed, quoted

LIMITER = "limiter.rule"
_SECRET_HEADERS = ("authorization", "cookie", "proxy-authorization", "x-api-key")


def build_engine(document: Document, context: Context) -> EngineConfig | None:
    """Return the configuration of a document that fits its schema, or None after an error."""
    before = len(context.findings)
    spec = document.data["spec"]
    _check_tiers(document, spec, context)
    _check_tenants(document, spec, context)
    _check_limiter(document, spec, context)
    _check_budget(document, spec, context)
    check_ladder(document, spec.get("ladder", ()), context)
    _check_networks(document, spec, context)
    _check_prometheus(document, spec, context)
    check_receivers(document, spec.get("receivers", ()), context)
    _check_safety(document, spec, context)
    if any(f.severity == "error" for f in context.findings[before:]):
        return None
    return EngineConfig(**_tiers(spec), **_scrape(spec), **_sandbox(spec), **_limits(spec),
                        **_core(spec.get("core", {})), **_records(spec),
                        enable_features=tuple(spec.get("enable_features", ())),
                        ladder=build_ladder(spec.get("ladder", ())),
                        safety=_safety(spec.get("safety", {})),
                        receivers=build_receivers(spec.get("receivers", ())),
                        prometheus=_prometheus(spec.get("prometheus")))


def _tiers(spec: Mapping[str, Json]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "tiers" in spec:
        found["tiers"] = tuple(_tier(tier) for tier in spec["tiers"])
    source = spec.get("tier_source", {})
    given = dict(source)
    for name in {"header", "tenant_header"} & given.keys():
        given[name] = given[name].lower()
    if "trusted_peers" in given:
        given["trusted_peers"] = tuple(given["trusted_peers"])
    found["tier_source"] = TierSource(**given)
    found["tenants"] = tuple(_tenant(tenant) for tenant in spec.get("tenants", ()))
    found["queue"] = _queue(spec.get("queue", {}))
    if "limiter" in spec:
        found["limiter"] = limiter_of(spec["limiter"])
    if "budget" in spec:
        found["budget"] = _budget(spec["budget"])
    return found


def _tier(raw: Mapping[str, Json]) -> Tier:
    limit, priority = raw.get("max_concurrency"), raw.get("priority")
    return Tier(
        raw["name"], share_of(raw.get("success", "95%")),
        parse_duration(raw["p99"]) if "p99" in raw else None,
        int(limit) if limit is not None else None,
        int(priority) if priority is not None else None,
        parse_duration(str(raw.get("queue_timeout", "5s"))),
        parse_duration(raw["deadline"]) if "deadline" in raw else None,
    )


def _tenant(raw: Mapping[str, Json]) -> Tenant:
    most, tokens = raw.get("max_concurrency"), raw.get("max_outstanding_tokens")
    return Tenant(
        raw["name"], raw.get("tier"), tuple(raw.get("key_sha256", ())),
        float(raw.get("share", 1.0)), None if most is None else int(most),
        None if tokens is None else int(tokens),
    )


def _queue(raw: Mapping[str, Json]) -> QueueSettings:
    ageing_ms = parse_duration(str(raw.get("ageing", "5s")))
    return QueueSettings(int(raw.get("max_waiting", 0)), ageing_ms or None)


def _budget(raw: Mapping[str, Json]) -> BudgetSettings:
    """Return the budget of a checked mapping; what is not said has its default."""
    given: dict[str, Any] = {
        field: parse_duration(str(raw[name]))
        for name, field in (("deadline", "deadline_ms"), ("backoff", "backoff_ms"),
                            ("attempt_timeout", "attempt_ms"), ("keep_results", "keep_ms"))
        if name in raw
    }
    if "attempts" in raw:
        given["attempts"] = int(raw["attempts"])
    if "request_id_header" in raw:
        given["request_id_header"] = raw["request_id_header"].lower()
    if "results_mebibytes" in raw:
        given["keep_bytes"] = int(raw["results_mebibytes"]) * 1024 * 1024
    return replace(BudgetSettings(), **given)


def limiter_of(raw: Mapping[str, Json]) -> LimiterSettings:
    """Return the limiter of a checked mapping; what is not said has its default."""
    default = LimiterSettings()
    given: dict[str, Any] = {
        f"{name}_ms": parse_duration(str(raw[name]))
        for name in ("queue_time", "time_per_token") if name in raw
    }
    for name in {"kv_usage", "increase", "decrease", "headroom"} & raw.keys():
        given[name] = share_of(raw[name])
    for name, key in (("minimum", "min"), ("maximum", "max")):
        if key in raw:
            given[name] = int(raw[key])
    return replace(default, **given)


def _scrape(spec: Mapping[str, Json]) -> dict[str, Any]:
    raw = spec.get("scrape", {})
    found: dict[str, Any] = {}
    if "interval" in raw:
        found["scrape_interval_ms"] = parse_duration(raw["interval"])
    if "retention" in raw:
        found["retention_ms"] = parse_duration(raw["retention"])
    if "job" in raw:
        found["job"] = raw["job"]
    return found


def _core(raw: Mapping[str, Json]) -> dict[str, Any]:
    found: dict[str, Any] = {name: raw[name] for name in ("on_drift",) if name in raw}
    health, given = raw.get("health", {}), dict[str, int]()
    for name, field in (("allocation_every", "every_ms"), ("allocation_slow", "slow_ms"),
                        ("stuck_after", "stuck_ms"), ("blind_after", "blind_ms")):
        if name in health:
            given[field] = parse_duration(str(health[name]))
    if "allocation_times" in health:
        given["times"] = int(health["allocation_times"])
    return found | {"health": HealthSettings(**given)}


def _sandbox(spec: Mapping[str, Json]) -> dict[str, Any]:
    raw = spec.get("sandbox", {})
    found: dict[str, Any] = {}
    if "require" in raw:
        found["sandbox_require"] = tuple(raw["require"])
    if "allow_weak" in raw:
        found["sandbox_allow_weak"] = raw["allow_weak"]
    return found


def _records(spec: Mapping[str, Json]) -> dict[str, Any]:
    raw = spec.get("records", {})
    mask = raw.get("mask", {})
    found: dict[str, Any] = {f"mask_{name}": tuple(given) for name, given in mask.items()}
    if "max_mebibytes" in raw:
        found["record_max_bytes"] = int(raw["max_mebibytes"]) * 1024 * 1024
    if "files" in raw:
        found["record_files"] = int(raw["files"])
    return found


def _limits(spec: Mapping[str, Json]) -> dict[str, Any]:
    raw = spec.get("limits", {})
    names = {"series": "max_series", "claims": "max_claims", "instances": "max_instances",
             "udf_quarantine_after": "udf_quarantine_after"}
    return {names[key]: int(value) for key, value in raw.items()}


def _safety(raw: Mapping[str, Json]) -> Safety:
    found: dict[str, Any] = {
        name: share_of(raw[name]) for name in ("capacity_removed", "core_floor") if name in raw
    }
    if "disruptive_per_hour" in raw:
        found["disruptive_per_hour"] = int(raw["disruptive_per_hour"])
    return Safety(enabled=raw.get("enabled", True), **found)


def _check_safety(document: Document, spec: Mapping[str, Json], context: Context) -> None:
    raw = spec.get("safety", {})
    if raw.get("enabled", True):
        return
    place = locate(document, ("spec", "safety", "enabled"))[1]
    context.add(document, place, "warning", "safety-off",
                "spec.safety.enabled is false: a mistaken policy may take the whole capacity",
                "raise the single limit that is in the way")
    for name in raw:
        if name != "enabled":
            context.add(document, locate(document, ("spec", "safety", name))[0], "info",
                        "no-effect", f"spec.safety.{name} has no effect while `enabled` is false")


def _prometheus(raw: Mapping[str, Json] | None) -> PrometheusAccess | None:
    if raw is None:
        return None
    auth = raw.get("auth", {})
    return PrometheusAccess(
        url=raw["url"].rstrip("/"), headers=labels_of(raw.get("headers", {})),
        username=auth.get("username"), password_file=auth.get("password_file"),
        bearer_token_file=auth.get("bearer_token_file"), ca_file=raw.get("ca_file"),
        timeout_ms=parse_duration(raw.get("timeout", "5s")),
        scrape_interval_ms=parse_duration(raw.get("scrape_interval", "15s")),
    )


def _check_tiers(document: Document, spec: Mapping[str, Json], context: Context) -> None:
    names: list[str] = []
    for index, tier in enumerate(spec.get("tiers", ())):
        if tier["name"] in names:
            context.add(document, locate(document, ("spec", "tiers", index, "name"))[1], "error",
                        "duplicate-tier", f"tier {quoted(tier['name'])} is defined twice",
                        "remove one of them")
        names.append(tier["name"])
    names = names or [tier.name for tier in EngineConfig().tiers]
    default = spec.get("tier_source", {}).get("default", TierSource().default)
    if default not in names:
        path = ("spec", "tier_source", "default") if "tier_source" in spec else ("spec", "tiers")
        context.add(document, locate(document, path)[1], "error", "unknown-tier",
                    f"the default tier {quoted(default)} is not defined",
                    did_you_mean(default, names)
                    or "set `tier_source: {default: …}` to one of "
                    f"{listed(dict.fromkeys(names))}")


def _check_tenants(document: Document, spec: Mapping[str, Json], context: Context) -> None:
    """Names and keys are unique; a tier that a tenant names is defined."""
    tiers = [t["name"] for t in spec.get("tiers", ())] or [t.name for t in EngineConfig().tiers]
    seen: dict[str, str] = {}
    for index, tenant in enumerate(spec.get("tenants", ())):
        path: tuple[str | int, ...] = ("spec", "tenants", index)
        name, tier = tenant["name"], tenant.get("tier")
        for word in (name, *tenant.get("key_sha256", ())):
            if word in seen:
                what = "tenant" if word == name else "the key"
                context.add(document, locate(document, path)[1], "error", "duplicate-tenant",
                            f"{what} {quoted(word)} is given twice, first to {quoted(seen[word])}",
                            "give each tenant its own name and keys")
            seen.setdefault(word, name)
        if tier is not None and tier not in tiers:
            context.add(document, locate(document, (*path, "tier"))[1], "error", "unknown-tier",
                        f"tier {quoted(tier)} of tenant {quoted(name)} is not defined",
                        did_you_mean(tier, tiers) or f"known are {listed(tiers)}")
        if name == "other":
            context.add(document, locate(document, (*path, "name"))[1], "error", "duplicate-tenant",
                        "tenant `other` is everybody who is not listed", "choose another name")


def _check_limiter(document: Document, spec: Mapping[str, Json], context: Context) -> None:
    limiter = limiter_of(spec.get("limiter", {}))
    if limiter.minimum > limiter.maximum:
        context.add(document, locate(document, ("spec", "limiter", "min"))[1], "error", "limiter",
                    f"spec.limiter.min is {limiter.minimum}, above its max of {limiter.maximum}",
                    "make `min` at most `max`")
    for bounds in MAPS[LIMITER]:
        share = getattr(limiter, bounds.name)
        if bounds.type == "float" and share is not None and not (
            bounds.minimum <= share <= bounds.maximum
        ):
            too, most = ("above", bounds.maximum) if share > bounds.maximum else (
                "below", bounds.minimum)
            place = locate(document, ("spec", "limiter", bounds.name))[1]
            context.add(document, place, "error", "limiter",
                        f"spec.limiter.{bounds.name} of {100 * share:g}% is {too} {100 * most:g}%",
                        f"take {100 * bounds.minimum:g}% to {100 * bounds.maximum:g}%")


def _check_budget(document: Document, spec: Mapping[str, Json], context: Context) -> None:
    """A tier's deadline needs a budget, and an attempt's time-out lies below every deadline."""
    tiers = [(n, t) for n, t in enumerate(spec.get("tiers", ())) if "deadline" in t]
    if "budget" not in spec:
        for index, tier in tiers:
            place = locate(document, ("spec", "tiers", index, "deadline"))[0]
            context.add(document, place, "error", "budget",
                        f"tier {quoted(tier['name'])} has a deadline, but there is no spec.budget",
                        "add `budget: {}`, which has all defaults")
        return
    budget = _budget(spec["budget"])
    shortest_ms = min([budget.deadline_ms, *(parse_duration(t["deadline"]) for _, t in tiers)])
    if budget.attempt_ms is not None and budget.attempt_ms >= shortest_ms:
        place = locate(document, ("spec", "budget", "attempt_timeout"))[1]
        context.add(document, place, "error", "budget",
                    f"spec.budget.attempt_timeout of {quoted(spec['budget']['attempt_timeout'])} "
                    f"is not below the shortest deadline, {shortest_ms / 1000:g}s",
                    "make it shorter, so that there is time for another attempt")


def _check_networks(document: Document, spec: Mapping[str, Json], context: Context) -> None:
    peers = spec.get("tier_source", {}).get("trusted_peers", ())
    for index, peer in enumerate(peers):
        found = _problem_of_network(peer)
        if found is not None:
            place = locate(document, ("spec", "tier_source", "trusted_peers", index))[1]
            context.add(document, place, "error", "network", f"{quoted(peer)} {found[0]}", found[1])


def _problem_of_network(text: str) -> tuple[str, str] | None:
    """Return what is wrong with an address or a CIDR, and what to write."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return "is not a network", "write an address or CIDR such as `10.0.0.0/8`"
    if int(network.network_address) != int(ipaddress.ip_interface(text).ip):
        return "has bits beyond its mask", f"did you mean `{network}`?"
    return None


def _check_prometheus(document: Document, spec: Mapping[str, Json], context: Context) -> None:
    raw = spec.get("prometheus", {})
    for name in raw.get("headers", {}):
        if name.lower() in _SECRET_HEADERS:
            place = locate(document, ("spec", "prometheus", "headers", name))[0]
            context.add(document, place, "error", "secret", f"header {quoted(name)} is a secret in "
                        "a document", "use `auth: {bearer_token_file: …}`")
    auth = raw.get("auth", {})
    place = locate(document, ("spec", "prometheus", "auth"))[0]
    if "bearer_token_file" in auth and ("username" in auth or "password_file" in auth):
        context.add(document, place, "error", "auth", "spec.prometheus.auth has a token and a user",
                    "keep one of them")
    elif ("username" in auth) != ("password_file" in auth):
        context.add(document, place, "error", "auth",
                    "spec.prometheus.auth needs `username` and `password_file` together")
    if "url" in raw:
        check_address(document, context, ("spec", "prometheus", "url"), raw["url"])
