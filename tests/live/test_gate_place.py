"""The gate on a vLLM that asks for a key: who has none meets vLLM's own refusal and no limit."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from resilience.cores.process import ServerProcess
from resilience.model import Claim, EngineConfig, Tenant
from tests.live.conftest import Driver, PatientCore

pytestmark = pytest.mark.live
KEY, SECRET, PAGE = "sk-live-acme", "the-servers-own", "https://chat.example.org"


def status_of(url: str, **headers: str) -> tuple[int, Sequence[str]]:
    """Return how a request ended and which of its headers are for browsers, or for the client."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = httpx.post(
        f"{url}/v1/completions", json={"model": "base", "prompt": "x", "max_tokens": 1},
        headers=named, trust_env=False, timeout=120)
    told = ("access-control-allow-origin", "x-request-id", "x-resilience-cause")
    return answer.status_code, [name for name in told if name in answer.headers]


def test_the_key_is_asked_for_before_any_limit(
    new_server: Callable[..., ServerProcess], claim: Callable[..., Claim]
) -> None:
    server = new_server("--api-key", SECRET, "--enable-request-id-headers",
                        "--allowed-origins", json.dumps([PAGE]))
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    mine: dict[str, Any] = {"authorization": f"Bearer {SECRET}", "origin": PAGE}
    with PatientCore(server.url, server.token) as core:
        core.configure_gate(
            EngineConfig(tenants=(Tenant("acme", "core", (digest,)),)), deadline_ms=60_000)
        Driver(core).hold(claim("throttle.max_concurrency", 0, tier="best-effort"))
        assert status_of(server.url, origin=PAGE) == (401, ["x-request-id"])
        assert status_of(server.url, x_api_key=KEY)[0] == 401
        assert status_of(server.url, **mine) == (
            429, ["access-control-allow-origin", "x-request-id", "x-resilience-cause"])
        assert status_of(server.url, **mine, x_api_key=KEY) == (
            200, ["access-control-allow-origin", "x-request-id"])
        assert tier_of_trailer(server.url) == 401
        assert tier_of_trailer(server.url, f"authorization: Bearer {SECRET}") == 429


def tier_of_trailer(url: str, *lines: str) -> int:
    """Return how a request ended that comes in one piece and names its tier behind its body."""
    host, _, port = url.removeprefix("http://").partition(":")
    body = json.dumps({"model": "base", "prompt": "x", "max_tokens": 1})
    text = "\r\n".join([
        "POST /v1/completions HTTP/1.1", "host: h", "content-type: application/json",
        "connection: close", "transfer-encoding: chunked", *lines, "", f"{len(body):x}", body, "0",
        "x-slo-tier: core", "", ""])
    with socket.create_connection((host, int(port)), timeout=120) as line:
        line.sendall(text.encode())
        return int(line.recv(4_096).split()[1])
