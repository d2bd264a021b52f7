"""The client of the control API: what every command that talks to a running engine uses."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx

from resilience.errors import ControlError
from resilience.model import Finding, Json

TIMEOUT_S = 30.0


class EngineClient:
    """HTTP over the engine's Unix socket; a context manager."""

    def __init__(self, path: Path) -> None:
        self.socket = path
        self._known = False
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://engine",
            timeout=TIMEOUT_S,
        )

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: str | int | None) -> Json:
        return self._ask("GET", path, query=query)

    def put(
        self, path: str, body: Json, *, headers: dict[str, str] | None = None,
        **query: str | int | None,
    ) -> Json:
        return self._ask("PUT", path, body=body, headers=headers, query=query)

    def post(self, path: str, body: Json = None) -> Json:
        return self._ask("POST", path, body={} if body is None else body)

    def _knock(self) -> None:
        """Raise ControlError unless somebody listens. httpx would leak the socket that failed."""
        with socket.socket(socket.AF_UNIX) as knock:
            knock.settimeout(TIMEOUT_S)
            try:
                knock.connect(str(self.socket))
                self._known = True
            except OSError as error:
                raise ControlError(
                    f"no engine listens on `{self.socket}`; start one with `resilience serve`, or "
                    "name its socket with `--socket`", code="no_engine", status=0,
                ) from error

    def _ask(
        self, method: str, path: str, *, body: Json = None,
        headers: dict[str, str] | None = None, query: dict[str, str | int | None] | None = None,
    ) -> Json:
        """Return the JSON answer; raises ControlError, also when no engine runs."""
        if not self._known:
            self._knock()
        params = {k: str(v) for k, v in (query or {}).items() if v is not None}
        try:
            answer = self._http.request(
                method, f"/v1/{path}", params=params, headers=headers,
                json=body if body is not None else None,
            )
        except httpx.TimeoutException as error:
            raise ControlError(
                f"the engine did not answer within {TIMEOUT_S:g} s", code="timeout", status=0
            ) from error
        except httpx.HTTPError as error:
            raise ControlError(
                f"the engine hung up: {error}", code="no_engine", status=0
            ) from error
        return _checked(answer)


def _checked(answer: httpx.Response) -> Json:
    try:
        body = answer.json()
    except ValueError as error:
        raise ControlError(
            f"the engine's answer is not JSON (HTTP {answer.status_code})",
            status=answer.status_code,
        ) from error
    if answer.status_code < 400:
        return body
    error_body = body.get("error", {})
    findings = [Finding(**f) for f in error_body.get("findings", [])]
    raise ControlError(
        error_body.get("message", f"HTTP {answer.status_code}"),
        code=error_body.get("code", "failed"), status=answer.status_code, findings=findings,
    )
