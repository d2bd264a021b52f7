"""What may stand where: argument types, operands, matchers. Errors point at the culprit."""

from __future__ import annotations

from collections.abc import Sequence

from resilience.errors import PromQLError
from resilience.promql import advice, regex
from resilience.promql.lexer import Source, Token
from resilience.promql.plan import (
    COMPARISONS,
    SET_OPERATORS,
    Binary,
    Call,
    Matcher,
    Matching,
    Node,
    PlanType,
    Selector,
)
from resilience.promql.signatures import (
    AGGREGATIONS,
    INSTEAD,
    OUT_OF_SCOPE,
    PARAMETER_TYPES,
    SIGNATURES,
    SWITCH_ON,
    Signature,
)

_WORDS = {
    "vector": "an instant vector", "matrix": "a range vector", "scalar": "a scalar",
    "string": "a string",
}


class Checker:
    """Builds checked nodes; every refusal is a PromQLError with a place."""

    def __init__(self, source: Source, experimental: bool) -> None:
        self.source = source
        self.experimental = experimental

    def fail(self, message: str, pos: int, suggestion: str | None = None) -> PromQLError:
        return self.source.error(message, pos, kind="type", suggestion=suggestion)

    # --- functions ---

    def known(self, name: Token) -> None:
        """Refuse a function that Prometheus 3.5 does not have or that needs a flag."""
        signature = SIGNATURES.get(name.text)
        if signature is None:
            if name.text in OUT_OF_SCOPE:
                raise self.source.error(
                    OUT_OF_SCOPE[name.text], name.pos, kind="unsupported",
                    suggestion=INSTEAD.get(name.text),
                )
            raise self.source.error(
                f"unknown function `{name.text}`", name.pos, suggestion=did_you_mean(name.text)
            )
        if signature.experimental and not self.experimental:
            raise self.source.error(
                f"function `{name.text}` is experimental and not switched on", name.pos,
                kind="unsupported", suggestion=SWITCH_ON,
            )

    def call(self, name: Token, args: Sequence[Node]) -> Node:
        signature = SIGNATURES[name.text]
        self._count(name, signature, len(args))
        for i, arg in enumerate(args):
            wanted = signature.args[min(i, len(signature.args) - 1)]
            self._type(arg, wanted, f"argument {i + 1} of `{name.text}`")
        return Call(name.text, tuple(args), signature.returns, pos=name.pos)

    def _count(self, name: Token, signature: Signature, given: int) -> None:
        fewest, most = signature.fewest, signature.most
        if given >= fewest and (most is None or given <= most):
            return
        if most is None:
            wanted = f"at least {fewest}"
        elif fewest == most:
            wanted = str(fewest)
        else:
            wanted = f"{fewest} to {most}"
        raise self.fail(
            f"`{name.text}` takes {wanted} argument{'s' if wanted != '1' else ''}, not {given}",
            name.pos,
        )

    def _type(self, node: Node, wanted: PlanType, where: str) -> None:
        if node.type == wanted:
            return
        suggestion = None
        if wanted == "matrix" and isinstance(node, Selector):
            suggestion = f"add a range, as in `{node.metric_name or '{…}'}[5m]`"
        elif wanted == "matrix" and node.type == "vector":
            suggestion = "add a subquery range, as in `(…)[5m:]`"
        elif wanted == "vector" and node.type == "matrix":
            suggestion = "wrap it, as in `rate(…)` or `avg_over_time(…)`, or drop the range"
        elif wanted == "vector" and node.type == "scalar":
            suggestion = "wrap it, as in `vector(…)`"
        elif wanted == "scalar" and node.type == "vector":
            suggestion = "wrap it, as in `scalar(…)`"
        raise self.fail(
            f"{where} must be {_WORDS[wanted]}, not {_WORDS[node.type]}", node.pos, suggestion
        )

    def aggregation(
        self, name: Token, op: str, args: Sequence[Node]
    ) -> tuple[Node | None, Node]:
        wanted = PARAMETER_TYPES.get(op)
        expected = 1 if wanted is None else 2
        if len(args) != expected:
            raise self.fail(
                f"`{op}` takes {expected} argument{'s' if expected > 1 else ''}, not {len(args)}",
                name.pos,
            )
        self._type(args[-1], "vector", f"the aggregated argument of `{op}`")
        if wanted is None:
            return None, args[0]
        self._type(args[0], wanted, f"the parameter of `{op}`")
        return args[0], args[1]

    # --- operators ---

    def sign(self, sign: Token, node: Node) -> None:
        if node.type not in ("vector", "scalar"):
            raise self.fail(
                f"`{sign.text}` needs a scalar or an instant vector, not {_WORDS[node.type]}",
                sign.pos,
            )

    def subquery(self, opened: Token, node: Node) -> None:
        if node.type != "vector":
            raise self.fail(
                f"a subquery needs an instant vector before it, not {_WORDS[node.type]}",
                opened.pos,
            )

    def binary(
        self, token: Token, op: str, lhs: Node, rhs: Node, bool_result: bool,
        matching: Matching | None,
    ) -> Node:
        for side in (lhs, rhs):
            if side.type not in ("vector", "scalar"):
                raise self.fail(
                    f"`{op}` needs scalars or instant vectors, not {_WORDS[side.type]}", side.pos,
                    "wrap it, as in `rate(…)`" if side.type == "matrix" else None,
                )
        vectors = lhs.type == "vector" and rhs.type == "vector"
        if bool_result and op not in COMPARISONS:
            raise self.fail("`bool` can only be used with comparisons", token.pos)
        if op in COMPARISONS and lhs.type == rhs.type == "scalar" and not bool_result:
            raise self.fail(
                "a comparison of two scalars must use `bool`", token.pos, f"write `{op} bool`"
            )
        if op in SET_OPERATORS and not vectors:
            raise self.fail(f"`{op}` is only for instant vectors", token.pos)
        if matching is not None and matching.labels and not vectors:
            raise self.fail("matching labels are only for two instant vectors", token.pos)
        return Binary(
            op, lhs, rhs, bool_result, self._matching(token, op, matching) if vectors else None,
            pos=lhs.pos, operator_pos=token.pos,
        )

    def _matching(self, token: Token, op: str, matching: Matching | None) -> Matching:
        made = matching or Matching()
        if op in SET_OPERATORS:
            if made.card != "one-to-one":
                raise self.fail(f"`{op}` cannot have `group_left` or `group_right`", token.pos)
            return Matching(made.on, made.labels, "many-to-many")
        both = set(made.labels) & set(made.include)
        if made.on and both:
            raise self.fail(f"label `{min(both)}` is in `on` and in the group clause", token.pos)
        return made

    # --- selectors ---

    def selector(self, start: Token, matchers: Sequence[Matcher]) -> None:
        if all(regex.matches_empty(m) for m in matchers):
            raise self.fail(
                "a selector needs at least one matcher that excludes the empty value", start.pos,
                "name a metric",
            )

    def matcher(self, value: Token, matcher: Matcher) -> None:
        if matcher.op in ("=~", "!~"):
            why = regex.problem(matcher.value)
            if why:
                raise self.source.error(f"bad regex `{matcher.value[:80]}`: {why}", value.pos)


def did_you_mean(name: str) -> str | None:
    """Return a hint with the nearest function or aggregation, if one is near."""
    import difflib

    meant = advice.function(name)
    if meant is not None:
        return meant
    near = difflib.get_close_matches(name.lower(), [*SIGNATURES, *AGGREGATIONS], n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else None
