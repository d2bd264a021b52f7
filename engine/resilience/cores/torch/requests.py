"""Reading the bodies of requests. What this core cannot do is refused and never ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resilience.cores.torch.generation import Sampling
from resilience.gate.decoder import (
    asks_for_usage_of_no_stream,
    beside_text,
    one_prompt,
    text_of,
    unsupported,
)

STOPS_MAX = 16
STOP_CHARS_MAX = 200
PROMPT_DEFAULT = 16
TOP_P_LEAST = 1e-9      # nothing is likely enough for 0


class BadRequestError(Exception):
    """A body that is not served; `param` is the field, `status` and `code` as OpenAI names them."""

    def __init__(
        self, message: str, param: str | None = None, status: int = 400,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.param, self.status, self.code = param, status, code


@dataclass(frozen=True, slots=True)
class Ask:
    """One request as read: its prompt is text, tokens or chat messages."""

    model: str
    prompt: Any
    chat: bool
    max_tokens: int | None
    sampling: Sampling
    stops: tuple[str, ...]
    stream: bool
    usage: bool


def read(body: Any, *, chat: bool, models: Sequence[str]) -> Ask:
    """Return what a body asks for; raises BadRequestError."""
    if not isinstance(body, dict):
        raise BadRequestError("the body is not a JSON object")
    fields = {k: v for k, v in body.items() if v is not None}
    _refuse_unsupported(fields)
    model = fields.get("model", models[0])
    if model not in models:
        raise BadRequestError(
            f"The model `{model}` does not exist.", "model", 404, "model_not_found"
        )
    limit = _whole(fields, "max_tokens", 1, None)
    limit = _whole(fields, "max_completion_tokens", 1, limit)   # the newer name counts, as in vLLM
    options = fields.get("stream_options", {})
    if not isinstance(options, dict) or set(options) - {"include_usage"}:
        raise BadRequestError("`stream_options` takes `include_usage`", "stream_options")
    if asks_for_usage_of_no_stream(fields):
        raise BadRequestError("`stream_options` goes with `stream: true`", "stream_options")
    return Ask(
        str(model), _messages(fields) if chat else _prompt(fields), chat,
        limit if limit is not None or chat else PROMPT_DEFAULT, _sampling(fields),
        _stops(fields), _flag(fields, "stream"), _flag(options, "include_usage"),
    )


def _refuse_unsupported(fields: Mapping[str, Any]) -> None:
    name = unsupported(fields)
    if name is not None:
        raise BadRequestError(
            f"`{name}` is not supported by the PyTorch core; leave it out", name
        )


def _sampling(fields: Mapping[str, Any]) -> Sampling:
    top_k = _whole(fields, "top_k", -1, 0) or 0
    return Sampling(
        max_tokens=0,
        temperature=_number(fields, "temperature", 0.0, 2.0, 1.0),
        top_k=max(0, top_k),
        top_p=_number(fields, "top_p", TOP_P_LEAST, 1.0, 1.0),
        ignore_eos=_flag(fields, "ignore_eos"),
        priority=_whole(fields, "priority", -1_000_000_000, 0) or 0,
    )


def _prompt(fields: Mapping[str, Any]) -> Any:
    prompt = one_prompt(fields.get("prompt"))
    if prompt is None:
        raise BadRequestError("`prompt` takes one text or one list of token ids", "prompt")
    return prompt


def _messages(fields: Mapping[str, Any]) -> list[dict[str, str]]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("`messages` takes a list of at least one message", "messages")
    return [_message(message) for message in messages]


def _message(message: Any) -> dict[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadRequestError("a message has a `role` and a `content`", "messages")
    content = text_of(message)
    if content is None:
        raise BadRequestError("the `content` of a message is text for this core", "messages")
    more = beside_text(message)
    if more is not None:
        raise BadRequestError(
            f"`{more}` of a message is not supported by the PyTorch core; leave it out", "messages"
        )
    return {"role": message["role"], "content": content}


def _stops(fields: Mapping[str, Any]) -> tuple[str, ...]:
    found = fields.get("stop", [])
    stops = [found] if isinstance(found, str) else found
    fits = isinstance(stops, list) and len(stops) <= STOPS_MAX and all(
        isinstance(s, str) and 0 < len(s) <= STOP_CHARS_MAX for s in stops
    )
    if not fits:
        raise BadRequestError(
            f"`stop` takes one text or up to {STOPS_MAX}, each of 1 to {STOP_CHARS_MAX} characters",
            "stop",
        )
    return tuple(stops)


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise BadRequestError(f"`{name}` takes true or false", name)
    return value


def _whole(fields: Mapping[str, Any], name: str, least: int, default: int | None) -> int | None:
    if name not in fields:
        return default
    value = fields[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadRequestError(f"`{name}` takes a whole number of at least {least}", name)
    return value


def _number(
    fields: Mapping[str, Any], name: str, least: float, most: float, default: float
) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        begin = "above 0" if least == TOP_P_LEAST else f"from {least:g}"
        raise BadRequestError(f"`{name}` takes a number {begin} to {most:g}", name)
    return float(value)
