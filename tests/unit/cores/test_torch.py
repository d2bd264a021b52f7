"""The PyTorch core without torch: arguments, bodies, text, levers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from resilience.cores.torch.api import _body
from resilience.cores.torch.arguments import parse_arguments
from resilience.cores.torch.levers import Levers, Settings
from resilience.cores.torch.requests import BadRequestError, read
from resilience.cores.torch.text import Detokenizer
from resilience.desired import BadDocumentError
from resilience.errors import UsageError
from resilience.gate.decoder import NEUTRAL, decodes
from resilience.model import Claim, Desired, Json


def test_arguments_have_defaults_and_names() -> None:
    found = parse_arguments(["org/model", "--served-model-name", "a", "b", "--port", "9000"])
    assert (found.model, found.names, found.url) == ("org/model", ("a", "b"), "http://127.0.0.1:9000")
    assert parse_arguments(["org/model"]).names == ("org/model",)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ([], "model"), (["m", "--port", "0"], "`0` is not a whole number from 1 to 65535"),
        (["m", "--tensor-parallel-size", "2"], "--core torch` takes MODEL and"),
        (["m", "--dtype", "int8"], "invalid choice"), (["/no/such/model"], "no config.json"),
        (["m", "--max-model-len", "4096", "--kv-tokens", "1024"], "holds no sequence"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(argv: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_arguments(argv)


def test_a_model_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert parse_arguments([str(tmp_path)]).model == str(tmp_path)


class Sent:
    """A request with a body."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    async def body(self) -> bytes:
        return self._raw


@pytest.mark.parametrize(
    "raw",
    [
        b"{", b"\xff", b'{"prompt": "\\ud800"}', b'{"model": "\\udfff"}', b"[" * 100_000,
        b'{"prompt": "\xed\xa0\x80"}', '{"prompt": "\ud800"}'.encode("utf-16", "surrogatepass"),
    ],
)
def test_a_body_that_no_tokenizer_takes_is_the_clients_fault(raw: bytes) -> None:
    with pytest.raises(BadRequestError, match="the body is not JSON") as refused:
        asyncio.run(_body(Sent(raw)))
    assert refused.value.status == 400
    assert asyncio.run(_body(Sent(b'{"prompt": "\\ud83d\\ude00"}'))) == {"prompt": "\U0001f600"}


def test_a_body_says_what_to_generate() -> None:
    ask = read(
        {"prompt": "x", "temperature": 0, "top_k": -1, "stop": "END", "stream": True,
         "stream_options": {"include_usage": True}, "priority": 7, "seed": None},
        chat=False, models=("m",),
    )
    assert (ask.model, ask.max_tokens, ask.stops) == ("m", 16, ("END",))
    assert ask.stream and ask.usage and ask.sampling.priority == 7
    assert ask.sampling.temperature == 0.0 and ask.sampling.top_k == 0


def test_of_two_limits_on_a_chats_output_the_one_counts_that_counts_in_vllm() -> None:
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9}
    assert read(chat, chat=True, models=("m",)).max_tokens == 9
    assert read({**chat, "max_completion_tokens": 3}, chat=True, models=("m",)).max_tokens == 3


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_field_that_asks_for_nothing_is_taken_and_others_are_not(name: str) -> None:
    neutral = NEUTRAL[name][0]
    assert read({"prompt": "x", name: neutral}, chat=False, models=("m",)).prompt == "x"
    with pytest.raises(BadRequestError) as caught:
        read({"prompt": "x", name: "something"}, chat=False, models=("m",))
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ({"prompt": "x", "n": 1, "user": "u", "seed": None}, True),
        ({"prompt": ["x"]}, True), ({"prompt": [1, 2]}, True), ({"prompt": ["x", "y"]}, False),
        ({"prompt": ""}, False), ({"prompt": "x", "logprobs": 0}, False),
        ({"prompt": "x", "seed": 1}, False), ({"prompt": "x", "min_tokens": 2}, False),
        ({"prompt": "x", "frequency_penalty": 0.0}, True),
        ({"messages": [{"role": "user", "content": "x"}], "logprobs": False}, True),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, True),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, False),
        ({"messages": [{"role": "assistant", "tool_calls": []}]}, False),
        ({"messages": [{"role": "user", "content": "x"}], "logprobs": True}, False),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, False),
        ({"messages": [{"role": "user", "content": "x", "name": "a", "refusal": None}]}, True),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}]}, False),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}, False),
        ({"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 3}, True),
        ({"prompt": "x", "max_completion_tokens": 3}, False),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, False),
        ({"prompt": "x", "stream_options": {"include_usage": True}, "stream": True}, True),
    ],
)
def test_a_ladder_sends_the_decoder_what_its_server_takes_and_no_more(
    fields: dict[str, Any], taken: bool
) -> None:
    assert decodes(fields) is taken
    try:
        read(fields, chat="messages" in fields, models=("m",))
    except BadRequestError as refused:
        assert not taken and refused.status == 400
    else:
        assert taken


class Spelling:
    """A tokenizer whose tokens are bytes: a character can be spread over several."""

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return bytes(tokens).decode("utf-8", "replace")


def grown(text: str, stops: tuple[str, ...] = ()) -> tuple[list[str], Detokenizer]:
    tokens, found = list(text.encode()), Detokenizer(Spelling(), stops)
    pieces = [found.add(tokens[:n], last=n == len(tokens)) for n in range(1, len(tokens) + 1)]
    return pieces, found


def test_no_character_is_sent_in_halves() -> None:
    pieces, _ = grown("aé日🙂z")
    assert "".join(pieces) == "aé日🙂z" and all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("stop", ["END", "E", "xEND"])
def test_a_stop_word_is_never_sent_not_even_its_start(stop: str) -> None:
    pieces, found = grown("one xEND two", (stop,))
    assert found.stopped and "".join(pieces) == "one xEND two".partition(stop)[0]


def test_what_looks_like_a_stop_word_is_sent_in_the_end() -> None:
    assert "".join(grown("say EN", ("END",))[0]) == "say EN"


def put(levers: Levers, now_ms: int, generation: int, **values: Json) -> None:
    claims = tuple(
        Claim("p", "0" * 16, "0", f"cache.{name}", (), value, 1_000, False, 50, "r", "why")
        for name, value in values.items()
    )
    levers.put(Desired(1, generation, claims).to_json(), now_ms)


def test_claims_set_what_the_scheduler_reads_until_their_lease_ends() -> None:
    now = [0]
    levers = Levers(8, 512, prefix=True, clock_ms=lambda: now[0])
    put(levers, 0, 1, max_running=2, step_tokens=10_000, prefix_enabled=False, batching="static")
    assert levers.settings() == Settings(2, 8, 512, prefix=False, static=True)
    now[0] = 999
    assert levers.settings().max_running == 2
    now[0] = 1_000
    assert levers.settings() == Settings(8, 8, 512) and levers.effective() == {}


def test_a_claim_that_stops_all_progress_changes_nothing() -> None:
    levers = Levers(8, 512, prefix=True, clock_ms=lambda: 0)
    put(levers, 0, 1, max_running=3)
    with pytest.raises(BadDocumentError, match="`cache.max_running`"):
        put(levers, 0, 2, max_running=0)
    assert levers.settings().max_running == 3


def test_what_the_core_holds_on_itself_is_told_and_ends() -> None:
    now = [0]
    levers = Levers(8, 512, prefix=True, clock_ms=lambda: now[0])
    levers.hold_own("core:memory", {"cache.admit_running": 4, "cache.mode": "x"}, 500, "short")
    assert levers.settings().admit_running == 4
    assert [c["knob"] for c in levers.own()] == ["cache.admit_running"]
    now[0] = 500
    assert levers.settings().admit_running == 8 and levers.own() == []
