"""Which rungs of the ladder a request may take. Pure: every fact is an argument.

A rung is passed over when the request does not fit it (its path, tools, context, form), when it is
the model that the request asks for anyway, or when it is not available: its breaker is open, it
failed a moment ago, or it has no stored answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from resilience.model import LADDER, Json, Rung, SecondEngineSettings

Skip: TypeAlias = Literal[
    "path", "same_model", "tools", "context", "form", "circuit_break", "resting", "no_answer",
    "starting", "not_running",
]
RUNG_HEADER = b"x-resilience-rung"
CHAT = "/v1/chat/completions"
TEXT_PATHS = frozenset({CHAT, "/v1/completions"})
OWN = ("cached", "template")            # answered by the gate itself
SERVED = ("model", "lora")
RUNGS_MAX = 20
_FIELDS = (
    "name", "kind", "model", "url", "text", "context", "tools", "timeout_ms", "max_age_ms",
    "max_bytes", "throughput", "p99_ms", "quality", "engine",
)
_KINDS = {"model": "model", "lora": "model", "engine": "model", "url": "url", "cached": None,
          "template": "text"}
_MAY_BE_UNKNOWN = ("context", "timeout_ms", "throughput", "p99_ms", "quality")
_CHOICES = {"core": ("vllm", "torch"), "start": ("ahead", "on_demand"),
            "dtype": ("auto", "float32", "bfloat16", "float16")}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for. `tokens` of prompt and output together, as far as known;
    `has_answer`: an equal request's answer is stored; `decodes`: the PyTorch decoder takes it."""

    path: str
    model: str
    tokens: int
    has_tools: bool
    is_plain: bool
    has_answer: bool
    decodes: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """The rungs that a request may take, best first, and why it does: `policy`, or
    `circuit_break` when a better rung was shut off."""

    rungs: tuple[Rung, ...]
    reason: str
    policy: str
    why: str

    @property
    def answers_itself(self) -> bool:
        """Say whether the first rung needs no server at all."""
        return self.rungs[0].kind in OWN


def is_plain(fields: Mapping[str, Any]) -> bool:
    """Say whether one plain text would be an answer: one choice, no schema, no probabilities."""
    form = fields.get("response_format")
    prompt = fields.get("prompt")
    return (
        fields.get("n") in (None, 1) and not _wants_logprobs(fields) and not fields.get("echo")
        and (form is None or (isinstance(form, Mapping) and form.get("type") == "text"))
        and not any(k.startswith(("guided_", "structured_outputs")) for k in fields)
        and not isinstance(prompt, list)
    )


def _wants_logprobs(fields: Mapping[str, Any]) -> bool:
    """A completion asks for those of its own tokens with 0, a chat for none with false."""
    return fields.get("logprobs") is not None and fields["logprobs"] is not False


def has_tools(fields: Mapping[str, Any]) -> bool:
    """Say whether a request offers tools, in the new or the old way."""
    return bool(fields.get("tools") or fields.get("functions"))


def meant(to: str, ladder: Sequence[Rung]) -> tuple[Rung, ...]:
    """Return the rungs that a route to `to` means; none: it names a served model."""
    if to == LADDER:
        return tuple(ladder)
    return tuple(rung for rung in ladder if rung.name == to)


def is_decoder(rung: Rung) -> bool:
    """Say whether the PyTorch decoder answers on this rung, which takes only plain requests."""
    return rung.engine is not None and rung.engine.core == "torch"


def misfit(rung: Rung, asked: Asked) -> Skip | None:
    """Say why a request does not fit a rung, or None."""
    if rung.kind not in SERVED and asked.path not in TEXT_PATHS:
        return "path"
    if rung.kind in SERVED and rung.model == asked.model:
        return "same_model"
    if rung.kind == "cached":
        return None if asked.has_answer else "no_answer"
    if asked.has_tools and not rung.tools:
        return "tools"
    if rung.kind == "template":
        return None if asked.is_plain else "form"
    if is_decoder(rung) and not asked.decodes:
        return "form"
    if rung.context is not None and asked.tokens > rung.context:
        return "context"
    return None


def choose(
    rungs: Sequence[Rung], asked: Asked, unavailable: Callable[[Rung], Skip | None],
    skipped: Callable[[str, Skip], None],
) -> tuple[tuple[Rung, ...], str]:
    """Return the rungs that are left in their order, and the reason of the first one."""
    left: list[Rung] = []
    reason = "policy"
    for rung in rungs:
        why = misfit(rung, asked) or unavailable(rung)
        if why is None:
            left.append(rung)
        else:
            skipped(rung.name, why)
            if why == "circuit_break" and not left:
                reason = why
    return tuple(left), reason


def rungs_from_json(body: Json) -> tuple[Rung, ...]:
    """Check and build a ladder that came as JSON; raises ValueError with a one-line reason."""
    if not isinstance(body, list) or len(body) > RUNGS_MAX:
        raise ValueError(f"`ladder` of the gate's configuration is a list of up to {RUNGS_MAX}")
    rungs = tuple(_rung(item) for item in body)
    if len({rung.name for rung in rungs}) < len(rungs):
        raise ValueError("two rungs of the ladder have one name")
    return rungs


def _rung(item: Json) -> Rung:
    if not isinstance(item, Mapping) or set(item) != set(_FIELDS):
        raise ValueError("a rung has " + ", ".join(_FIELDS))
    name, kind = item["name"], item["kind"]
    if not isinstance(name, str) or not name or name == LADDER or kind not in _KINDS:
        raise ValueError(f"`{name}` of kind `{kind}` is no rung")
    need = _KINDS[kind]
    for key in ("model", "url", "text"):
        value = item[key]
        if value is not None and not isinstance(value, str) or key == need and not value:
            raise ValueError(f"rung `{name}` takes a text as its {key}, not `{value}`")
    for key in _FIELDS[5:-1]:
        _check_number(name, key, item[key])
    given: dict[str, Any] = {**item, "engine": _engine(name, kind, item["engine"])}
    return Rung(**given)


def _engine(name: str, kind: str, item: Json) -> SecondEngineSettings | None:
    """Build the settings of a second engine; only a rung of that kind has them."""
    if (kind == "engine") != (item is not None):
        raise ValueError(f"rung `{name}` of kind `{kind}` and its `engine` do not fit")
    if item is None:
        return None
    known = {f.name for f in fields(SecondEngineSettings)}
    if not isinstance(item, Mapping) or set(item) != known:
        raise ValueError(f"the engine of rung `{name}` has " + ", ".join(sorted(known)))
    for key, value in item.items():
        if key in _CHOICES:
            if value not in _CHOICES[key]:
                raise ValueError(f"the engine of rung `{name}` takes no `{value}` as its {key}")
        elif not (value is None and key == "memory_mebibytes"):
            _check_number(name, key, value)
            if not isinstance(value, int):
                raise ValueError(f"rung `{name}` takes a whole number as its {key}, not `{value}`")
    return SecondEngineSettings(**item)


def _check_number(name: str, key: str, value: Json) -> None:
    if key == "tools":
        if not isinstance(value, bool):
            raise ValueError(f"rung `{name}` takes true or false as its tools, not `{value}`")
    elif value is None and key in _MAY_BE_UNKNOWN:
        return
    elif isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"rung `{name}` takes a number as its {key}, not `{value}`")
