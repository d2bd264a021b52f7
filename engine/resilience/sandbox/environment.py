"""The globals of one run, assembled; and what they offer, for the checks."""

from __future__ import annotations

from functools import cache
from typing import Any

from resilience.sandbox.attributes import Attributes, every_name
from resilience.sandbox.budget import Run
from resilience.sandbox.builtin_functions import Builtins
from resilience.sandbox.denials import NAME_HINTS
from resilience.sandbox.facades import Facades
from resilience.sandbox.operators import Operators
from resilience.sandbox.refusals import Offered
from resilience.sandbox.values import Kind


def environment(run: Run) -> dict[str, Any]:
    """Return fresh globals for the code of one UDF file."""
    operators = Operators(run)
    modules = Facades(run, operators).modules()
    attributes = Attributes(run, operators)

    def import_guard(module: str, name: str | None = None) -> Any:
        facade = modules[module]
        return facade if name is None else facade.members[name]

    return {
        "__builtins__": Builtins(run, operators).names(),
        "_getattr_": attributes.get,
        "_import_": import_guard,
        **operators.names(),
    }


@cache
def offered() -> Offered:
    """Return what the environment offers: the transformer refuses imports of anything else."""
    run = Run("")
    operators = Operators(run)
    modules = Facades(run, operators).modules()
    kinds = [m for f in modules.values() for m in f.members.values() if type(m) is Kind]
    kinds += [b for b in Builtins(run, operators).names().values() if type(b) is Kind]
    members = [frozenset(facade.members) for facade in modules.values()]
    members += [frozenset(kind.members) for kind in kinds]
    return Offered(
        {name: frozenset(facade.members) for name, facade in modules.items()},
        every_name().union(*members),
    )


@cache
def builtin_names() -> frozenset[str]:
    """Return the builtins that work; the stubs, which only deny, are not among them."""
    run = Run("")
    return frozenset(Builtins(run, Operators(run)).names()) - frozenset(NAME_HINTS)
