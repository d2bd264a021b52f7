"""A port for a server that a test, the demo or a benchmark starts."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST, TRIES = 10_000, 100


def free_port() -> int:
    """Return a port of the loopback on which nobody listens. It lies below those that the kernel
    gives to clients, so that none of their connections takes it before the server is up."""
    first = int(RANGE.read_text().split()[0]) if RANGE.exists() else 0
    ports = range(LOWEST, first) or range(1)        # port 0: whichever the kernel gives
    for port in random.SystemRandom().choices(ports, k=TRIES):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise OSError(f"{TRIES} ports are taken")
