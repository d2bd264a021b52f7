"""Break glass without an engine: the core drops every claim and takes none until it is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from resilience.addresses import server_address
from resilience.app.files import default_state_path, read_token
from resilience.errors import CoreError
from resilience.model import Actual

if TYPE_CHECKING:
    from resilience.cores.client import HttpCore


class ReleasableCore(Protocol):
    """A core that can be released and resumed."""

    def release(self, reason: str, *, t_ms: int, deadline_ms: int) -> Actual: ...

    def resume(self, *, deadline_ms: int) -> Actual: ...


def core_at(url: str, token_file: Path | None, state: Path | None) -> HttpCore:
    """Return a client of the core at `url`; raises UsageError."""
    from resilience.cores.client import HttpCore

    url = server_address(url)
    return HttpCore(url, read_token(token_file or (state or default_state_path()) / "core.token"))


def release(core: ReleasableCore, reason: str, *, t_ms: int, deadline_ms: int) -> Actual:
    """Clear all claims, make the core refuse others, and check the read-back.

    Raises CoreError; a repeat does no harm.
    """
    actual = core.release(reason, t_ms=t_ms, deadline_ms=deadline_ms)
    left = sorted({
        knob for knob, scopes in actual.effective.items()
        for effective in scopes.values() if effective.policy is not None
    })
    if left:
        raise CoreError(f"the core still holds claims on {', '.join(f'`{k}`' for k in left)}")
    return actual
