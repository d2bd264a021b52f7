"""What clients see is the same with the gate as on bare vLLM: the OpenAI client against both.

One server is vLLM alone, without any of our plug-ins; the other one has the gate with a queue and a
budget, so that every stage of the request path works on each request.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx
import httpx2
import openai
import pytest

from demo.bare import BareServer
from resilience.cores.client import HttpCore
from resilience.model import BudgetSettings, EngineConfig, QueueSettings
from tests.live.serving import ONCE, TOKENS_MAX
from tools.ports import free_port

pytestmark = pytest.mark.live
Servers = tuple[str, str]
BASE = "base"
OPENAI_ONCE = httpx2.Limits(max_keepalive_connections=0)
CONFIG = EngineConfig(budget=BudgetSettings(deadline_ms=120_000), queue=QueueSettings(16))
# What differs from one answer of bare vLLM to the next.
VOLATILE = {"id", "created", "system_fingerprint", "kv_transfer_params"}
LENGTHS = {"content-length"}  # a time in the body has more digits now and then
OURS = {"x-model-latency"}


@pytest.fixture(scope="module")
def bare(
    tiny_model: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    port = free_port()
    log = tmp_path_factory.mktemp("bare") / "log"
    arguments = tiny_model.arguments(port)
    with BareServer(arguments, port, log, tiny_model.environment) as alone:
        alone.wait_ready(lambda _: None)
        yield alone.url


@pytest.fixture
def servers(bare: str, server: Any, core: HttpCore) -> Iterator[Servers]:
    """Yield the URLs of vLLM alone and of the gated one."""
    core.configure_gate(CONFIG, deadline_ms=60_000)
    yield bare, server.url
    core.configure_gate(EngineConfig(), deadline_ms=60_000)


def plain(value: Any) -> Any:
    """Return an answer without what differs each time."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in VOLATILE}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0,
        http_client=httpx2.Client(trust_env=False, timeout=120, limits=OPENAI_ONCE))


# --- cases of the OpenAI client: each returns what its caller sees -------------------------------

MESSAGES: Any = [{"role": "user", "content": "hi"}]


def ask(client: openai.OpenAI, **more: Any) -> Any:
    given: dict[str, Any] = {
        "model": BASE, "prompt": "one two", "max_tokens": 8, "temperature": 0, **more}
    return client.completions.create(**given)


def chat(client: openai.OpenAI, **more: Any) -> Any:
    given: dict[str, Any] = {
        "model": BASE, "messages": MESSAGES, "max_tokens": 8, "temperature": 0, **more}
    return client.chat.completions.create(**given)


def without_text(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer to several prompts without what was said: whether they share each step, and
    so how their numbers are rounded, is chance on any server."""
    return {**answer, "choices": [{**one, "text": ""} for one in answer["choices"]]}


def seen_in(stream: Any) -> Any:
    """Return what a stream says; how many tokens come in one chunk is chance on any server."""
    return merged([chunk.model_dump() for chunk in stream])


def merged(events: list[dict[str, Any]]) -> Any:
    """Return the text, how it ended, which fields the events had, and the usage."""
    choices = [choice for event in events for choice in event["choices"]]
    return {
        "text": "".join(said_in(choice) for choice in choices),
        "ends": [c["finish_reason"] for c in choices if c.get("finish_reason")],
        "fields": sorted({str(sorted(event)) for event in events} | {
            str(sorted(choice)) for choice in choices}),
        "usage": [event["usage"] for event in events if event.get("usage")],
    }


def said_in(choice: dict[str, Any]) -> str:
    return str(choice.get("text") or (choice.get("delta") or {}).get("content") or "")


def failure(work: Callable[[], Any]) -> Any:
    try:
        work()
    except openai.APIStatusError as error:
        return error.status_code, type(error).__name__, error.body
    raise AssertionError("this has to fail")


def headers_of(client: openai.OpenAI) -> Any:
    raw = client.completions.with_raw_response.create(model=BASE, prompt="x", max_tokens=1)
    return raw.status_code, sorted(set(raw.headers) - OURS)


USAGE = {"include_usage": True}
CASES: dict[str, Callable[[openai.OpenAI], Any]] = {
    "completion": lambda c: ask(c).model_dump(),
    "completion streamed": lambda c: seen_in(ask(c, stream=True)),
    "usage in a stream": lambda c: seen_in(ask(c, stream=True, stream_options=USAGE)),
    "several prompts": lambda c: without_text(ask(c, prompt=["a", "b"]).model_dump()),
    "token ids and logprobs": lambda c: ask(c, prompt=[5, 6, 7], logprobs=2).model_dump(),
    "echo": lambda c: ask(c, echo=True).model_dump(),
    "an adapter": lambda c: ask(c, model="small").model_dump(),
    "chat": lambda c: chat(c).model_dump(),
    "chat streamed": lambda c: seen_in(chat(c, stream=True, stream_options=USAGE)),
    "two answers": lambda c: len(chat(c, n=2, temperature=1).choices),
    "two answers without chance": lambda c: failure(lambda: chat(c, n=2)),
    "models": lambda c: sorted(m.id for m in c.models.list()),
    "headers": headers_of,
    "unknown model": lambda c: failure(lambda: ask(c, model="nobody")),
    "unknown model streamed": lambda c: failure(lambda: chat(c, model="nobody", stream=True)),
    "embeddings": lambda c: failure(lambda: c.embeddings.create(model=BASE, input="x")),
    "too many tokens": lambda c: failure(lambda: ask(c, max_tokens=100_000)),
    "too long a prompt": lambda c: failure(lambda: ask(c, prompt="x" * 200_000)),
    "wrong type": lambda c: failure(lambda: ask(c, max_tokens="many")),
    "wrong type of a part": lambda c: failure(lambda: chat(c, messages="hello")),
    "options without a stream": lambda c: failure(lambda: ask(c, stream_options=USAGE)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_openai_client_sees_the_same(servers: Servers, name: str) -> None:
    seen: list[Any] = []
    for url in servers:
        with client_of(url) as client:
            seen.append(json.loads(json.dumps(plain(CASES[name](client)))))
    assert seen[0] == seen[1]


def test_many_at_once_by_the_async_client(servers: Servers) -> None:
    async def lengths(url: str) -> list[int]:
        http = httpx2.AsyncClient(trust_env=False, timeout=120, limits=OPENAI_ONCE)
        async with openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http
        ) as client:
            async def one(number: int) -> int:
                stream = await client.completions.create(
                    model=BASE, prompt=str(number), max_tokens=number, temperature=0, stream=True,
                    extra_body={"ignore_eos": True})
                return len([c async for c in stream if c.choices])

            return list(await asyncio.gather(*(one(n) for n in range(1, 13))))

    alone, gated = (asyncio.run(lengths(url)) for url in servers)
    assert len(alone) == len(gated) == 12
    assert all(0 < n <= most for found in (alone, gated) for most, n in enumerate(found, 1))


# --- what no OpenAI client sends -----------------------------------------------------------------

JSON = "application/json"
GOOD = json.dumps({"model": BASE, "prompt": "x", "max_tokens": 2, "temperature": 0}).encode()
DEEP = b'{"model": "base", "prompt": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
PADDED = GOOD[:-1] + b', "user": "' + b"x" * (5 * 1024 * 1024) + b'"}'
RAW: dict[str, tuple[str, str, bytes, str]] = {
    "good": ("POST", "/v1/completions", GOOD, JSON),
    "not json": ("POST", "/v1/completions", b"{", JSON),
    "a list": ("POST", "/v1/completions", b"[1]", JSON),
    "a number": ("POST", "/v1/chat/completions", b"1", JSON),
    "null": ("POST", "/v1/completions", b"null", JSON),
    "not a number": ("POST", "/v1/completions", GOOD[:-1] + b', "top_p": NaN}', JSON),
    "no utf-8": ("POST", "/v1/completions", b"\xff\xfe", JSON),
    "half a surrogate": ("POST", "/v1/completions", GOOD.replace(b'"x"', b'"\\ud800"'), JSON),
    "deep": ("POST", "/v1/completions", DEEP, JSON),
    "a key twice": ("POST", "/v1/completions", b'{"model": "nobody", ' + GOOD[1:], JSON),
    "empty": ("POST", "/v1/completions", b"", JSON),
    "wrong type": ("POST", "/v1/completions", GOOD, "text/plain"),
    "a form": ("POST", "/v1/completions", b"model=base", "application/x-www-form-urlencoded"),
    "no type": ("POST", "/v1/completions", GOOD, ""),
    "a large body": ("POST", "/v1/completions", PADDED, JSON),
    "embeddings": ("POST", "/v1/embeddings", b'{"model": "base", "input": "x"}', JSON),
    "wrong method": ("GET", "/v1/completions", b"", JSON),
    "wrong path": ("POST", "/v1/nothing", GOOD, JSON),
    "tokenize": ("POST", "/tokenize", GOOD, JSON),
}


@pytest.mark.parametrize("name", RAW)
def test_raw_requests_get_the_same_answer(servers: Servers, name: str) -> None:
    method, path, body, kind = RAW[name]
    seen: list[Any] = []
    for url in servers:
        answer = httpx.request(
            method, f"{url}{path}", content=body, headers={"content-type": kind} if kind else {},
            trust_env=False, timeout=120)
        text = answer.text
        found = plain(json.loads(text)) if text.startswith(("{", "[")) else text
        seen.append((answer.status_code, set(answer.headers) - OURS - LENGTHS, found))
    assert seen[0] == seen[1]


def test_a_body_in_chunks_is_a_body(servers: Servers) -> None:
    seen: list[Any] = []
    for url in servers:
        answer = httpx.post(
            f"{url}/v1/completions", content=iter([GOOD[:9], GOOD[9:]]),
            headers={"content-type": JSON}, trust_env=False, timeout=120)
        seen.append((answer.status_code, plain(answer.json())))
    assert seen[0] == seen[1]
    assert seen[0][0] == 200


def test_the_bytes_of_a_stream_are_vllms_own(servers: Servers) -> None:
    """Events, comments, the usage and the end, as they come over the wire."""
    seen: list[Any] = []
    for url in servers:
        body = {"model": BASE, "prompt": "x", "max_tokens": 5, "temperature": 0, "ignore_eos": True,
                "stream": True, "stream_options": USAGE}
        with httpx.stream(
            "POST", f"{url}/v1/completions", json=body, trust_env=False, timeout=120
        ) as answer:
            kind = answer.headers["content-type"]
            lines = list(answer.iter_lines())
        events = merged([json.loads(x[6:]) for x in lines if x.startswith("data: {")])
        others = [x for x in lines if x and not x.startswith("data: {")]
        seen.append((answer.status_code, kind, dict(answer.headers).keys() - OURS, events, others))
    assert seen[0] == seen[1]
    assert seen[0][4] == ["data: [DONE]"]


def test_a_connection_is_kept_over_good_and_bad_requests(servers: Servers) -> None:
    """One connection carries them all: the server never closes it in between."""
    for url in servers:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=120) as line:
            statuses = [roundtrip(line, body) for body in (GOOD, b"{", GOOD, b"[1]", GOOD)]
        assert statuses == [200, 400, 200, 400, 200]


def roundtrip(line: socket.socket, body: bytes) -> int:
    """Send one request on an open connection and read its whole answer."""
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: {JSON}\r\n"
    line.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    with closing(line.makefile("rb")) as answer:
        status = int(answer.readline().split()[1])
        length = 0
        while (field := answer.readline()) != b"\r\n":
            name, _, value = field.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        assert len(answer.read(length)) == length
    return status


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_inference(
    servers: Servers, stream: bool, eventually: Callable[..., None]
) -> None:
    # Sixteen answers take the server a minute: one alone can be made before we look at it.
    body = {"model": BASE, "prompt": "x", "max_tokens": TOKENS_MAX, "n": 16, "ignore_eos": True,
            "stream": stream}
    for url in servers:
        with httpx.Client(
            base_url=url, trust_env=False, timeout=120, limits=ONCE
        ) as watching:
            text = json.dumps(body).encode()
            before = seen_of(watching, GENERATED)
            host, port = url.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port)), timeout=120) as line:
                head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: {JSON}\r\n"
                line.sendall(f"{head}content-length: {len(text)}\r\n\r\n".encode() + text)
                eventually(lambda client=watching: seen_of(client, RUNNING) > 0)
            eventually(lambda client=watching: seen_of(client, RUNNING) == 0)
            assert seen_of(watching, GENERATED) - before < 16 * TOKENS_MAX


RUNNING = "vllm:num_requests_running{"
GENERATED = "vllm:generation_tokens_total{"


def seen_of(client: httpx.Client, start: str) -> float:
    """Return the sum of the server's series that begin so."""
    lines = client.get("/metrics").text.splitlines()
    return sum(float(x.rpartition(" ")[2]) for x in lines if x.startswith(start))
