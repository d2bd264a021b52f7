"""What `doctor` can reach from here: the core of a server, its metrics, a Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from resilience.app.targets import of_server
from resilience.errors import ResilienceError
from resilience.model import Capabilities, EngineConfig, Json, PrometheusAccess

DEADLINE_MS = 10_000
Status: TypeAlias = Literal["ok", "warning", "error"]
Found: TypeAlias = tuple[str, Status, str, str | None]      # name, status, detail, advice


def core(url: str, token_file: Path | None, state: Path | None) -> Iterator[Found]:
    """Ask the core of the server at `url` what it can do."""
    from resilience.app.release import core_at

    try:
        with core_at(url, token_file, state) as client:
            found = client.capabilities(deadline_ms=DEADLINE_MS)
    except ResilienceError as error:
        yield "core", "error", str(error), (
            "start the server with `resilience serve`, and name its token with `--token-file`"
        )
        return
    yield from capabilities(found)


def capabilities(found: Capabilities) -> Iterator[Found]:
    """Say which levers a core has, and why others are missing."""
    yield "core", "ok", (
        f"{found.core} {found.core_version} serves {', '.join(found.models) or 'no model'}"
    ), None
    knobs = ", ".join(f"{name} ({c.grade})" for name, c in sorted(found.knobs.items()))
    yield "core, knobs", "ok" if knobs else "error", knobs or "none", None
    if found.impulses:
        yield "core, impulses", "ok", ", ".join(found.impulses), None
    for lever in found.dropped:
        yield "core, dropped", "warning", _dropped(lever), (
            "policies that need it are refused at `apply`"
        )


def _dropped(lever: Json) -> str:
    if not isinstance(lever, Mapping):
        return str(lever)
    name = lever.get("knob") or lever.get("lever") or lever.get("name") or "a lever"
    return f"`{name}`: {lever.get('reason', 'no reason given')}"


def metrics(url: str) -> Iterator[Found]:
    """Scrape the server once, as the engine does."""
    try:
        seen = of_server(url)
    except ResilienceError as error:
        yield "metrics", "error", str(error), "name the server's own address"
        return
    count = len(seen.names or ())
    who = str(seen.target) if seen.target else "no serving stack that is known"
    yield "metrics", "ok" if seen.target else "warning", f"{count} metrics of {who}", None


def prometheus(config: EngineConfig | None, url: str | None) -> Iterator[Found]:
    """Ask the Prometheus server that is named, or that the configuration names."""
    access: PrometheusAccess | None = config.prometheus if config else None
    if url is not None:
        access = PrometheusAccess(url)
    if access is not None:
        yield from _asked(access)


def _asked(access: PrometheusAccess) -> Iterator[Found]:
    from resilience.sources.prometheus import PrometheusSource

    try:
        source: Any = PrometheusSource(access)
    except ResilienceError as error:                  # no address of a server
        yield "prometheus", "error", str(error), None
        return
    try:
        names = source.metric_names(deadline_ms=DEADLINE_MS)
    except ResilienceError as error:
        yield "prometheus", "error", str(error), "look at `spec.prometheus` of `kind: Engine`"
        return
    finally:
        source.close()
    served = sorted({n.partition(":")[0] for n in names if n.startswith(("vllm:", "sglang:"))})
    what = f"with those of {' and '.join(served)}" if served else "none of vLLM or SGLang"
    yield "prometheus", "ok" if served else "warning", (
        f"{access.url} knows {len(names)} metrics, {what}"
    ), None
