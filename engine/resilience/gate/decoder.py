"""What the PyTorch decoder takes of a request's body. Its server refuses the rest, and a ladder
does not send it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What asks for nothing more than the one plain answer that it gives.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "logprobs": (False,), "top_logprobs": (0,),
    "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,),
    "logit_bias": ({},), "suffix": ("",), "min_p": (0,), "tools": ([],), "tool_choice": ("none",),
    "store": (False,), "response_format": ({"type": "text"},),
}
ANYTHING = ("user", "metadata")
TAKEN = (
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p",
    "top_k", "stop", "stream", "stream_options", "ignore_eos", "priority",
)


OF_A_MESSAGE = ("role", "content", "name")


def unsupported(fields: Mapping[str, Any]) -> str | None:
    """Return the first field that the decoder cannot honour, or None."""
    if "messages" not in fields and fields.get("max_completion_tokens") is not None:
        return "max_completion_tokens"      # a chat's field
    for name, value in fields.items():
        if value is None or name in TAKEN or name in ANYTHING or _is_neutral(name, value):
            continue
        return name
    return None


def _is_neutral(name: str, value: Any) -> bool:
    """`logprobs: 0` asks for the probabilities of the tokens, `false` for none."""
    return any(
        value == nothing and isinstance(value, bool) == isinstance(nothing, bool)
        for nothing in NEUTRAL.get(name, ())
    )


def one_prompt(prompt: Any) -> Any:
    """Return the one prompt of a completion, text or token ids, out of its list; else None."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return prompt
    return None


def text_of(message: Mapping[str, Any]) -> str | None:
    """Return the text of a chat message; None when it holds anything else."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        content = "".join(texts) if len(texts) == len(parts) else None
    return content if isinstance(content, str) else None


def beside_text(message: Mapping[str, Any]) -> str | None:
    """Return what a chat message holds beside its text, such as calls of tools, or None."""
    return next((name for name, value in message.items() if value and name not in OF_A_MESSAGE),
                None)


def asks_for_usage_of_no_stream(fields: Mapping[str, Any]) -> bool:
    """Say whether options of a stream come without one; vLLM refuses that, too."""
    return fields.get("stream_options") is not None and fields.get("stream") is not True


def decodes(fields: Mapping[str, Any]) -> bool:
    """Say whether the decoder answers a body of this form."""
    messages = fields.get("messages")
    if isinstance(messages, list):
        fits = all(
            isinstance(m, dict) and text_of(m) is not None and beside_text(m) is None
            for m in messages
        )
    else:
        fits = one_prompt(fields.get("prompt")) is not None
    return fits and unsupported(fields) is None and not asks_for_usage_of_no_stream(fields)
