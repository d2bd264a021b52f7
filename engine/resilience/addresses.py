"""Addresses of servers, judged before somebody connects: what would fail there is said here."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from resilience.errors import UsageError

HOST_MAX = 253
# A connection that was idle for so long is not used again: vLLM's server ends idle ones after 5 s,
# as uvicorn does, and a request that meets that moment gets no answer.
IDLE_MAX_S = 2.0
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+){3}")
_SIGNS = frozenset("%\\^`{}|<>\"'@")
_WRITE = "write http://HOST:PORT"


def problem_of(url: str) -> str | None:
    """Return why nobody can connect to `url`, to follow "the address …"; None when one can."""
    if not url.isprintable() or " " in url:
        return "holds spaces or control characters"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return "has no valid port" if "port" in str(error).lower() else "has no valid host"
    if parts.scheme not in ("http", "https"):
        return "is no `http://…` or `https://…`"
    if port == 0:
        return "has no valid port"
    return None if _is_host(parts) else "has no valid host"


def _is_host(parts: SplitResult) -> bool:
    """Return whether names can be looked up for it: labels of 1 to 63 signs, numbers up to 255."""
    host = parts.hostname or ""
    try:
        if _NUMBERS.fullmatch(host):
            ipaddress.IPv4Address(host)
        elif ":" in host:
            ipaddress.IPv6Address(host)
        else:
            host.encode("idna")
            return 0 < len(host) <= HOST_MAX and _SIGNS.isdisjoint(host)
    except ValueError:                                  # a UnicodeError is one, too
        return False
    return True


def server_address(
    url: str, what: str = "a server", instead: str = "leave them out"
) -> str:
    """Return the base of a server's address, without a slash at its end.

    `instead` says what to do about credentials in it. Raises UsageError for what nobody can
    connect to, and for what carries a secret or a query: paths are appended to it, and it stands
    in messages and records.
    """
    problem = problem_of(url)
    if problem is not None:
        raise UsageError(f"the address of {what} {problem}{_shown(url)}; {_WRITE}")
    if holds_credentials(url):
        raise UsageError(f"the address of {what} holds credentials; {instead}")
    if "?" in url or "#" in url:
        raise UsageError(f"the address of {what} holds a query or a fragment; {_WRITE}")
    return url.rstrip("/")


def holds_credentials(url: str) -> bool:
    """Return whether a user or a password stands before the host."""
    try:
        return "@" in urlsplit(url).netloc
    except ValueError:
        return "@" in url                               # what cannot be read may hold one


def _shown(url: str) -> str:
    """Return `url` in backticks for a message; nothing for one that may hold a secret."""
    if not {"@", "?", "#"}.isdisjoint(url):
        return ""
    return f": `{url if url.isprintable() else ascii(url)[1:-1]}`"
