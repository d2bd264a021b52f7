"""A call to the core ends with its budget, however slowly and in how many pieces it is answered."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import httpcore
import httpx
import pytest

from resilience.addresses import IDLE_MAX_S
from resilience.cores import budget
from resilience.cores.client import HttpCore
from resilience.errors import CoreUnreachableError
from resilience.model import Actual

HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@contextmanager
def answering(first: bytes, drop: bytes) -> Generator[HttpCore]:
    """Yield a core that answers one call: `first`, then `drop` for ever, in drops."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve() -> None:
            with suppress(OSError), server.accept()[0] as client:
                client.sendall(first)
                while drop and not ended.wait(0.01):
                    client.sendall(drop)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with HttpCore(f"http://127.0.0.1:{server.getsockname()[1]}", "t" * 20) as core:
                yield core
        finally:
            ended.set()
            with suppress(OSError), socket.create_connection(server.getsockname(), 1):
                pass
            thread.join()


@pytest.mark.parametrize("first", [b"HTTP/1.1 200 OK\r\nX-Slow: ", HEADERS % 1_000_000],
                         ids=["headers", "body"])
def test_an_answer_in_drops_ends_with_the_budget(first: bytes) -> None:
    wanted = "no answer from the core at .* in 300 ms"
    with answering(first, b"x") as core, pytest.raises(CoreUnreachableError, match=wanted):
        core.actual(deadline_ms=300)


def test_nothing_is_left_for_a_call_whose_budget_is_over() -> None:
    wanted = "no answer from the core"
    with answering(b"", b"") as core, pytest.raises(CoreUnreachableError, match=wanted):
        core.actual(deadline_ms=0)


def test_the_second_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_addresses", lambda *_: ["127.0.0.9", "127.0.0.1"])
    raw = json.dumps(Actual(1, 1, {}).to_json()).encode()
    with answering(HEADERS % len(raw) + raw, b"") as core:
        assert core.actual(deadline_ms=60_000) == Actual(1, 1, {})


def test_an_address_that_never_answers_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = httpcore.SyncBackend.connect_tcp
    given_s: list[float] = []

    def connect(
        own: httpcore.SyncBackend, host: str, port: int, timeout: float, *rest: Any
    ) -> httpcore.NetworkStream:
        given_s.append(timeout)
        if host == "127.0.0.9":
            raise httpcore.ConnectTimeout
        return real(own, host, port, timeout, *rest)

    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", connect)
    monkeypatch.setattr(budget, "_addresses", lambda *_: ["127.0.0.9", "127.0.0.1"])
    raw = json.dumps(Actual(1, 1, {}).to_json()).encode()
    with answering(HEADERS % len(raw) + raw, b"") as core:
        assert core.actual(deadline_ms=60_000) == Actual(1, 1, {})
    assert given_s[0] <= 30


def test_a_host_whose_addresses_never_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise httpcore.ConnectTimeout

    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", connect)
    monkeypatch.setattr(budget, "_addresses", lambda *_: ["127.0.0.9", "127.0.0.1"])
    wanted = "no answer from the core"
    with answering(b"", b"") as core, pytest.raises(CoreUnreachableError, match=wanted):
        core.actual(deadline_ms=60_000)


def test_a_host_without_an_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror("name not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    core, wanted = HttpCore("http://core.invalid:1", "t" * 20), "cannot reach the core at `http://c"
    with core, pytest.raises(CoreUnreachableError, match=wanted):
        core.actual(deadline_ms=60_000)


def test_connections_are_kept_and_trusted_as_httpx_does_but_not_until_a_server_ends_them() -> None:
    ours = budget.BudgetTransport()
    usual = httpx.HTTPTransport(
        trust_env=False, limits=httpx.Limits(keepalive_expiry=IDLE_MAX_S))
    for setting in ("_max_connections", "_max_keepalive_connections", "_keepalive_expiry"):
        assert getattr(ours._pool, setting) == getattr(usual._pool, setting), setting
    trusted, wanted = ours._pool._ssl_context, usual._pool._ssl_context
    assert trusted and wanted
    assert trusted.get_ca_certs() == wanted.get_ca_certs()
    assert trusted.verify_mode == wanted.verify_mode


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%lo"])
def test_an_address_is_not_looked_up(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.delattr(socket, "getaddrinfo")
    assert budget._addresses(host, 80) == [host]


def test_a_name_whose_lookup_hangs_ends_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """So do calls that find all lookups taken; once these end, there is room again."""
    ended = threading.Event()
    asked: list[threading.Thread] = []

    def slow(*_: object, **__: object) -> None:
        asked.append(threading.current_thread())
        ended.wait(60)
        raise socket.gaierror("name not known")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with HttpCore("http://core.invalid:1", "t" * 20) as core:
        try:
            for _ in range(budget.LOOKUPS_MAX + 2):
                with pytest.raises(CoreUnreachableError, match="no answer from the core .* 100 ms"):
                    core.actual(deadline_ms=100)
            assert len(asked) <= budget.LOOKUPS_MAX
        finally:
            ended.set()
        with pytest.raises(CoreUnreachableError, match="name not known"):
            core.actual(deadline_ms=60_000)
    for thread in asked:
        thread.join()


def test_a_lookup_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves its room to the next ones."""
    def start(_: threading.Thread) -> None:
        raise RuntimeError("no more threads")

    monkeypatch.setattr(threading.Thread, "start", start)
    with HttpCore("http://core.invalid:1", "t" * 20) as core:
        for _ in range(budget.LOOKUPS_MAX + 1):
            with pytest.raises(CoreUnreachableError, match="no more threads"):
                core.actual(deadline_ms=60_000)
