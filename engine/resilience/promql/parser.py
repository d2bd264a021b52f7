"""`parse(text) -> Plan`: bounds, tokens, grammar and types in one call."""

from __future__ import annotations

from functools import lru_cache

from resilience.errors import PromQLError
from resilience.promql.grammar import Grammar
from resilience.promql.lexer import Source
from resilience.promql.plan import Plan


def parse(text: str, *, experimental: bool = False) -> Plan:
    """Return the plan of one PromQL expression.

    Raises PromQLError with line and column, both from 1: kind `limit` for what is too long or
    too deep, `unsupported` for a feature that is out of scope, `type` for what cannot stand where
    it does, `parse` for the rest. `experimental` allows the experimental functions we have.
    """
    plan = _parse(text, False)
    if experimental and isinstance(plan, PromQLError):     # what parses without parses alike with
        plan = _parse(text, True)
    if isinstance(plan, PromQLError):
        raise PromQLError(
            plan.message, kind=plan.kind, line=plan.line, column=plan.column,
            suggestion=plan.suggestion,
        )
    return plan


def parse_checked(text: str) -> Plan:
    """Return the plan of an expression that was checked: what needs a switch has it by now."""
    return parse(text, experimental=True)


@lru_cache(maxsize=8_192)
def _parse(text: str, experimental: bool) -> Plan | PromQLError:
    try:
        return Grammar(Source(text), experimental).plan()
    except PromQLError as error:
        return error
