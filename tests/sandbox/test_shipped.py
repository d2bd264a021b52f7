"""The shipped UDFs do what their test contexts say, through the real sandbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resilience.model import Action, UdfCall
from resilience.policy.check import proposed_actions
from resilience.registry import catalogue
from resilience.sandbox.compile import check_source, functions
from resilience.sandbox.runner import SandboxRunner

Shipped = dict[str, tuple[str, list[Any]]]


def test_every_context_gives_what_it_says(
    shipped: Shipped, open_runner: Callable[..., SandboxRunner], call: Callable[..., UdfCall]
) -> None:
    runner = open_runner({file: text for file, (text, _) in shipped.items()})
    for file, (_, cases) in shipped.items():
        assert cases, file
        for case in cases:
            asked = call(case["function"], case["context"])
            outcome = runner.run([asked], deadline_ms=asked.timeout_ms)[0]
            runner.release(case["function"])
            expect = case["expect"]
            assert outcome.outcome == expect["outcome"], (file, case["name"], outcome.detail)
            if outcome.outcome == "ok":
                assert outcome.result["actions"] == expect["actions"], (file, case["name"])
                assert outcome.result.get("state") == expect.get("state"), (file, case["name"])


def test_what_they_propose_are_actions_of_the_product(shipped: Shipped) -> None:
    action = Action("0", "udf_call")
    for _, cases in shipped.values():
        for case in cases:
            proposed_actions(
                {"actions": case["expect"].get("actions", [])}, action, catalogue("actions"))


def test_they_pass_check_and_are_named_like_their_files(shipped: Shipped) -> None:
    for file, (text, _) in shipped.items():
        assert check_source(file, text) == []
        assert file.removesuffix(".py") in functions(text)
