"""model.Core over HTTP: the engine's side of `/resilience`.

Every call takes a time budget in ms, for all of it together, and raises a CoreError; none retries,
the bus does that.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import httpx

from resilience.cores.budget import BudgetTransport, budget
from resilience.errors import (
    CoreError,
    CoreFencedError,
    CoreRefusedError,
    CoreReleasedError,
    CoreUnauthorizedError,
    CoreUnreachableError,
    UsageError,
)
from resilience.model import Actual, Capabilities, Desired, EngineConfig, Json

Document = TypeVar("Document", Actual, Capabilities)
ANSWER_MAX = 4 * 1024 * 1024
# What the engine reads of one change of a breaker's state.
CHANGE: dict[str, type] = {
    "number": int, "age_ms": int, "scope": dict, "from": str, "to": str, "policy": str,
}


class HttpCore:
    """A running vLLM server with our plug-ins, at `url` (scheme, host and port)."""

    def __init__(
        self, url: str, token: str, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(
            base_url=self.url + "/resilience", transport=transport or BudgetTransport(),
            trust_env=False,
            headers={"authorization": f"Bearer {token}"},
        )

    def capabilities(self, *, deadline_ms: int) -> Capabilities:
        body = self._call("GET", "/v1/capabilities", None, deadline_ms)
        # The gate's configuration is shown beside, for people.
        return self._read_as(Capabilities, {k: v for k, v in body.items() if k != "gate"})

    def put_desired(self, desired: Desired, *, deadline_ms: int) -> Actual:
        body = self._call("PUT", "/v1/desired", desired.to_json(), deadline_ms)
        return self._read_as(Actual, body)

    def actual(self, *, deadline_ms: int) -> Actual:
        return self._read_as(Actual, self._call("GET", "/v1/actual", None, deadline_ms))

    def impulse(self, key: str, impulse: str, args: Json, *, epoch: int, deadline_ms: int) -> Json:
        """Do it at most once for `key`; a repeat returns the stored result."""
        body = {"impulse": impulse, "args": args, "epoch": epoch}
        answer = self._call("POST", f"/v1/impulses/{key}", body, deadline_ms)
        if "result" not in answer:
            raise self._strange("no `result`")
        return answer["result"]

    def release(self, reason: str, *, t_ms: int, deadline_ms: int) -> Actual:
        """Drop every claim of the core and make it refuse others until `resume`."""
        body = self._call("POST", "/v1/release", {"reason": reason, "t_ms": t_ms}, deadline_ms)
        return self._read_as(Actual, body)

    def resume(self, *, deadline_ms: int) -> Actual:
        """Let a released core take claims again."""
        return self._read_as(Actual, self._call("POST", "/v1/resume", {}, deadline_ms))

    def configure_gate(self, config: EngineConfig, *, deadline_ms: int) -> None:
        """Give the running gate other tiers, header, peers or caps; raises CoreError."""
        from resilience.gate.config import GateConfig

        body = GateConfig.from_engine(config).to_json()
        self._call("PUT", "/v1/gate", body, deadline_ms)

    def gate(self, *, deadline_ms: int) -> Json:
        """Return what the gate does now, its breakers with their last changes; raises CoreError."""
        return self._call("GET", "/v1/gate", None, deadline_ms)

    def breakers(self, *, deadline_ms: int) -> Json:
        """Return the breakers' states and their last changes; raises CoreError."""
        body = self._call("GET", "/v1/breakers", None, deadline_ms)
        events = body.get("events")
        if not isinstance(body.get("life"), str) or not isinstance(events, list):
            raise self._strange("no `life` or no `events`")
        if not all(map(_is_change, events)):
            raise self._strange("an event of another shape")
        return body

    def is_healthy(self, *, deadline_ms: int) -> bool:
        """Say whether the server is up and its engine lives; False when it does not answer."""
        try:
            self._call("GET", "/health", None, deadline_ms)
        except CoreError:
            return False
        return True

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> HttpCore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read_as(self, kind: type[Document], body: Json) -> Document:
        """Return the core's document; one of another version or shape is a CoreError."""
        try:
            return kind.from_json(body)
        except ValueError as error:
            raise self._strange(str(error)) from None

    def _strange(self, why: str) -> CoreError:
        return CoreError(
            f"the core at `{self.url}` gave a strange answer: {why}; engine and server must run "
            "the same version of resilience"
        )

    def _call(self, method: str, path: str, body: Json, deadline_ms: int) -> Json:
        seconds = deadline_ms / 1000
        try:
            with budget(seconds), self._client.stream(
                method, path, json=body, timeout=seconds,
                headers={"x-resilience-budget-ms": str(deadline_ms)},
            ) as response:
                raw = self._read(response)
        except httpx.TimeoutException:
            raise CoreUnreachableError(
                f"no answer from the core at `{self.url}` in {deadline_ms} ms"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise CoreUnreachableError(
                f"cannot reach the core at `{self.url}`: {error or type(error).__name__}"
            ) from None
        return self._understand(response.status_code, raw)

    def _read(self, response: httpx.Response) -> bytes:
        chunks: list[bytes] = []
        size = 0
        for chunk in response.iter_bytes():
            chunks.append(chunk)
            size += len(chunk)
            if size > ANSWER_MAX:
                raise CoreError(f"the core at `{self.url}` sent more than {ANSWER_MAX} bytes")
        return b"".join(chunks)

    def _understand(self, status: int, raw: bytes) -> Json:
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        if status == 200 and isinstance(body, dict):
            return body
        raise self._error(status, body)

    def _error(self, status: int, body: Json) -> CoreError:
        error = body.get("error") if isinstance(body, dict) else None
        fields = error if isinstance(error, dict) else {}
        text = str(fields.get("message") or f"the core at `{self.url}` answered HTTP {status}")
        if status in (401, 403):
            return CoreUnauthorizedError(text)
        if status == 404:
            return CoreError(f"the server at `{self.url}` runs without the resilience plug-ins")
        if status == 409:
            return CoreFencedError(
                text, epoch=_count(fields.get("epoch")), generation=_count(fields.get("generation"))
            )
        if status == 423:
            return CoreReleasedError(text)
        if status in (413, 422):
            return CoreRefusedError(text)
        return CoreUnreachableError(text) if status == 503 else CoreError(text)


def _is_change(event: Json) -> bool:
    return isinstance(event, dict) and all(
        isinstance(event.get(name), kind) and not isinstance(event[name], bool)
        for name, kind in CHANGE.items())


def _count(value: Json) -> int:
    return value if isinstance(value, int) else 0


def read_token(path: str | Path) -> str:
    """Return the token in a file; raises UsageError that says what to do."""
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        raise UsageError(
            f"cannot read the token file `{path}`; give the one of the running core with "
            "`--token-file`"
        ) from None
    if not token:
        raise UsageError(f"the token file `{path}` is empty; start the core again")
    if len(token.split()) > 1 or not token.isprintable():  # an error about it would print it
        raise UsageError(f"the token file `{path}` holds more than one token; give the core's own")
    return token
