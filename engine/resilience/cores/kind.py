"""What every kind of core declares about itself; one suite walks all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from resilience.model import Core


@dataclass(frozen=True, slots=True)
class CoreKind:
    """One kind of serving core. `params` is a frozen dataclass, `example` its fields as YAML;
    `connect(params)` returns a model.Core and does no I/O before its first call; `launch` is the
    module whose `start` runs a server of this kind, "" where there is none to run."""

    name: str
    doc: str
    params: type
    example: str
    connect: Callable[[Any], Core]
    launch: str = ""


@dataclass(frozen=True, slots=True)
class HttpParams:
    """Where a server with the gate and the endpoint answers, and the file that holds its token."""

    url: str = "http://127.0.0.1:8000"
    token_file: str = "core.token"


HTTP_EXAMPLE = "url: http://127.0.0.1:8000\ntoken_file: core.token\n"


def connect(params: HttpParams) -> Core:
    """Read the token and return the client; raises UsageError when there is no token."""
    from resilience.cores.client import HttpCore, read_token

    return HttpCore(params.url, read_token(params.token_file))
