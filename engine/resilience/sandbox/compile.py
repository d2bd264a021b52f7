"""What `check` asks of a UDF file: its findings and its functions. Runs none of its code."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from resilience.model import Finding
from resilience.sandbox.program import functions_of, load
from resilience.sandbox.source import Refused, parse


def check_source(file: str, text: str) -> list[Finding]:
    """Return the findings of one UDF file, in order of place; empty means that it loads.

    Also an error: what loads but is certain to be denied when its line runs (`str.format`).
    """
    _, denials = load(file, text)
    return [
        Finding(file, d.line, d.column, "error", f"udf-{d.code}", d.message, d.suggestion)
        for d in denials
    ]


def wrong_arguments(file: str, text: str, called: Collection[str]) -> list[Finding]:
    """Return a finding for each function in `called` that cannot be called with the context."""
    try:
        found = functions_of(parse(text))
    except Refused:
        return []
    return [
        Finding(file, f.line, f.column, "error", "udf-arguments",
                f"`{f.name}` must take one argument", f"write `def {f.name}(ctx):`")
        for f in found if f.name in called and not f.callable
    ]


def functions(text: str) -> Mapping[str, int]:
    """Return the functions at module level, name -> line; none if the text cannot be parsed."""
    try:
        return {f.name: f.line for f in functions_of(parse(text))}
    except Refused:
        return {}
