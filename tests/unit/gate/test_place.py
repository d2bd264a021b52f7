"""The gate stands behind vLLM's own middlewares: the API key is asked for first, and browsers can
read what the gate says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from resilience.cores.vllm.place import put_behind
from resilience.gate.config import GateConfig
from resilience.model import BudgetSettings, EngineConfig, Json, TierSource
from tests.unit.gate.conftest import collect, make_scope, replay

pytest.importorskip("starlette")
MakeClaim = Callable[..., Json]
PAGE = "https://chat.example.org"
CONCURRENCY = "throttle.max_concurrency"


class Door:
    """Asks for a key as vLLM does, and adds an id to answers as vLLM does: into their own list."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])

        async def marked(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-request-id", headers.get(b"x-request-id", b"new")))
            await send(message)

        if headers.get(b"authorization") == b"Bearer key":
            await self.app(scope, receive, marked)
            return
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"Unauthorized"})


def served(bench: Any, *, cors: bool = True) -> Any:
    """Return a server's application, with the gate where it has its place."""
    from starlette.middleware.cors import CORSMiddleware

    inner = CORSMiddleware(bench.echo, allow_origins=[PAGE]) if cors else bench.echo
    return put_behind(Door(inner), bench.around)


def ask(bench: Any, app: Any, key: str = "key", body: bytes = b"{}", **headers: str) -> Any:
    answer = bench.answer()
    scope = make_scope(authorization=f"Bearer {key}", **headers)
    message = {"type": "http.request", "body": body, "more_body": False}
    asyncio.run(app(scope, replay([message]), collect(answer)))
    return answer


@pytest.fixture
def budgeted(new_bench: Callable[[GateConfig], Any]) -> Any:
    budget = EngineConfig(budget=BudgetSettings(), tier_source=TierSource())
    return new_bench(GateConfig.from_engine(budget))


def test_who_has_no_key_meets_no_limit(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim("throttle.max_requests_per_second", 1.0), claim(CONCURRENCY, 5))
    app = served(bench)
    assert [ask(bench, app, "guess").status for _ in range(9)] == [401] * 9
    assert [ask(bench, app).status for _ in range(2)] == [200, 429]


def test_a_page_can_read_a_refusal(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim(CONCURRENCY, 0))
    refused = ask(bench, served(bench), origin=PAGE)
    assert refused.status == 429 and refused.headers["x-resilience-reason"]
    assert refused.headers["access-control-allow-origin"] == PAGE


def test_a_kept_answer_has_no_headers_of_the_request_before(budgeted: Any) -> None:
    app = served(budgeted)
    mine: dict[str, Any] = {"x_request_id": "4f9d1c1e-5f0c-4e0e-9a53-0b3d2a8f7b11"}
    first = ask(budgeted, app, origin=PAGE, **mine)
    again = ask(budgeted, app, **mine)
    assert first.headers["access-control-allow-origin"] == PAGE
    assert again.headers["idempotent-replayed"] == "true" and len(budgeted.seen) == 1
    assert "access-control-allow-origin" not in again.headers
    (kept,) = budgeted.state.results._kept.values()
    assert [name for name, _ in kept.answer[0]["headers"]] == [b"x-model-latency"]


def test_it_stands_around_what_it_does_not_know(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim(CONCURRENCY, 0))
    app = served(bench, cors=False)
    assert [ask(bench, app, key).status for key in ("key", "guess")] == [429, 429]
