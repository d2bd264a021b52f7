"""Addresses that people mistype: one sentence wherever one is taken, and no secret in it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest

from resilience.addresses import problem_of, server_address
from resilience.cores.budget import BudgetTransport
from resilience.errors import UsageError
from resilience.gate.other_server import OtherServers
from resilience.sources.scrape import Scraper
from resilience.sources.store import MemoryStore

MISTYPED = (
    "http://127.0.0.1:abc", "http://127.0.0.1:70000", "http://127.0.0.1:0", "http://a..b",
    "http://[::1", "http://[abc]", "http://", "http:///x", "http://:8000", "http://999.1.1.1",
    "http://a b", "http://a\nb", "http://" + "a" * 64 + ".b", "http://a%zz", "ftp://a", "a:8000",
    "", "http://\u200b",
)


@pytest.mark.parametrize("url", MISTYPED)
def test_nobody_can_connect_to_it(url: str) -> None:
    assert problem_of(url) is not None
    with pytest.raises(UsageError, match="^the address of a server .*; write http://HOST:PORT$"):
        server_address(url)


@pytest.mark.parametrize("url", [
    "http://127.0.0.1:8000", "https://a.example/prefix", "http://[::1]:8000", "http://my_vllm:1",
    "http://a.b.", "HTTP://A", "http://bücher.example",
])
def test_somebody_can(url: str) -> None:
    assert problem_of(url) is None
    assert server_address(url + "/") == url


@pytest.mark.parametrize("url", [
    "http://u:pw@a", "http://pw@a", "http://a?token=pw", "http://a/#pw",
    "http://u:pw@a:b", "ftp://u:pw@a", "http://a:b?x=pw", "http://u:pw/pw@a",
    "http://u:pw?pw@a", "u:pw@a",
])
def test_a_secret_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        server_address(url)
    assert "pw" not in str(refused.value)


UVICORN_ENDS_S = 5.0  # its own `timeout_keep_alive`, which vLLM keeps


def test_no_client_uses_a_connection_that_its_server_may_be_ending() -> None:
    transports: list[Any] = []
    with closing(Scraper("http://a", "job", "a", MemoryStore(60_000))) as scraper:
        transports.append(scraper._http._transport)
    transports.append(BudgetTransport())

    async def ask_others() -> None:
        transports.append(OtherServers().client()._transport)

    asyncio.run(ask_others())
    for transport in transports:
        assert transport._pool._keepalive_expiry < UVICORN_ENDS_S
