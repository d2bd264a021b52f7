"""How a command finds a Prometheus server: an address, or the Engine document that names one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from resilience.errors import UsageError
from resilience.model import EngineConfig, PrometheusAccess


def configured(config: Path) -> EngineConfig:
    """Return what a `kind: Engine` document says; raises FindingsError or UsageError."""
    from resilience.app.bundles import check_sources, read_sources

    return check_sources(read_sources(config)).bundle.config


def access(config: EngineConfig | None, url: str | None) -> PrometheusAccess:
    """Return where and how to ask: `url` wins over the document's; raises UsageError for none."""
    known = None if config is None else config.prometheus
    if known is not None:
        return replace(known, url=url or known.url)
    if url is None:
        raise UsageError("name the server with `--prometheus URL`, or in a `kind: Engine` document")
    return PrometheusAccess(url)
