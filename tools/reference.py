"""Write docs/reference from the code: `python -m tools.reference`; a test says when it is old.

The pages hold nothing that is not said in the code: schemas, actions, knobs, the metric catalogue,
codes of findings, and the help of every command.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from resilience import registry
from resilience.model import Json, format_duration
from resilience.policy import catalogue

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
WIDTH = 80
MADE = "<!-- Made from the code by `python -m tools.reference`; edit the code. -->\n"
STACKS = {
    "vllm": "vLLM", "gate": "The gate, in vLLM's process", "sglang": "SGLang", "triton": "Triton",
    "tgi": "TGI", "dcgm": "dcgm-exporter", "general": "Scrapes, Python processes, probes",
}


def main() -> int:
    """Write every page; return an exit code."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"wrote {len(pages())} pages to {FOLDER}", file=sys.stderr)
    return 0


def pages() -> dict[str, str]:
    """Return file name -> text of every page."""
    made = {f"{name.lower()}.md": _kind(name) for name in registry.catalogue("kinds")}
    others: dict[str, Callable[[], str]] = {
        "actions.md": _actions, "knobs.md": _knobs, "metrics.md": _metrics, "codes.md": _codes,
        "cli.md": _cli,
    }
    return {**made, **{name: make() for name, make in others.items()}}


def _page(title: str, *parts: str) -> str:
    return "\n".join([f"# {title}\n", MADE, *parts]).rstrip() + "\n"


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(_cell(c) for c in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# --- documents ------------------------------------------------------------------------------------


def _kind(name: str) -> str:
    kind = registry.catalogue("kinds")[name]
    schema = kind.schema(registry.catalogue("actions"))
    whole = schema.get("$defs", {}).get(name.lower(), schema)
    rows = list(_fields(whole, ""))
    parts = [kind.doc + "\n", _table(("field", "value", "default", "meaning"), rows)]
    if name == "Policy":
        parts.append("Actions: [actions.md](actions.md). The compact form:\n")
        parts.append(_table(("field", "value", "default", "meaning"),
                            list(_fields(schema["$defs"]["compact"], ""))))
        parts.append(schema["$defs"]["compact"]["description"] + "\n")
    return _page(f"`kind: {name}`", *parts)


def _fields(schema: Json, path: str) -> Iterator[tuple[str, str, str, str]]:
    required = schema.get("required", ())
    for key, below in schema.get("properties", {}).items():
        at = f"{path}.{key}" if path else key
        mark = " **required**" if key in required else ""
        default = f"`{_plain(below['default'])}`" if "default" in below else ""
        yield f"`{at}`{mark}", _value(below), default, below.get("description", "")
        if below.get("items", {}).get("properties"):
            yield from _fields(below["items"], f"{at}[]")
        elif below.get("properties"):
            yield from _fields(below, at)


def _value(schema: Json) -> str:
    """Return what a value may be, in a few words."""
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if schema.get("x-type") == "duration":
        return "duration, " + _bounds(
            format_duration(schema["x-minimum-ms"]),
            format_duration(schema["x-maximum-ms"]) if "x-maximum-ms" in schema else None)
    if schema.get("x-type") == "share":
        return "share, `0.25` or `25%`"
    kind = schema.get("x-type") or schema.get("type", "any")
    if isinstance(kind, list):
        kind = " or ".join(kind)
    if "minimum" in schema or "maximum" in schema:
        return f"{kind}, " + _bounds(_number(schema.get("minimum")), _number(schema.get("maximum")))
    if kind == "array":
        item = "mappings" if schema["items"].get("properties") else _value(schema["items"])
        return f"list of {item.replace('any', 'actions')}, at most {schema['maxItems']:,}"
    return {"object": "mapping", "expr": "PromQL"}.get(kind, str(kind))


def _bounds(low: str | None, high: str | None) -> str:
    if low is None:
        return f"at most {high}"
    return f"{low} to {high}" if high is not None else f"at least {low}"


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:g}" if isinstance(value, float) else f"{value:,}"


def _plain(value: Json) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _actions() -> str:
    parts: list[str] = ["What a policy may ask for. Written in a list: `actions: [{type: …}]`.\n"]
    for name, kind in registry.catalogue("actions").items():
        notes = [f"Claims {_listed(kind.knobs)}." if kind.knobs else "",
                 "Requests under way feel it." if kind.disruptive else ""]
        parts += [
            f"## `{name}`\n", kind.doc, " ".join(filter(None, notes)) + "\n",
            f"```yaml\nactions: [{kind.example}]\n```\n",
            _table(("parameter", "value", "default", "meaning"), list(_fields(kind.schema(), ""))),
        ]
    return _page("Actions", *parts)


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _knobs() -> str:
    from resilience.knobs import KNOBS

    rows = [
        (f"`{k.name}`", f"{k.type} {k.unit}".strip(), ", ".join(k.axes), k.fold_name,
         k.enforced_by, k.doc)
        for k in KNOBS
    ]
    return _page(
        "Knobs", "What actions claim on the core. `fold` is how several claims become one value.\n",
        _table(("knob", "value", "scope", "fold", "enforced by", "meaning"), rows))


# --- metrics --------------------------------------------------------------------------------------


def _metrics() -> str:
    parts = ["## The engine's own\n", _table(("metric", "type", "meaning"), _own())]
    parts.append(
        "## The catalogue\n\nWhat `check` knows of the metrics of others. A counter is exported "
        "with `_total`, a histogram as `_bucket`, `_sum` and `_count`. Versions are the first and "
        "the last that export it without being asked; an empty one means that the metric is older "
        "than the table, or still there. Ray (`ray_vllm:`), KServe (`kserve_vllm:`) and NIM "
        "(no `vllm:`) are looked through.\n")
    for stack, title in STACKS.items():
        rows = [_metric(m) for m in catalogue.metrics() if m.stack == stack]
        parts.append(f"### {title}\n\n" + _table(
            ("metric", "type", "unit", "own labels", "versions", "note"), rows))
    return _page("Metrics", *parts)


def _own() -> list[tuple[str, ...]]:
    from resilience.app.metrics import EngineMetrics, Picture

    families = EngineMetrics(lambda: Picture("", "")).registry.collect()
    return sorted(
        (f"`{f.name}{'_total' if f.type == 'counter' else ''}`", f.type, f.documentation)
        for f in families
    )


def _metric(metric: catalogue.Metric) -> tuple[str, ...]:
    labels = "not known" if metric.labels is None else ", ".join(sorted(metric.labels))
    dots = tuple(".".join(map(str, v)) if v else "" for v in (metric.since, metric.last))
    versions = f"{dots[0]} to {dots[1]}" if any(dots) else ""
    notes = [f"now `{metric.now}`" if metric.now else "",
             f"with {metric.needs}" if metric.needs else ""]
    kind = metric.type.replace("bare_counter", "counter, without `_total`")
    return (f"`{metric.name}`", kind, metric.unit, labels, versions,
            "; ".join(filter(None, notes)))


# --- codes ----------------------------------------------------------------------------------------

SUPPRESSED = """\
A comment silences a warning or a remark that somebody has looked at, on its own line or on the
line above, with a reason and an end; after the end the warning is back. A finding inside a text of
several lines is also silenced at the key of that text. Errors cannot be silenced.

```yaml
# resilience: ignore CODE until 2030-12-31: REASON
# resilience: ignore CODE, CODE until 2030-12-31: REASON
```

`resilience check --codes` lists the codes, `--strict` makes warnings fail.
"""


def _codes() -> str:
    from resilience.policy.codes import CHAPTERS, CODES

    parts = [SUPPRESSED]
    for name, code in CODES.items():
        if name in CHAPTERS:
            parts.append(f"## {CHAPTERS[name]}\n")
        parts.append(f"### `{name}`\n\n{code.severity.capitalize()}. {code.meaning}\n")
        if code.example:
            parts.append(f"```\n{code.example}\n```\n")
        if code.severity != "error":
            parts.append(f"Silence: `# resilience: ignore {name} until 2030-12-31: REASON`\n")
    return _page("Codes of findings", *parts)


# --- commands -------------------------------------------------------------------------------------


def _cli() -> str:
    import click

    from resilience.cli import resilience

    parts: list[str] = []
    with click.Context(resilience, info_name="resilience", max_content_width=WIDTH,
                       terminal_width=WIDTH) as context:
        for name in resilience.list_commands(context):
            command = resilience.get_command(context, name)
            assert command is not None
            parts += _help(command, context, f"resilience {name}")
    return _page("Commands", *parts)


def _help(command: Any, parent: Any, title: str) -> list[str]:
    import click

    name = title.rpartition(" ")[2]
    context = click.Context(command, info_name=name, parent=parent, max_content_width=WIDTH,
                            terminal_width=WIDTH)
    parts = [f"## `{title}`\n\n```text\n{command.get_help(context)}\n```\n"]
    below: Mapping[str, Any] = getattr(command, "commands", {})
    for sub in below.values():
        parts += _help(sub, context, f"{title} {sub.name}")
    return parts


if __name__ == "__main__":
    sys.exit(main())
