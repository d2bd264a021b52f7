"""The way from the HTTP side of a core to what generates."""

from __future__ import annotations

from typing import Protocol

from resilience.model import Json


class EngineSilentError(Exception):
    """The engine gave no answer in time."""


class EngineLink(Protocol):
    """The way to the engine; every call has a time-out."""

    async def call(self, payload: Json, timeout_s: float) -> Json:
        """Return the answer; raises EngineSilentError, or what the operation raised."""
        ...
