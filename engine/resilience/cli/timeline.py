"""How times, values and decisions are written for people."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from resilience.cli.output import paint
from resilience.promql.text import label_list, quote
from resilience.samples import Json, format_duration, format_float

SHADES = {
    "firing": "red", "held": "magenta", "pending": "yellow", "recovering": "cyan",
    "suspended": "blue", "inactive": "green",
}


def clock(t_ms: int | None) -> str:
    """Return UTC time of day with milliseconds; `-` for none."""
    if t_ms is None:
        return "-"
    return datetime.fromtimestamp(t_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]


def stamp(t_ms: int | None) -> str:
    """Return UTC date and time to the second; `-` for none."""
    if t_ms is None:
        return "-"
    return datetime.fromtimestamp(t_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def span(ms: int | None) -> str:
    """Return a length of time such as `1m30s`; below a second in ms; `-` for none."""
    if ms is None:
        return "-"
    return format_duration(ms if ms < 1_000 else ms // 1_000 * 1_000)


def state(name: str) -> str:
    return paint(name, SHADES.get(name, "white"))


def labels(pairs: dict[str, str]) -> str:
    """Return labels as PromQL reads them, on one line whatever their values hold; `{}` for none."""
    return "{" + ", ".join(f"{label_list([k])}={quote(v)}" for k, v in sorted(pairs.items())) + "}"


def breaker(event: Json) -> str:
    """Return whose breaker changed its state and how: `tier=core: closed -> half open`."""
    scope = ",".join(f"{axis}={name}" for axis, name in event["scope"].items()) or "all"
    return f"{scope}: {event['from']} -> {event['to']}".replace("half_open", "half open")


def value(number: Json) -> str:
    if isinstance(number, float):
        return f"{number:.6g}" if math.isfinite(number) else format_float(number)
    return "-" if number is None else str(number)


def claim(body: Json) -> str:
    """Return `knob{scope} = value`."""
    scope = labels(body["scope"]) if body["scope"] else ""
    return f"{body['knob']}{scope} = {shown(body['value'])}"


def shown(body: Json) -> str:
    if isinstance(body, bool):
        return "on" if body else "off"
    if isinstance(body, dict):
        return " ".join(f"{k}={shown(v)}" for k, v in sorted(body.items()))
    return value(body)


def decision(body: Json) -> str:
    """Return one line of a timeline."""
    arrow = f"{body['from']} -> {state(body['to'])}"
    parts = [
        clock(body["t_ms"]), body["policy"], arrow, body["reason"], f"value {value(body['value'])}",
    ]
    if body["labels"]:
        parts.append(labels(body["labels"]))
    if body["mode"] != "enforce":
        parts.append(f"[{body['mode']}]")
    parts += changes(body)
    return "  ".join(parts)


def changes(body: Json) -> list[str]:
    """Return what claims came and went, and which impulses were given."""
    before = {claim(c) for c in body["claims_before"]}
    after = {claim(c) for c in body["claims_after"]}
    return [
        *(f"+ {text}" for text in sorted(after - before)),
        *(f"- {text}" for text in sorted(before - after)),
        *(f"! {item['impulse']}" for item in body["impulses"]),
    ]
