"""Every error of the product, in one tree.

    ResilienceError                 exit code 1
    ├── UsageError                  exit code 2: the command line or the environment is wrong
    ├── FindingsError               exit code 3: documents have errors; carries the findings
    ├── PromQLError                 an expression cannot be parsed, typed or evaluated
    ├── SourceError                 a metric source failed: time-out, HTTP error, partial answer
    ├── RecordingError              a recording or an import cannot be read or written
    ├── SandboxError                the UDF sandbox as a whole cannot run
    ├── JournalError                the journal cannot be read or written
    ├── ControlError                the engine's control API refused; carries code and HTTP status
    └── CoreError                   the serving core failed or refused
        ├── CoreUnreachableError    no answer within the deadline
        ├── CoreUnauthorizedError   wrong or missing token (401, 403)
        ├── CoreFencedError         an older epoch or generation than the core has seen (409)
        ├── CoreReleasedError       an operator released the core: it takes no claims (423)
        └── CoreRefusedError        the core cannot honour a claim, and says why (422)

Messages: lower case, no full stop, user input in backticks, then what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resilience.model import Finding


class ResilienceError(Exception):
    """Base of every error that a user may see; `str()` is the one-line message."""

    exit_code = 1


class UsageError(ResilienceError):
    """The command line, a path or the environment is wrong."""

    exit_code = 2


class FindingsError(ResilienceError):
    """Documents were refused; `findings` says where and why."""

    exit_code = 3

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        errors = [f for f in self.findings if f.severity == "error"]
        super().__init__(str(errors[0]) if errors else "documents were refused")


class PromQLError(ResilienceError):
    """An expression is wrong. `line` and `column` count from 1 inside the expression.

    `kind` is one of `parse`, `type`, `unsupported` (names the feature), `limit`, `evaluation`.
    `part` is the canonical text of what could not be evaluated; `promql.failing` finds its place.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "parse",
        line: int = 1,
        column: int = 1,
        suggestion: str | None = None,
        part: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.part = part
        self.line = line
        self.column = column
        self.suggestion = suggestion


class SourceError(ResilienceError):
    """A metric source failed; every trigger that needs it is unknown, never false."""


class RecordingError(ResilienceError):
    """A recording or an import cannot be read or written."""


class SandboxError(ResilienceError):
    """The sandbox as a whole cannot run."""


class JournalError(ResilienceError):
    """The journal cannot be read or written."""


class ControlError(ResilienceError):
    """The engine's control API refused a request."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "refused",
        status: int = 400,
        findings: Sequence[Finding] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.findings = tuple(findings)


class CoreError(ResilienceError):
    """The serving core failed or refused."""


class CoreUnreachableError(CoreError):
    """The core gave no answer within the deadline."""


class CoreUnauthorizedError(CoreError):
    """The token is wrong or missing."""


class CoreFencedError(CoreError):
    """The core has seen a newer epoch or generation."""

    def __init__(self, message: str, *, epoch: int = 0, generation: int = 0) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.generation = generation


class CoreReleasedError(CoreError):
    """An operator released the core: it takes no claims until it is resumed."""


class CoreRefusedError(CoreError):
    """The core cannot honour a claim; nothing was changed."""
