"""An error inside an expression is shown at its character in the YAML file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.policy.check import CheckResult

HEAD = "apiVersion: resilience/v1\nkind: Policy\nmetadata: {name: p}\nspec:\n  trigger:\n"
TAIL = "    on_no_data: hold\n  actions: [{type: throttle, max_concurrency: 1}]\n"


@pytest.mark.parametrize(
    "scalar",
    [
        "up $ 1",
        "'up $ 1'",
        '"up $ 1"',
        "&x up $ 1",
        "&x 'up $ 1'",
        "up\n      $ 1",
        "'up{a=''b''} $ 1'",
        '"up{a=\\"b\\"} $ 1"',
        '"\\x75p\\n$ 1"',
        '"up \\\n      $ 1"',
        "|\n      up\n        $ 1",
        "|-  # why\n      up\n\n      $ 1",
        "|2-\n        up $ 1",
        ">-\n      up\n      > $ 1",
        "> \n      up\n\n\n      $ 1",
        "!!str up $ 1",
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_place(run: Callable[..., CheckResult], scalar: str, newline: str) -> None:
    text = (HEAD + f"    expr: {scalar}\n" + TAIL).replace("\n", newline)
    findings = [f for f in run(text).findings if f.code == "promql-syntax"]
    assert len(findings) == 1
    line = text.split(newline)[findings[0].line - 1]
    assert line[findings[0].column - 1] == "$"


def test_the_end_of_an_expression(run: Callable[..., CheckResult]) -> None:
    (finding,) = run(HEAD + "    expr: 'up +'\n" + TAIL).findings
    assert (finding.line, finding.column) == (6, 16)
