"""A requests session with a total time limit, a size limit and a memory of its last answer.

prometheus-api-client only returns `data.result` of an answer and hides the rest in the text of an
exception; this session keeps the status and the whole body. Its own time-out is per read, so a
server that drips bytes would hold a tick for ever: here the whole request has one end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import requests
import urllib3

from resilience.errors import SourceError
from resilience.samples import Json

BODY_MAX = 256 * 1024 * 1024
URL_MAX = 2_000
CHUNK = 64 * 1024


class TooLargeError(Exception):
    """An answer is larger than BODY_MAX."""


class BoundedSession(requests.Session):
    """Call `begin(end)` (monotonic seconds) before a request, `body()` after it."""

    def __init__(self) -> None:
        super().__init__()
        self._end = 0.0
        self._last: requests.Response | None = None

    def begin(self, end: float) -> None:
        self._end = end
        self._last = None

    def request(self, method: Any, url: Any, *args: Any, **options: Any) -> requests.Response:
        """Send one request, read its answer within the limits, and remember it."""
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise requests.exceptions.Timeout
        # No redirects: tenant and key headers would follow to another host.
        options.update(timeout=left_s, stream=True, allow_redirects=False)
        params = options.get("params")
        if params and sum(len(str(v)) for v in params.values()) > URL_MAX:
            method, options["data"] = "POST", options.pop("params")
        response = super().request(method, url, *args, **options)
        with response:
            response._content = self._read(response)
        self._last = response
        return response

    def _read(self, response: requests.Response) -> bytes:
        parts: list[bytes] = []
        size = 0
        while chunk := _chunk(response):
            size += len(chunk)
            if size > BODY_MAX:
                raise TooLargeError(f"the answer is larger than {BODY_MAX >> 20} MiB")
            if time.monotonic() > self._end:
                raise requests.exceptions.Timeout
            parts.append(chunk)
        return b"".join(parts)

    def refusal(self, place: str) -> str:
        """Return why the last request was refused, from its status and JSON body."""
        response = self._last
        if response is None:
            return f"no answer from `{place}`"
        status = response.status_code
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return f"`{place}` refused the credentials (HTTP {status})"
        if response.is_redirect:
            return f"`{place}` redirects (HTTP {status}): give the address it redirects to"
        return f"`{place}` answered HTTP {status}: {_reason(response.content)}"

    def body(self, place: str, clean: Callable[[str], str]) -> dict[str, Json]:
        """Return the JSON object of the last answer; raises SourceError with the reason."""
        response = self._last
        if response is None or not response.ok:
            raise SourceError(clean(self.refusal(place)))
        try:
            body = json.loads(response.content)
        except (ValueError, RecursionError):
            raise SourceError(f"`{place}` answered something that is not JSON") from None
        if not isinstance(body, dict):
            raise SourceError(f"`{place}` answered JSON that is not an object")
        if body.get("status") != "success":
            raise SourceError(clean(f"`{place}`: {_reason(response.content)}"))
        return body


def _chunk(response: requests.Response) -> bytes:
    """Return what has arrived; `iter_content` would wait until a whole chunk is full."""
    try:
        chunk: bytes = response.raw.read1(CHUNK, decode_content=True)
        return chunk
    except urllib3.exceptions.ReadTimeoutError:
        raise requests.exceptions.Timeout from None
    except urllib3.exceptions.HTTPError:
        raise requests.exceptions.ConnectionError from None


def _reason(content: bytes) -> str:
    """Return the API's own error text, else the beginning of the body as one line."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict) and body.get("error"):
        kind = f"{body['errorType']}: " if body.get("errorType") else ""
        return _line(f"{kind}{body['error']}")
    return _line(content[:1_000].decode("utf-8", "replace")) or "no explanation"


def _line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:299] + "…"
