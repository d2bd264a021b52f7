"""Stored answers: what may be stored, for whom, how much, how long."""

from __future__ import annotations

import json
from typing import Any

import pytest

from resilience.gate.stored import (
    ANSWER_MAX,
    Answers,
    Stored,
    key_of,
    may_repeat,
    stored_of,
)

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}],
                       "temperature": 0}


def answer(size: int = 10, t_ms: int = 0) -> Stored:
    return Stored(b"x" * size, "", "m", t_ms)


@pytest.mark.parametrize(
    "change",
    [{"temperature": 0.1}, {"temperature": None}, {"temperature": False}, {"n": 2},
     {"tools": [{}]}, {"logprobs": True}],
)
def test_what_may_come_out_otherwise_is_not_stored(change: dict[str, Any]) -> None:
    assert key_of("t", CHAT, {**ASK, **change}) is None
    assert key_of("t", "/v1/embeddings", ASK) is None


def test_equal_is_told_by_tenant_path_and_the_whole_body() -> None:
    keys = [
        key_of("t", CHAT, ASK), key_of("u", CHAT, ASK), key_of("t", "/v1/completions", ASK),
        key_of("t", CHAT, {**ASK, "max_tokens": 3}), key_of("t", CHAT, {**ASK, "cache_salt": "a"}),
        key_of("t", CHAT, {**ASK, "model": "n"}), key_of("t", CHAT, {**ASK, "seed": 1}),
    ]
    assert None not in keys and len(set(keys)) == len(keys)
    same = {"temperature": 0.0, **{k: v for k, v in reversed(ASK.items()) if k != "temperature"}}
    assert key_of("t", CHAT, {**ASK, "stream": True, "user": "x"}) == keys[0]
    assert key_of("t", CHAT, {**same, "temperature": 0}) == keys[0]


@pytest.mark.parametrize(
    ("body", "found"),
    [(b'{"temperature": 0}', True), (b'{"temperature":0.0,"n":1}', True),
     (b'{"temperature": 0.7}', False), (b"{}", False)],
)
def test_most_bodies_need_no_parsing(body: bytes, found: bool) -> None:
    assert may_repeat(body) is found


def test_memory_is_bounded_and_what_was_used_longest_ago_goes() -> None:
    kept = Answers(3 * (100 + 256), 1_000)
    for name in (b"a", b"b", b"c"):
        kept.put(name, answer(100))
    assert kept.get(b"a", 0) is not None
    kept.put(b"d", answer(100))
    assert kept.get(b"b", 0) is None and kept.get(b"a", 0) is not None
    assert len(kept) == 3 and kept.bytes <= kept.bytes_max
    kept.put(b"a", answer(100))
    assert len(kept) == 3 and kept.bytes == 3 * 356
    kept.put(b"huge", answer(ANSWER_MAX + 1))
    kept.put(b"large", answer(2_000))
    assert kept.get(b"huge", 0) is None and kept.get(b"large", 0) is None


def test_an_old_answer_is_not_given() -> None:
    kept = Answers(10_000, 1_000)
    kept.put(b"a", answer(t_ms=5))
    assert kept.get(b"a", 1_005) is not None
    assert kept.get(b"a", 1_006) is None and (len(kept), kept.bytes) == (0, 0)


def chat(**change: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"},
              "finish_reason": "stop", **change}
    return json.dumps({"model": "m", "choices": [choice]}).encode()


def test_only_a_whole_plain_answer_is_stored() -> None:
    found = stored_of(chat(), CHAT, 7)
    assert found is not None and (found.text, found.model, found.t_ms) == ("hi", "m", 7)
    for bad in (chat(finish_reason="abort"), chat(message={"content": None}), b"[", b"[]",
                b'{"choices": []}', b'{"model": "m", "choices": [{}]}'):
        assert stored_of(bad, CHAT, 0) is None
