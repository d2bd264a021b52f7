"""One time budget for a whole HTTP call.

HTTP clients give each of their waits the whole time-out: for every address of a name, for the
connection, for sending, and for each piece of the answer; to look up the name they wait without
one. Here all of them share one.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterable
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from ipaddress import ip_address
from typing import Any

import httpcore
import httpx

from resilience.addresses import IDLE_MAX_S

LOOKUPS_MAX = 4
_ENDS_S: ContextVar[float] = ContextVar("ends_s")
_LOOKUPS = threading.BoundedSemaphore(LOOKUPS_MAX)


@contextmanager
def budget(seconds: float) -> Generator[None]:
    """Let all that goes over a BudgetTransport inside take `seconds` at most."""
    token = _ENDS_S.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _ENDS_S.reset(token)


def _left_s(kind: type[httpcore.TimeoutException]) -> float:
    left = _ENDS_S.get() - time.monotonic()
    if left <= 0:
        raise kind
    return left


class BudgetTransport(httpx.HTTPTransport):
    """httpx's own transport, whose every wait is cut to what is left of the `budget`. `verify` and
    `proxy` are httpx's own."""

    def __init__(
        self, *, verify: ssl.SSLContext | bool = True, proxy: str | None = None
    ) -> None:
        super().__init__(
            trust_env=False, verify=verify, proxy=None if proxy is None else httpx.Proxy(proxy),
            limits=httpx.Limits(keepalive_expiry=IDLE_MAX_S))
        self._pool._network_backend = _Backend()


class _Backend(httpcore.NetworkBackend):
    def __init__(self) -> None:
        self._real = httpcore.SyncBackend()

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None,
        local_address: str | None = None, socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Try the addresses of the host one after the other, as the socket module would; each has
        an even share of the time that is left, so one without an answer leaves some to the next."""
        failed: httpcore.ConnectError | httpcore.ConnectTimeout | None = None
        addresses = _addresses(host, port)
        for nth, address in enumerate(addresses):
            left = _left_s(httpcore.ConnectTimeout) / (len(addresses) - nth)
            try:
                return _Stream(self._real.connect_tcp(
                    address, port, left, local_address, socket_options))
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed or httpcore.ConnectError(f"`{host}` has no address")


def _addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a host. A name is looked up in a thread of its own, since nothing
    ends a lookup that hangs; of such threads there are few, and the next callers wait for one."""
    if _is_address(host):
        return [host]
    found: Future[list[str]] = Future()
    if not _LOOKUPS.acquire(timeout=_left_s(httpcore.ConnectTimeout)):
        raise httpcore.ConnectTimeout
    try:
        threading.Thread(target=_look_up, args=(found, host, port), daemon=True).start()
    except RuntimeError as error:
        _LOOKUPS.release()
        raise httpcore.ConnectError(str(error)) from error
    try:
        return found.result(_left_s(httpcore.ConnectTimeout))
    except TimeoutError as error:
        raise httpcore.ConnectTimeout from error
    except OSError as error:
        raise httpcore.ConnectError(str(error)) from error


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(found: Future[list[str]], host: str, port: int) -> None:
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        found.set_exception(error)
    else:
        found.set_result(list(dict.fromkeys(str(entry[4][0]) for entry in entries)))
    finally:
        _LOOKUPS.release()


class _Stream(httpcore.NetworkStream):
    def __init__(self, real: httpcore.NetworkStream) -> None:
        self._real = real

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._real.read(max_bytes, _left_s(httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._real.write(buffer, _left_s(httpcore.WriteTimeout))

    def close(self) -> None:
        self._real.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        left = _left_s(httpcore.ConnectTimeout)
        return _Stream(self._real.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:
        return self._real.get_extra_info(info)
