"""What `check` can ask about the server that policies will meet: its metrics, labels, version."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience.addresses import server_address
from resilience.errors import SourceError, UsageError
from resilience.policy.catalogue import Target, target_of

DEADLINE_MS = 60_000
SERVER_DEADLINE_MS = 10_000
VERSION_BYTES_MAX = 64 * 1024
PLAIN = {"accept-encoding": "identity"}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a target exports. `labels`: metric -> labels that some of its series has; None: not
    asked. `interval_ms`: time between two samples; None: the policies' own configuration says.
    `remote`: a Prometheus, which keeps the samples."""

    names: frozenset[str] | None = None
    labels: Mapping[str, frozenset[str]] | None = None
    interval_ms: int | None = None
    target: Target | None = None
    remote: bool = False

    def options(self) -> dict[str, Any]:
        """Return the arguments for `policy.check.check`."""
        return {"metric_names": self.names, "metric_labels": self.labels, "target": self.target,
                "scrape_interval_ms": self.interval_ms, "remote": self.remote}


def of_text(text: str) -> Seen:
    """Return the target of `vllm@0.11`; raises UsageError."""
    try:
        return Seen(target=target_of(text))
    except ValueError as error:
        raise UsageError(f"`{text}` is no target: {error}") from None


def of_recording(path: Path) -> Seen:
    """Return what a recording holds; raises RecordingError."""
    from resilience.sources.recording import RecordingSource, read

    source = RecordingSource(read(path))
    names = source.metric_names(deadline_ms=DEADLINE_MS)
    return Seen(names, labels_in(source.store), source.scrape_interval_ms)


def of_prometheus(url: str) -> Seen:
    """Return the names that a Prometheus server knows; raises SourceError."""
    from resilience.model import PrometheusAccess
    from resilience.sources.prometheus import PrometheusSource

    source = PrometheusSource(PrometheusAccess(url))
    try:
        names = source.metric_names(deadline_ms=DEADLINE_MS)
        return Seen(names, None, source.scrape_interval_ms, remote=True)
    finally:
        source.close()


def of_server(url: str) -> Seen:
    """Return what a serving process exports, asked once as the engine would; raises SourceError,
    and UsageError for what is no address."""
    from resilience.sources.scrape import Scraper
    from resilience.sources.store import MemoryStore

    base = server_address(url).removesuffix("/metrics")
    store = MemoryStore()
    scraper = Scraper(f"{base}/metrics", "check", base, store)
    try:
        report = scraper.scrape(round(time.time() * 1000), SERVER_DEADLINE_MS)
    finally:
        scraper.close()
    if report.error is not None:
        raise SourceError(report.error)
    labels = labels_in(store)
    return Seen(frozenset(labels), labels, target=_target(base, labels))


def labels_in(store: Any) -> dict[str, frozenset[str]]:
    """Return metric -> the labels that some of its series has, of a memory store."""
    found: dict[str, set[str]] = {}
    for group in store.groups():
        for labels in group.labels:
            names = [name for name, _ in labels]
            found.setdefault(dict(labels).get("__name__", ""), set()).update(names)
    return {name: frozenset(labels - {"__name__"}) for name, labels in found.items()}


def _target(base: str, names: Mapping[str, Any]) -> Target | None:
    """Return which stack answers, by the prefix of its metrics, and vLLM's version."""
    for stack, prefix in (("vllm", "vllm:"), ("sglang", "sglang:"), ("triton", "nv_inference_"),
                          ("tgi", "tgi_")):
        if any(name.startswith(prefix) for name in names):
            return _version(base) or Target(stack) if stack == "vllm" else Target(stack)
    return None


def _version(base: str) -> Target | None:
    """Return vLLM's version as the server says it; None when it does not, or not in time."""
    import httpx

    from resilience.cores.budget import BudgetTransport, budget

    seconds = SERVER_DEADLINE_MS / 1000
    try:
        with (
            budget(seconds), httpx.Client(transport=BudgetTransport(), timeout=seconds) as client,
            client.stream("GET", f"{base}/version", headers=PLAIN) as answer,
        ):
            body: Any = json.loads(_beginning(answer.iter_raw()))
        return target_of(f"vllm@{body['version']}")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError, KeyError):
        return None


def _beginning(parts: Iterable[bytes]) -> bytes:
    """Return a text up to a little more than VERSION_BYTES_MAX: what is longer is no JSON then."""
    found = b""
    for part in parts:
        found += part
        if len(found) > VERSION_BYTES_MAX:
            break
    return found
