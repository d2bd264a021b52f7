"""Which rungs of the ladder a request may take, rule by rule."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from resilience.gate.rungs import (
    Asked,
    choose,
    has_tools,
    is_plain,
    meant,
    misfit,
    rungs_from_json,
)
from resilience.model import Rung, SecondEngineSettings

SMALL = Rung("small", "model", model="s", context=100)
STYLE = Rung("style", "lora", model="l", tools=True)
OWN = Rung("own", "engine", model="/m", context=50, engine=SecondEngineSettings())
DECODER = Rung("own", "engine", model="/m", engine=SecondEngineSettings("torch"))
OTHER = Rung("cpu", "url", url="http://127.0.0.1:1", context=50, timeout_ms=100)
CACHED = Rung("stored", "cached")
SORRY = Rung("sorry", "template", text="later")
LADDER = (SMALL, STYLE, OTHER, CACHED, SORRY)
SENT = (*LADDER, OWN)
ASKED = Asked("/v1/chat/completions", "big", 10, has_tools=False, is_plain=True, has_answer=True)


@pytest.mark.parametrize(
    ("rung", "change", "why"),
    [
        (SMALL, {}, None), (STYLE, {}, None), (OTHER, {}, None), (CACHED, {}, None),
        (SORRY, {}, None),
        (SMALL, {"model": "s"}, "same_model"), (OTHER, {"model": "s"}, None),
        (SMALL, {"tokens": 100}, None), (SMALL, {"tokens": 101}, "context"),
        (OTHER, {"tokens": 51}, "context"), (STYLE, {"tokens": 10**6}, None),
        (SMALL, {"has_tools": True}, "tools"), (STYLE, {"has_tools": True}, None),
        (OTHER, {"has_tools": True}, "tools"), (SORRY, {"has_tools": True}, "tools"),
        (CACHED, {"has_answer": False}, "no_answer"), (SORRY, {"is_plain": False}, "form"),
        (SORRY, {"path": "/v1/embeddings"}, "path"), (CACHED, {"path": "/v1/messages"}, "path"),
        (OWN, {}, None), (OWN, {"tokens": 51}, "context"), (OWN, {"has_tools": True}, "tools"),
        (DECODER, {}, None), (DECODER, {"decodes": False}, "form"), (OWN, {"decodes": False}, None),
        (OWN, {"model": "own"}, None), (OWN, {"path": "/v1/responses"}, "path"),
        (OTHER, {"path": "/v1/responses"}, "path"), (SMALL, {"path": "/v1/embeddings"}, None),
    ],
)
def test_a_request_that_does_not_fit_skips_the_rung(
    rung: Rung, change: dict[str, Any], why: str | None
) -> None:
    assert misfit(rung, replace(ASKED, **change)) == why


def test_what_is_left_keeps_its_order_and_a_shut_rung_gives_the_reason() -> None:
    seen: list[tuple[str, str]] = []

    def shut(rung: Rung) -> Any:
        return "circuit_break" if rung is SMALL else None

    asked = replace(ASKED, has_answer=False)
    left, reason = choose(LADDER, asked, shut, lambda name, why: seen.append((name, why)))
    assert (left, reason) == ((STYLE, OTHER, SORRY), "circuit_break")
    assert seen == [("small", "circuit_break"), ("stored", "no_answer")]


def test_a_rung_that_is_shut_below_the_first_changes_no_reason() -> None:
    left, reason = choose(LADDER, ASKED, lambda r: "resting" if r is OTHER else None, _ignore)
    assert (left, reason) == ((SMALL, STYLE, CACHED, SORRY), "policy")


def _ignore(name: str, why: str) -> None:
    return


def test_a_route_means_the_ladder_one_rung_or_a_served_model() -> None:
    assert meant("ladder", LADDER) == LADDER
    assert meant("cpu", LADDER) == (OTHER,)
    assert meant("some-model", LADDER) == ()
    assert meant("ladder", ()) == ()


@pytest.mark.parametrize(
    ("fields", "plain"),
    [
        ({}, True), ({"n": 1}, True), ({"n": 2}, False), ({"logprobs": True}, False),
        ({"logprobs": 0}, False), ({"logprobs": False}, True),
        ({"echo": True}, False), ({"response_format": {"type": "text"}}, True),
        ({"response_format": {"type": "json_object"}}, False), ({"guided_json": {}}, False),
        ({"prompt": ["a", "b"]}, False), ({"prompt": "a"}, True),
    ],
)
def test_plain_is_one_text(fields: dict[str, Any], plain: bool) -> None:
    assert is_plain(fields) is plain


def test_tools_are_seen_in_both_spellings() -> None:
    assert has_tools({"tools": [{}]}) and has_tools({"functions": [{}]})
    assert not has_tools({"tools": []})


def test_a_ladder_survives_the_way_to_the_server() -> None:
    sent = json.loads(json.dumps([asdict(rung) for rung in SENT]))
    assert rungs_from_json(sent) == SENT


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": ""}, "is no rung"), ({"name": "ladder"}, "is no rung"),
        ({"kind": "x"}, "is no rung"), ({"model": None}, "takes a text as its model"),
        ({"url": 3}, "takes a text as its url"), ({"tools": 1}, "takes true or false"),
        ({"context": -1}, "takes a number as its context"), ({"max_bytes": None}, "its max_bytes"),
        ({"more": 1}, "a rung has"),
    ],
)
def test_a_ladder_that_is_none_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rungs_from_json([{**asdict(SMALL), **change}])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (None, "do not fit"), ({"seats": 1}, "the engine of rung `own` has core"),
        ({**asdict(SecondEngineSettings()), "core": "jax"}, "takes no `jax` as its core"),
        ({**asdict(SecondEngineSettings()), "seats": True}, "takes a number as its seats"),
        ({**asdict(SecondEngineSettings()), "seats": 1.5}, "takes a whole number as its seats"),
    ],
)
def test_a_second_engine_that_is_none_is_refused(change: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rungs_from_json([{**asdict(OWN), "engine": change}])
    with pytest.raises(ValueError, match="do not fit"):
        rungs_from_json([{**asdict(SMALL), "engine": asdict(SecondEngineSettings())}])


def test_names_are_unique() -> None:
    with pytest.raises(ValueError, match="one name"):
        rungs_from_json([asdict(SMALL), asdict(SMALL)])
    with pytest.raises(ValueError, match="is a list"):
        rungs_from_json({})
