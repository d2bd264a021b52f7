"""How an alert travels: Alertmanager's API v2, its webhook format, or a line of the log.

Secrets are read when they are used and are part of no message: an error names the HTTP status or
the kind of failure, never an address.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import httpx

from resilience.app.outbox import Alert
from resilience.cores.budget import BudgetTransport, budget
from resilience.errors import ResilienceError
from resilience.model import Json, Receiver, digest16

SECRET_MAX = 16 * 1024
REST_MAX = 64 * 1024
ALERTS_PATH = "/api/v2/alerts"
WEBHOOK_VERSION = "4"


class SendError(ResilienceError):
    """A try failed. `final`: the receiver refused, so the same again is no use."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class Sender(Protocol):
    def send(self, alerts: Sequence[Alert], now_ms: int) -> None:
        """Deliver all of `alerts`; raises SendError."""
        ...

    def close(self) -> None: ...


class LogSender:
    """The built-in receiver `log`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def send(self, alerts: Sequence[Alert], now_ms: int) -> None:
        for alert in alerts:
            text = dict(alert.annotations).get("summary", "")
            pairs = ", ".join(f'{name}="{value}"' for name, value in alert.labels)
            self._say(f"{alert.status}: {{{pairs}}} {text}".rstrip())

    def close(self) -> None:
        pass


class HttpSender:
    """One HTTP receiver; the connection is kept between alerts."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._client: httpx.Client | None = None

    def send(self, alerts: Sequence[Alert], now_ms: int) -> None:
        url = _secret(self._receiver.url, self._receiver.url_file, self._receiver.url_env, "URL")
        if self._receiver.type == "alertmanager":
            url = url.rstrip("/") + ALERTS_PATH
            body: Json = [alertmanager_json(a, now_ms) for a in alerts]
        else:
            body = webhook_json(self._receiver.name, alerts)
        self._post(url, body)

    def _post(self, url: str, body: Json) -> None:
        seconds = self._receiver.timeout_ms / 1000
        try:
            client, headers = self._connected(), self._headers()
            with budget(seconds), client.stream("POST", url, json=body, headers=headers) as answer:
                _read_out(answer)
        except httpx.TimeoutException:
            raise SendError(f"no answer within {self._receiver.timeout_ms} ms") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise SendError(f"cannot be reached ({type(error).__name__})") from None
        if answer.status_code >= 300:
            final = 300 <= answer.status_code < 500 and answer.status_code not in (408, 429)
            raise SendError(f"HTTP {answer.status_code}", final=final)

    def _connected(self) -> httpx.Client:
        if self._client is None:
            receiver = self._receiver
            transport = BudgetTransport(
                verify=_trusted(receiver.ca_file), proxy=receiver.proxy_url)
            self._client = httpx.Client(
                timeout=receiver.timeout_ms / 1000, trust_env=False, transport=transport)
        return self._client

    def _headers(self) -> dict[str, str]:
        given = self._receiver
        if given.username is not None:
            password = _secret(None, given.password_file, given.password_env, "password")
            pair = base64.b64encode(f"{given.username}:{password}".encode()).decode()
            return {"authorization": f"Basic {pair}"}
        if given.bearer_token_file or given.bearer_token_env:
            token = _secret(None, given.bearer_token_file, given.bearer_token_env, "token")
            return {"authorization": f"Bearer {token}"}
        return {}

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def _read_out(answer: httpx.Response) -> None:
    """Read what follows the status, which is enough: a short rest leaves a connection that can be
    used again; of one that is long, or does not come, the connection is given up."""
    size = 0
    with suppress(httpx.HTTPError):
        for chunk in answer.iter_raw():
            size += len(chunk)
            if size > REST_MAX:
                return


def _trusted(ca_file: str | None) -> Any:
    import ssl

    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise SendError(f"the `ca_file` cannot be read ({type(error).__name__})") from None


def _secret(plain: str | None, file: str | None, variable: str | None, what: str) -> str:
    """Return what is configured, read anew each time so that a rotated secret counts."""
    if plain is not None:
        return plain
    if variable is not None:
        value = os.environ.get(variable, "").strip()
        if not value:
            raise SendError(f"the environment has no `{variable}` for the {what}")
        return value
    try:
        value = Path(str(file)).read_text(encoding="utf-8")[:SECRET_MAX].strip()
    except (OSError, ValueError) as error:
        raise SendError(f"the file of the {what} cannot be read ({type(error).__name__})") from None
    if not value:
        raise SendError(f"the file of the {what} is empty")
    return value


# --- what is sent --------------------------------------------------------------------------------


def alertmanager_json(alert: Alert, now_ms: int) -> Json:
    """Return one alert of a POST to /api/v2/alerts.

    A firing alert ends by itself when its lease is over, so that a dead engine leaves no alert
    behind; one that is kept has no end, and Alertmanager's own `resolve_timeout` applies.
    """
    ends_ms = alert.ends_ms
    if ends_ms is None and not alert.keep:
        ends_ms = now_ms + alert.lease_ms
    body: dict[str, Json] = {
        "labels": dict(alert.labels), "annotations": dict(alert.annotations),
        "startsAt": rfc3339(alert.starts_ms),
    }
    if ends_ms is not None:
        body["endsAt"] = rfc3339(ends_ms)
    return body


def webhook_json(receiver: str, alerts: Sequence[Alert]) -> Json:
    """Return the body of a webhook, version 4 of the format that Alertmanager sends."""
    shared = [set(a.labels) for a in alerts]
    notes = [set(a.annotations) for a in alerts]
    return {
        "version": WEBHOOK_VERSION, "receiver": receiver, "groupKey": "{}", "groupLabels": {},
        "truncatedAlerts": 0, "externalURL": "",
        "status": "firing" if any(a.ends_ms is None for a in alerts) else "resolved",
        "commonLabels": dict(sorted(set.intersection(*shared))),
        "commonAnnotations": dict(sorted(set.intersection(*notes))),
        "alerts": [_webhook_alert(a) for a in alerts],
    }


def _webhook_alert(alert: Alert) -> Json:
    return {
        "status": alert.status, "labels": dict(alert.labels),
        "annotations": dict(alert.annotations), "startsAt": rfc3339(alert.starts_ms),
        "endsAt": "0001-01-01T00:00:00Z" if alert.ends_ms is None else rfc3339(alert.ends_ms),
        "generatorURL": "", "fingerprint": digest16([list(pair) for pair in alert.labels]),
    }


def rfc3339(t_ms: int) -> str:
    """Return UTC with milliseconds, as in 2026-01-31T08:00:00.000Z."""
    return datetime.fromtimestamp(t_ms / 1000, UTC).isoformat(timespec="milliseconds").replace(
        "+00:00", "Z"
    )
