"""Any server with Prometheus' HTTP API as a source: Prometheus, Thanos, Mimir, VictoriaMetrics.

prometheus-api-client asks the questions. What it drops (warnings, error bodies, the type of the
result, a total time limit) is kept by the session below, which every request goes through. An
answer that is late, partial or refused is an error or a warning of that query, never an empty
result: an empty result means "false" to a trigger.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from requests.auth import AuthBase, HTTPBasicAuth

from resilience.addresses import server_address
from resilience.errors import SourceError
from resilience.model import Json, PrometheusAccess, QueryResult
from resilience.sources.api_json import ApiError, data_of, query_result, warnings_of
from resilience.sources.http_session import BoundedSession, TooLargeError
from resilience.sources.kind import SourceKind

PARALLEL_MAX = 8
SECRET_MIN = 4
NAMES_WITHIN_S = 3_600


class _Token(AuthBase):
    """A bearer token that is read for each request, so that it may be rotated."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._read()}"
        return request


class _Password(AuthBase):
    """A user whose password is read for each request, so that it may be rotated."""

    def __init__(self, user: str, read: Callable[[], str]) -> None:
        self._user = user
        self._read = read

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return HTTPBasicAuth(self._user, self._read())(request)


class PrometheusSource:
    """Implements `model.Source`; also answers the range and raw queries of the command line.

    Safe to call from several threads. Raises UsageError for an address that cannot be used.
    """

    def __init__(self, access: PrometheusAccess) -> None:
        self._url = server_address(
            access.url, "Prometheus", "use `prometheus: {auth: …}` of a `kind: Engine` document"
        )
        parts = urlsplit(self._url)
        self._access = access
        self._place = f"{parts.scheme}://{parts.netloc}"
        self._clients = threading.local()
        self._pool = ThreadPoolExecutor(PARALLEL_MAX, "prometheus")

    @property
    def scrape_interval_ms(self) -> int:
        return self._access.scrape_interval_ms

    @property
    def url(self) -> str:
        """The address without credentials."""
        return self._url

    def seq(self) -> int:
        """Return 0: the samples are kept elsewhere, so the results themselves are recorded."""
        return 0

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- queries -------------------------------------------------------------------------------

    def query(
        self, exprs: Sequence[str], t_ms: int, *, seq: int, deadline_ms: int
    ) -> Mapping[str, QueryResult]:
        """Evaluate instant queries at `t_ms`, several at a time; `seq` has no meaning here."""
        del seq
        budget_ms = min(deadline_ms, self._access.timeout_ms)
        end = time.monotonic() + budget_ms / 1000
        asked = {e: self._pool.submit(self._ask, e, t_ms, end) for e in dict.fromkeys(exprs)}
        wait(asked.values(), timeout=max(0.0, end - time.monotonic()))
        return {expr: self._take(expr, future, budget_ms) for expr, future in asked.items()}

    def _take(self, expr: str, future: Future[QueryResult], budget_ms: int) -> QueryResult:
        if future.done() and not future.cancelled():
            return future.result()
        future.cancel()
        return QueryResult(expr, error=self._late(budget_ms))

    def _ask(self, expr: str, t_ms: int, end: float) -> QueryResult:
        try:
            return query_result(expr, self._body("query", {"query": expr, "time": t_ms}, end))
        except (SourceError, ApiError) as error:
            return QueryResult(expr, error=str(error))

    def instant(self, expr: str, t_ms: int, *, deadline_ms: int) -> tuple[Json, tuple[str, ...]]:
        """Return the API's data object of one instant query, and warnings; raises SourceError."""
        return self._data("query", {"query": expr, "time": t_ms}, deadline_ms)

    def range(
        self, expr: str, start_ms: int, end_ms: int, step_ms: int, *, deadline_ms: int
    ) -> tuple[Json, tuple[str, ...]]:
        """Return the API's data object of a range query, and warnings; raises SourceError."""
        params = {"query": expr, "start": start_ms, "end": end_ms, "step": step_ms}
        return self._data("query_range", params, deadline_ms)

    def _data(
        self, kind: str, params: Mapping[str, Any], deadline_ms: int
    ) -> tuple[Json, tuple[str, ...]]:
        try:
            body = self._body(kind, params, time.monotonic() + deadline_ms / 1000)
            return data_of(body), warnings_of(body)
        except ApiError as error:
            raise SourceError(str(error)) from None

    def metric_names(self, *, deadline_ms: int) -> frozenset[str]:
        """Return the names with samples in the last hour or so; raises SourceError."""
        params = {"start": f"{time.time() - NAMES_WITHIN_S:.3f}"}

        def ask(client: _Client) -> None:
            client.get_label_values("__name__", params)

        body = self._call(ask, time.monotonic() + deadline_ms / 1000)
        data = body.get("data")
        return frozenset(str(name) for name in data) if isinstance(data, list) else frozenset()

    def version(self, *, deadline_ms: int) -> str:
        """Return the server's version, `unknown` if it does not say; raises SourceError."""
        body = self._call(
            lambda client: client.get_build_info(), time.monotonic() + deadline_ms / 1000
        )
        data = body.get("data")
        return str(data.get("version", "unknown")) if isinstance(data, dict) else "unknown"

    # --- one request ---------------------------------------------------------------------------

    def _body(self, kind: str, params: Mapping[str, Any], end: float) -> dict[str, Json]:
        """Return the whole answer to `query` or `query_range`; times in `params` are in ms."""
        left_s = max(0.001, end - time.monotonic())
        sent = {k: v if k == "query" else f"{v / 1000:.3f}" for k, v in params.items()}
        sent["timeout"] = f"{max(1, int(left_s * 1000))}ms"
        expr = sent["query"]
        if kind == "query":
            return self._call(lambda client: client.custom_query(expr, sent), end)
        # The client rounds times to seconds; those in `sent` win over its own.
        epoch = datetime.fromtimestamp(0)
        return self._call(
            lambda client: client.custom_query_range(expr, epoch, epoch, sent["step"], sent), end
        )

    def _call(self, ask: Callable[[_Client], object], end: float) -> dict[str, Json]:
        """Run one request of the client and return the whole JSON body; raises SourceError."""
        client = self._client()
        client.session.begin(end)
        budget_ms = round(max(0.0, end - time.monotonic()) * 1000)
        try:
            ask(client)
        except PrometheusApiClientException:
            raise SourceError(self._clean(client.session.refusal(self._place))) from None
        except TooLargeError as error:
            raise SourceError(f"`{self._place}`: {error}") from None
        except requests.exceptions.Timeout:
            raise SourceError(self._late(budget_ms)) from None
        except requests.exceptions.SSLError:
            raise SourceError(f"the certificate of `{self._place}` is not trusted") from None
        except requests.exceptions.ConnectionError:
            raise SourceError(f"cannot reach `{self._place}`") from None
        except requests.exceptions.InvalidHeader:
            raise SourceError("a header for Prometheus holds a line break or blank") from None
        except (requests.RequestException, LookupError, TypeError, ValueError, RecursionError):
            pass  # the body itself says more: it is read below
        return client.session.body(self._place, self._clean)

    def _late(self, budget_ms: int) -> str:
        return f"no answer from `{self._place}` within {budget_ms} ms"

    def _client(self) -> _Client:
        client: _Client | None = getattr(self._clients, "client", None)
        if client is None:
            client = self._clients.client = _Client(self._url, self._access, self._auth())
        return client

    # --- secrets -------------------------------------------------------------------------------

    def _auth(self) -> Any:
        access = self._access
        if access.bearer_token_file:
            path = access.bearer_token_file
            return _Token(lambda: _secret(path))
        if access.username:
            file = access.password_file
            return _Password(access.username, lambda: _secret(file) if file else "")
        return None

    def _clean(self, text: str) -> str:
        """Cut secrets out of what a server or proxy echoes."""
        files = (self._access.bearer_token_file, self._access.password_file)
        secrets = [value for _, value in self._access.headers]
        secrets += [_secret(path) for path in files if path]
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= SECRET_MIN:
                text = text.replace(secret, "…")
        return text


class _Client(PrometheusConnect):  # type: ignore[misc]  # the library has no types
    """One thread's client: our session, no retries (a tick asks again soon enough)."""

    def __init__(self, url: str, access: PrometheusAccess, auth: Any) -> None:
        self.session = BoundedSession()
        self.session.verify = access.ca_file or True
        # The library passes both on to requests as they are; its docstrings name narrower types.
        headers: Any = dict(access.headers) or None
        timeout_s: Any = access.timeout_ms / 1000
        super().__init__(
            url=url, headers=headers, retry=0, auth=auth, session=self.session, timeout=timeout_s
        )

    def get_build_info(self) -> None:
        """Ask for the server's version, which the library has no call for."""
        self.session.request(
            "GET", f"{self.url}/api/v1/status/buildinfo", headers=self.headers, auth=self.auth
        )


def _secret(path: str) -> str:
    try:
        text = Path(path).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise SourceError(f"cannot read the secret in `{path}`") from None
    if not text or not text.isprintable():
        raise SourceError(f"the secret in `{path}` is empty or has several lines")
    return text


PROMETHEUS = SourceKind(
    name="prometheus",
    doc="A server with Prometheus' HTTP API: Prometheus, Thanos, Mimir or VictoriaMetrics.",
    example='prometheus: {url: "http://prometheus.example:9090", scrape_interval: 15s}',
    keeps_samples=False,
    open=PrometheusSource,
)
