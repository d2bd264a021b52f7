"""The PyTorch core on a tiny random Llama: the core contract, the API, levers and impulses.

One server for the module, started as `serve --core torch` starts it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from resilience.cores.client import HttpCore
from resilience.cores.process import ServerProcess
from resilience.cores.torch.launch import start
from resilience.errors import CoreRefusedError
from resilience.model import Desired, EngineConfig, Json
from tests.contract.core_suite import CoreContract, Subject, claim
from tests.live.serving import ONCE
from tests.live.tiny_llama import make_model
from tools.ports import free_port

pytestmark = pytest.mark.live
READY_S = 900.0
SEATS, QUEUE = 4, 4
LACKS = frozenset({"cache.kv_blocks", "cache.kv_blocks_soft", "cache.mode"})


@pytest.fixture(scope="module")
def torch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    pytest.importorskip("transformers", reason="live tests need transformers")
    model = make_model(tmp_path_factory.mktemp("tiny") / "model")
    argv = [
        str(model), "--port", str(free_port()), "--served-model-name", "base", "small",
        "--max-num-seqs", str(SEATS), "--queue-max", str(QUEUE), "--threads", "1",
        "--kv-tokens", "16384",
    ]
    process = start(argv, EngineConfig(), tmp_path_factory.mktemp("torch-state"))
    try:
        process.wait_ready(READY_S)
        yield process
    finally:
        process.stop(20.0)


@pytest.fixture
def core(torch_server: ServerProcess) -> Iterator[HttpCore]:
    with HttpCore(torch_server.url, torch_server.token) as client:
        yield client


@pytest.fixture
def subject(core: HttpCore) -> Iterator[Subject]:
    epoch = core.capabilities(deadline_ms=60_000).epoch + 1

    def let_pass_ms(ms: int) -> None:
        """A lease is counted on the server's own clock, so here time has to pass."""
        time.sleep(ms / 1000)

    yield Subject(core, epoch, let_pass_ms, lacks=LACKS)
    newest = core.capabilities(deadline_ms=60_000).epoch + 1
    core.put_desired(Desired(newest, 1, ()), deadline_ms=60_000)


@pytest.fixture
def api(torch_server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=torch_server.url, timeout=120.0, trust_env=False, limits=ONCE
    ) as client:
        yield client


class TestTorchCore(CoreContract):
    """The whole contract; what the core lacks is named in LACKS."""


def body(tokens: int = 8, **more: Any) -> dict[str, Any]:
    return {
        "model": "base", "prompt": "the quick brown fox", "max_tokens": tokens,
        "temperature": 0, "ignore_eos": True, **more,
    }


def events(response: httpx.Response) -> list[Any]:
    lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def metric(api: httpx.Client, name: str, label: str = "") -> float:
    total = 0.0
    for line in api.get("/metrics").text.splitlines():
        head, _, value = line.rpartition(" ")
        if head.partition("{")[0] == name and label in head:
            total += float(value)
    return total


def running(api: httpx.Client) -> float:
    return metric(api, "vllm:num_requests_running")


def test_a_completion_is_whole_or_streamed_and_the_same(api: httpx.Client) -> None:
    before = metric(api, "vllm:generation_tokens_total")
    whole = api.post("/v1/completions", json=body(8)).json()
    assert whole["object"] == "text_completion" and whole["model"] == "base"
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 8
    asked = body(8, stream=True, stream_options={"include_usage": True})
    with api.stream("POST", "/v1/completions", json=asked) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        found = events(response)
    assert found[-1]["choices"] == [] and found[-1]["usage"] == whole["usage"]
    text = "".join(e["choices"][0]["text"] for e in found[:-1])
    assert text == whole["choices"][0]["text"]
    assert found[-2]["choices"][0]["finish_reason"] == "length"
    assert metric(api, "vllm:generation_tokens_total") == before + 16


def test_a_chat_is_whole_or_streamed(api: httpx.Client) -> None:
    asked = body(6, messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
    del asked["prompt"]
    whole = api.post("/v1/chat/completions", json=asked).json()
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"]["role"] == "assistant"
    with api.stream("POST", "/v1/chat/completions", json={**asked, "stream": True}) as response:
        found = events(response)
    assert found[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(e["choices"][0]["delta"]["content"] for e in found)
    assert text == whole["choices"][0]["message"]["content"]


def test_a_stop_word_ends_the_answer_before_itself(api: httpx.Client) -> None:
    text = api.post("/v1/completions", json=body(12)).json()["choices"][0]["text"]
    word = text[4:6]
    cut = api.post("/v1/completions", json=body(12, stop=[word])).json()["choices"][0]
    assert cut["text"] == text[:text.index(word)] and cut["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("path", "sent", "status", "param"),
    [
        ("completions", {"prompt": "x", "n": 2}, 400, "n"),
        ("completions", {"prompt": "x", "no_such_field": 1}, 400, "no_such_field"),
        ("completions", {"prompt": "x", "model": "other"}, 404, "model"),
        ("completions", {"prompt": ""}, 400, "prompt"),
        ("completions", {"prompt": [1, 999_999]}, 400, "prompt"),
        ("completions", {"prompt": "x", "max_tokens": 100_000}, 400, "max_tokens"),
        ("completions", {"prompt": "x", "temperature": "hot"}, 400, "temperature"),
        ("completions", [1], 400, None),
        ("chat/completions", {"messages": []}, 400, "messages"),
        ("chat/completions", {"messages": [{"role": "user"}]}, 400, "messages"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}],
                              "tools": [{"type": "function"}]}, 400, "tools"),
    ],
)
def test_what_it_cannot_do_is_an_error_object(
    api: httpx.Client, path: str, sent: Any, status: int, param: str | None
) -> None:
    answer = api.post(f"/v1/{path}", json=sent)
    found = answer.json()["error"]
    assert answer.status_code == status and found["param"] == param and found["message"]
    assert found["type"] == "invalid_request_error"


def test_no_sampling_that_it_takes_ends_the_thread_for_all(api: httpx.Client) -> None:
    """Beyond float32, int32 and the vocabulary, alone and beside others in one batch."""
    extreme: list[dict[str, Any]] = [
        {"temperature": 1e-46}, {"temperature": 1e-38}, {"temperature": 2.0, "top_p": 1e-9},
        {"temperature": 1.0, "top_k": 2**40}, {"temperature": 1.0, "top_k": 1_000_000},
        {"temperature": 1.0, "top_k": 5}, {"priority": 10**30},
    ]
    def ask(more: dict[str, Any]) -> int:
        return api.post("/v1/completions", json=body(8, **more)).status_code

    with ThreadPoolExecutor(SEATS) as pool:
        assert list(pool.map(ask, extreme)) == [200] * len(extreme)
    assert [ask(more) for more in extreme] == [200] * len(extreme)
    assert api.get("/health").status_code == 200


def test_models_health_and_unknown_paths(
    api: httpx.Client, eventually: Callable[..., None]
) -> None:
    assert [m["id"] for m in api.get("/v1/models").json()["data"]] == ["base", "small"]
    assert api.get("/health").status_code == 200
    eventually(lambda: api.get("/resilience/health").json()["status"] in ("well", "degraded"))
    assert api.get("/v1/nothing").json()["error"]["message"] == "Not Found"


def test_a_throttle_is_read_back_refuses_and_is_undone(
    api: httpx.Client, subject: Any
) -> None:
    subject.put(claim("throttle.max_concurrency", 0))
    assert subject.values() == {"throttle.max_concurrency": {"": 0}}
    refused = api.post("/v1/completions", json=body())
    assert refused.status_code in (429, 503) and refused.json()["error"]["message"]
    subject.put()
    assert api.post("/v1/completions", json=body()).status_code == 200


def test_a_lease_that_ends_frees_the_server_by_itself(
    api: httpx.Client, subject: Any, eventually: Callable[..., None]
) -> None:
    subject.put(claim("throttle.max_concurrency", 0, ttl_ms=500))
    eventually(lambda: subject.values() == {})
    assert api.post("/v1/completions", json=body()).status_code == 200


class Streams:
    """Requests under way until they are closed."""

    def __init__(self, api: httpx.Client, count: int, tokens: int = 3_000) -> None:
        self.open = [self._begin(api, tokens) for _ in range(count)]

    def _begin(self, api: httpx.Client, tokens: int) -> httpx.Response:
        request = api.build_request("POST", "/v1/completions", json=body(tokens, stream=True))
        return api.send(request, stream=True)

    def close(self) -> None:
        for response in self.open:
            response.close()


def test_max_running_rests_the_younger_and_lets_it_go_on(
    api: httpx.Client, subject: Any, eventually: Callable[..., None]
) -> None:
    """At once: the older goes on for longer than the younger would need, which then has it all."""
    tokens = 300

    def rests_and_goes_on() -> bool:
        """Say whether the younger was told before it had it all, on a machine that stands still."""
        streams = Streams(api, 1)
        older = streams.open[0].iter_lines()
        assert next(older)
        younger = pool.submit(api.post, "/v1/completions", json=body(tokens))
        eventually(lambda: running(api) == 2 or younger.done())
        subject.put(claim("cache.max_running", 1), claim("cache.step_tokens", 32))
        in_time = not younger.done()
        for _ in range(2 * (tokens + 50)):  # a line and an empty one for each token
            next(older)
        assert not in_time or not younger.done()
        streams.close()
        assert younger.result().json()["usage"]["completion_tokens"] == tokens
        subject.put()
        return in_time

    with ThreadPoolExecutor(1) as pool:
        eventually(rests_and_goes_on)
    assert subject.values() == {}


def test_a_client_that_leaves_takes_its_request_with_it(
    api: httpx.Client, eventually: Callable[..., None]
) -> None:
    before = metric(api, "vllm:request_success_total", 'finished_reason="abort"')
    streams = Streams(api, 1)
    assert next(streams.open[0].iter_lines())
    streams.close()
    eventually(lambda: running(api) == 0)
    asyncio.run(_leave(api))
    eventually(lambda: running(api) == 0)
    after = metric(api, "vllm:request_success_total", 'finished_reason="abort"')
    assert after == before + 2


async def _leave(api: httpx.Client) -> None:
    """Ask for a whole answer and leave when it is being made."""
    async with httpx.AsyncClient(base_url=api.base_url, timeout=120, trust_env=False) as client:
        asked = asyncio.ensure_future(client.post("/v1/completions", json=body(4_000)))
        while running(api) < 1:
            await asyncio.sleep(0.01)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


def do(subject: Any, name: str, args: Json = None) -> Any:
    subject.generation += 1
    return subject.core.impulse(
        f"{name}-{subject.epoch}-{subject.generation}", name, args, epoch=subject.epoch,
        deadline_ms=60_000,
    )


def test_a_full_queue_refuses_and_abort_ends_what_fits(
    api: httpx.Client, subject: Any, eventually: Callable[..., None]
) -> None:
    subject.put()
    do(subject, "pause", {"mode": "keep", "for_ms": 600_000})
    with ThreadPoolExecutor(SEATS + QUEUE) as pool:
        asked = [
            pool.submit(api.post, "/v1/completions", json=body(4)) for _ in range(SEATS + QUEUE)
        ]
        eventually(lambda: metric(api, "vllm:num_requests_waiting") == SEATS + QUEUE)
        full = api.post("/v1/completions", json=body(4))
        assert full.status_code == 503 and full.json()["error"]["code"] == "overloaded"
        assert full.headers["retry-after"] == "1"
        assert do(subject, "abort_requests", {"limit": 3})["aborted"] == 3
        do(subject, "resume")
        reasons = [a.result().json()["choices"][0]["finish_reason"] for a in asked]
    assert sorted(reasons) == ["abort"] * 3 + ["length"] * (SEATS + QUEUE - 3)


def test_a_pause_stops_tokens_and_resume_goes_on(
    api: httpx.Client, subject: Any, eventually: Callable[..., None]
) -> None:
    subject.put()
    streams = Streams(api, 1)
    lines = streams.open[0].iter_lines()
    assert next(lines)
    do(subject, "pause", {"mode": "keep", "for_ms": 600_000})
    eventually(lambda: "generation is paused" in api.get("/resilience/health").text)
    # What was made before is counted in a moment; then nothing is.
    eventually(lambda: len({metric(api, "vllm:generation_tokens_total") for _ in range(5)}) == 1)
    assert running(api) == 1
    do(subject, "resume")
    for _ in range(4):
        assert next(lines) is not None
    streams.close()
    eventually(lambda: running(api) == 0)


def test_a_drain_refuses_new_requests_until_it_is_resumed(
    api: httpx.Client, subject: Any, eventually: Callable[..., None]
) -> None:
    subject.put()
    do(subject, "drain", {"for_ms": 600_000})
    assert api.get("/resilience/health").status_code == 503
    assert api.post("/v1/completions", json=body()).status_code in (429, 503)
    do(subject, "resume")
    eventually(lambda: api.get("/resilience/health").status_code == 200)
    assert api.post("/v1/completions", json=body()).status_code == 200


def test_a_lever_that_it_lacks_is_refused_with_the_reason(subject: Any) -> None:
    with pytest.raises(CoreRefusedError, match=r"`cache\.kv_blocks`.*cannot be made smaller"):
        subject.put(claim("cache.kv_blocks", 100_000))
