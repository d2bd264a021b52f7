"""How a command finds the running engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from resilience.app.client import EngineClient

F = TypeVar("F", bound=Callable[..., Any])


def engine_options(function: F) -> F:
    """Add `--socket` and `--state`; the command gets `socket` and `state`, either may be None."""
    for option in (
        click.option(
            "--state", type=click.Path(path_type=Path), metavar="DIR",
            help="State folder of the engine. [env: RESILIENCE_STATE]",
        ),
        click.option(
            "--socket", type=click.Path(path_type=Path), metavar="PATH",
            help="Control socket of the engine. [env: RESILIENCE_SOCKET]",
        ),
    ):
        function = option(function)
    return function


def connect(socket: Path | None, state: Path | None) -> EngineClient:
    """Return a client of the engine; whether it runs shows with the first question."""
    from resilience.app.client import EngineClient
    from resilience.app.files import default_socket_path

    if socket is None:
        socket = state / "engine.sock" if state is not None else default_socket_path()
    return EngineClient(socket)


def duration_ms(text: str, what: str) -> int:
    """Return milliseconds of a duration such as `1h`; raises UsageError naming `what`."""
    from resilience.errors import UsageError
    from resilience.samples import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from error
