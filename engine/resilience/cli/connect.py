"""How a command finds the running engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from resilience.cli.paths import FilePath

if TYPE_CHECKING:
    from resilience.app.client import EngineClient

F = TypeVar("F", bound=Callable[..., Any])
ID_DIGITS = 16


def engine_options(function: F) -> F:
    """Add `--socket` and `--state`; the command gets `socket` and `state`, either may be None."""
    for option in (
        click.option(
            "--state", type=FilePath(path_type=Path), metavar="DIR",
            help="State folder of the engine. [env: RESILIENCE_STATE]",
        ),
        click.option(
            "--socket", type=FilePath(path_type=Path), metavar="PATH",
            help="Control socket of the engine. [env: RESILIENCE_SOCKET]",
        ),
    ):
        function = option(function)
    return function


def one_line(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """The callback of a reason, which stands in tables and on terminals later."""
    from resilience.errors import UsageError
    from resilience.model import REASON_MAX

    del ctx
    text = value.strip()
    if param.required and not text:
        raise UsageError("`--reason` is empty: say why in one line")
    if not text.isprintable() or len(text) > REASON_MAX:
        raise UsageError(f"`--reason` is one line of at most {REASON_MAX} characters")
    return text


def connect(socket: Path | None, state: Path | None) -> EngineClient:
    """Return a client of the engine; whether it runs shows with the first question."""
    from resilience.app.client import EngineClient
    from resilience.app.files import default_socket_path

    if socket is None:
        socket = state / "engine.sock" if state is not None else default_socket_path()
    return EngineClient(socket)


def decision_id(text: str) -> str:
    """Return the id of a decision, or the beginning of one; raises UsageError."""
    from resilience.errors import UsageError

    if not 0 < len(text) <= ID_DIGITS or any(c not in "0123456789abcdef" for c in text):
        shown = text if text.isprintable() and len(text) <= 40 else ascii(text[:40])[1:-1]
        raise UsageError(f"`{shown}` is no decision; `resilience get decisions` lists them")
    return text


def duration_ms(text: str, what: str) -> int:
    """Return milliseconds of a duration such as `1h`; raises UsageError naming `what`."""
    from resilience.errors import UsageError
    from resilience.samples import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from error
