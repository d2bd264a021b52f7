"""One UDF file: from text to code that can run, or to the denials that say why not."""

from __future__ import annotations

import ast
import difflib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from resilience.sandbox.budget import Run
from resilience.sandbox.denials import NAME_HINTS, Denial
from resilience.sandbox.environment import builtin_names, environment, offered
from resilience.sandbox.source import Refused, parse
from resilience.sandbox.transform import UdfPolicy


@dataclass(frozen=True, slots=True)
class Function:
    """A function at module level. `callable` says that it takes one argument."""

    name: str
    line: int
    column: int
    callable: bool


@dataclass(frozen=True, slots=True)
class Program:
    """A file that may run: its code and the functions that a policy may name."""

    file: str
    code: CodeType
    functions: tuple[Function, ...]


def load(file: str, text: str) -> tuple[Program | None, list[Denial]]:
    """Return (program, remarks), or (None, denials) when the file is refused."""
    try:
        tree = parse(text)
    except Refused as refused:
        return None, [refused.denial]
    names = _free_names(tree)  # before the transformer rewrites the tree
    policy = UdfPolicy(offered(), text.split("\n"))
    functions = functions_of(tree)
    policy.denials += _module_level(tree) + _duplicates(tree, functions)
    tree = policy.visit(tree)
    denials = sorted([*policy.denials, *_unknown(names)], key=lambda d: (d.line, d.column))
    if any(d.fatal for d in denials):
        return None, denials
    try:
        code = _compile(tree, file)
    except SyntaxError as error:  # what only the compiler sees: `break` outside a loop
        place = Denial(error.lineno or 1, error.offset or 1, "syntax", _said(error))
        return None, [place, *denials]
    except (ValueError, OverflowError, RecursionError, MemoryError):
        return None, [Denial(1, 1, "syntax", "the compiler cannot digest this file"), *denials]
    return Program(file, code, functions), denials


def _compile(tree: ast.Module, file: str) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(tree, file, "exec", dont_inherit=True, optimize=0)


def _said(error: SyntaxError) -> str:
    return f"not valid Python: {(error.msg or 'syntax error').lower()}"


def functions_of(tree: ast.Module) -> tuple[Function, ...]:
    """Return the functions at module level, in order."""
    return tuple(
        Function(n.name, n.lineno, n.col_offset + 1, _takes_one(n.args))
        for n in tree.body if isinstance(n, ast.FunctionDef)
    )


def run(
    program: Program, function: str, context: Any, budget: Run,
    names: dict[str, Any] | None = None,
) -> Any:
    """Run the module level of `program`, then `function(context)`; both count.

    `names` is an unused `environment(budget)`, where it was made ahead.
    """
    names = environment(budget) if names is None else names
    exec(program.code, names)
    return names[function](context)


def _takes_one(arguments: ast.arguments) -> bool:
    positional = [*arguments.posonlyargs, *arguments.args]
    needed = len(positional) - len(arguments.defaults)
    keyword_needed = any(d is None for d in arguments.kw_defaults)
    return needed <= 1 and bool(positional or arguments.vararg) and not keyword_needed


def _module_level(tree: ast.Module) -> list[Denial]:
    out: list[Denial] = []
    for node in tree.body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        plain = isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef)
        if not (docstring or plain or isinstance(node, ast.Assign | ast.AnnAssign)):
            out.append(Denial(
                node.lineno, node.col_offset + 1, "module-level",
                "only imports, constants and functions may stand outside a function",
                "move this into the function"))
    return out


def _duplicates(tree: ast.Module, functions: Iterable[Function]) -> list[Denial]:
    seen: set[str] = set()
    out: list[Denial] = []
    for function in functions:
        if function.name in seen:
            out.append(Denial(function.line, function.column, "duplicate",
                              f"`{function.name}` is defined twice in this file",
                              "rename or remove one"))
        seen.add(function.name)
    for node in tree.body:
        for target in _assigned(node):
            if target.id in seen:
                out.append(Denial(target.lineno, target.col_offset + 1, "duplicate",
                                  f"`{target.id}` is a function of this file",
                                  "use another name"))
    return out


def _assigned(node: ast.stmt) -> list[ast.Name]:
    if isinstance(node, ast.FunctionDef):
        return []
    return [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def _free_names(tree: ast.Module) -> dict[str, ast.Name]:
    """Return names that are read but bound nowhere in the file, with their first place."""
    read: dict[str, ast.Name] = {}
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                read.setdefault(node.id, node)
            else:
                bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return {name: node for name, node in read.items() if name not in bound}


def _unknown(names: dict[str, ast.Name]) -> list[Denial]:
    out: list[Denial] = []
    for name, node in names.items():
        if name in builtin_names() or name.startswith("_"):
            continue
        near = difflib.get_close_matches(name, builtin_names(), 1)
        hint = NAME_HINTS.get(name) or (f"did you mean `{near[0]}`" if near else None)
        out.append(Denial(node.lineno, node.col_offset + 1, "name",
                          f"`{name}` is not available in a UDF", hint, fatal=False))
    return out
