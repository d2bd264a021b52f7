"""Break glass without an engine: take the newest epoch and claim nothing."""

from __future__ import annotations

from pathlib import Path

from resilience.app.files import default_state_path, read_token
from resilience.errors import CoreError, UsageError
from resilience.model import Actual, Core, Desired


def release(url: str, token_file: Path | None, state: Path | None, *, deadline_ms: int) -> Actual:
    """Clear all claims of the core at `url` and fence its engine; raises ResilienceError."""
    from resilience.cores.vllm.client import VllmCore

    if not url.startswith(("http://", "https://")):
        raise UsageError(f"`{url}` is not the address of a server; write http://HOST:PORT")
    token = read_token(token_file or (state or default_state_path()) / "core.token")
    with VllmCore(url, token) as core:
        return clear(core, deadline_ms=deadline_ms)


def clear(core: Core, *, deadline_ms: int) -> Actual:
    """Send an empty document with a newer epoch than the core has seen, and read back."""
    epoch = core.capabilities(deadline_ms=deadline_ms).epoch + 1
    actual = core.put_desired(Desired(epoch, 1), deadline_ms=deadline_ms)
    left = sorted({
        knob for knob, scopes in actual.effective.items()
        for effective in scopes.values() if effective.policy is not None
    })
    if left:
        raise CoreError(f"the core still holds claims on {', '.join(f'`{k}`' for k in left)}")
    return actual
