"""Answers that the gate gives itself, in the shape of an OpenAI-style server's."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from resilience.gate.answer import Header, Send
from resilience.gate.rungs import CHAT
from resilience.gate.stored import USAGE, Stored

JSON: Header = (b"content-type", b"application/json")
EVENTS: Header = (b"content-type", b"text/event-stream; charset=utf-8")
NO_USAGE = dict.fromkeys(USAGE, 0)


async def send_text(
    send: Send, path: str, fields: Mapping[str, Any], model: str, text: str,
    headers: tuple[Header, ...] = (), stored: Stored | None = None,
) -> None:
    """Answer with `text`, as events if the request asks for a stream, else as one object.

    `stored` is the answer that is told again, with its own end and usage; the text of none ends
    by itself and has cost nothing.
    """
    told = Stored(b"", text, model, 0) if stored is None else stored
    if fields.get("stream") is True:
        await _send_events(send, path, fields, told, headers)
        return
    body = told.body or json.dumps(_whole(path, model, text)).encode()
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [JSON, length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def _send_events(
    send: Send, path: str, fields: Mapping[str, Any], told: Stored, headers: tuple[Header, ...]
) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [EVENTS, *headers]})
    options = fields.get("stream_options")
    usage = isinstance(options, Mapping) and options.get("include_usage") is True
    for event in _events(path, told, usage):
        data = f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode()
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def _head(path: str, model: str, suffix: str) -> dict[str, Any]:
    chat = path == CHAT
    return {
        "id": ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex,
        "object": f"chat.completion{suffix}" if chat else "text_completion",
        "created": int(time.time()), "model": model,
    }


def _whole(path: str, model: str, text: str) -> dict[str, Any]:
    said = {"message": {"role": "assistant", "content": text}} if path == CHAT else {"text": text}
    choice = {"index": 0, **said, "logprobs": None, "finish_reason": "stop"}
    return {**_head(path, model, ""), "choices": [choice], "usage": NO_USAGE}


def _events(path: str, told: Stored, usage: bool) -> Iterator[dict[str, Any]]:
    head = _head(path, told.model, ".chunk")
    first: dict[str, Any] = {"text": told.text}
    last: dict[str, Any] = {"text": ""}
    if path == CHAT:
        first, last = {"delta": {"role": "assistant", "content": told.text}}, {"delta": {}}
    for said, end in ((first, None), (last, told.end)):
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": end}
        yield {**head, "choices": [choice]}
    if usage:
        yield {**head, "choices": [], "usage": told.usage or NO_USAGE}
