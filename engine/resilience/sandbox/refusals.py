"""What the language policy refuses by itself: nodes, names, attributes, constants, imports.

Default deny: a node without a `visit_` method here, in `transform.py` or upstream is refused, and
so is a node that upstream allows and that is named in `NODE_HINTS`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from RestrictedPython.transformer import INSPECT_ATTRIBUTES, RestrictingNodeTransformer

from resilience.sandbox.denials import ATTRIBUTE_HINTS, NODE_HINTS, Denial
from resilience.sandbox.limits import LITERAL_BITS_MAX


class Offered:
    """What the environment offers, for the checks: module -> names, attribute names, builtins."""

    def __init__(
        self, modules: Mapping[str, frozenset[str]], attributes: frozenset[str]
    ) -> None:
        self.modules = modules
        self.attributes = attributes


def call(guard: str, *arguments: ast.expr) -> ast.Call:
    """Return the node of `guard(arguments…)`; the guard's name cannot be written in a UDF."""
    return ast.Call(ast.Name(guard, ast.Load()), list(arguments), [])


class Refusals(RestrictingNodeTransformer):  # type: ignore[misc]
    """The refusing half of the policy; `denials` fills while a tree is visited."""

    def __init__(self, offered: Offered, lines: Sequence[str]) -> None:
        super().__init__()
        self.denials: list[Denial] = []
        self._offered = offered
        self._lines = lines

    # --- refusing ---

    def deny(
        self, node: ast.AST, code: str, message: str, suggestion: str | None = None,
        fatal: bool = True,
    ) -> None:
        """Record a denial at `node`."""
        line = getattr(node, "lineno", 1)
        column = self._column(line, getattr(node, "col_offset", 0))
        self.denials.append(Denial(line, column, code, message, suggestion, fatal))

    def error(self, node: ast.AST, info: str) -> None:
        """Record what upstream refuses, in our words."""
        text = info.replace('"', "`").rstrip(".")
        self.deny(node, "language", text[:1].lower() + text[1:])

    def not_allowed(self, node: ast.AST) -> None:
        name = type(node).__name__
        message, hint = NODE_HINTS.get(name, (f"`{name}` is not available in a UDF", None))
        self.deny(node, "language", message, hint)

    def _column(self, line: int, offset: int) -> int:
        text = self._lines[line - 1] if 0 < line <= len(self._lines) else ""
        return len(text.encode()[:offset].decode("utf-8", "ignore")) + 1

    def visit(self, node: ast.AST) -> Any:
        """Visit, and give what replaces `node` the place of `node`."""
        new = super().visit(node)
        if isinstance(new, ast.expr | ast.stmt) and not hasattr(new, "lineno"):
            ast.copy_location(new, node)
        return new

    def _refuse_node(self, node: ast.AST) -> ast.AST:
        self.not_allowed(node)
        return node

    visit_ClassDef = visit_Yield = visit_YieldFrom = visit_With = visit_Global = _refuse_node
    visit_Nonlocal = visit_Match = visit_MatMult = visit_TemplateStr = _refuse_node
    visit_Interpolation = visit_AsyncFunctionDef = visit_Await = visit_TryStar = _refuse_node
    visit_AsyncFor = visit_AsyncWith = visit_TypeAlias = _refuse_node

    # --- names, attributes, constants ---

    def check_name(
        self, node: ast.AST, name: str | None, allow_magic_methods: bool = False
    ) -> None:
        """Refuse names that could be, or look like, one of the guards."""
        if name is None or name == "_":
            return
        if not name.isascii():
            self.deny(node, "name", f"the name `{name}` has letters outside ASCII", "use a-z")
        elif name.startswith("_"):
            self.deny(node, "name", f"the name `{name}` starts with `_`",
                      f"write `{name.strip('_') or 'name'}`")
        elif name in ("printed", "builtins") or name.endswith("__roles__"):
            self.deny(node, "name", f"the name `{name}` is reserved", "use another name")

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if isinstance(node.ctx, ast.Load) and node.id == "printed":
            return node  # an unknown name; the environment's stub says what to do
        self.check_name(node, node.id)
        if node.id == "print" and not isinstance(node.ctx, ast.Load):
            self.deny(node, "name", "the name `print` is reserved", "use another name")
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        if isinstance(value, bytes | complex):
            kind = "bytes" if isinstance(value, bytes) else "complex numbers"
            self.deny(node, "literal", f"{kind} are not available", "use text or plain numbers")
        elif isinstance(value, int) and value.bit_length() > LITERAL_BITS_MAX:
            self.deny(node, "literal", f"the number has more than {LITERAL_BITS_MAX:,} bits")
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self._check_attribute(node)
        if not isinstance(node.ctx, ast.Load):
            self.deny(node, "attribute", f"the attribute `{node.attr}` cannot be set or deleted",
                      f"use a mapping: `value[\"{node.attr}\"]`")
            return node
        value = self.visit(node.value)
        return call("_getattr_", value, ast.Constant(node.attr))

    def _check_attribute(self, node: ast.Attribute) -> None:
        name = node.attr
        if name.startswith("_") or not name.isascii():
            self.deny(node, "attribute", f"the attribute `{name}` cannot be read",
                      "a UDF uses plain data: mappings, lists, texts, numbers")
        elif name in INSPECT_ATTRIBUTES or name.endswith("__roles__"):
            self.deny(node, "attribute", f"the attribute `{name}` belongs to the interpreter")
        elif name not in self._offered.attributes:
            self.deny(node, "attribute", f"`{name}` is not an attribute that a UDF may use",
                      ATTRIBUTE_HINTS.get(name, "see `what a UDF may use` in the documentation"),
                      fatal=False)

    # --- imports become calls, so that no `__import__` exists ---

    def visit_Import(self, node: ast.Import) -> ast.AST | list[ast.AST]:
        self.check_import(node)
        out: list[ast.AST] = []
        for alias in node.names:
            if alias.name not in self._offered.modules:
                self._deny_module(node, alias.name)
            self.check_name(node, alias.asname or alias.name)
            out.append(self._bind(node, alias.asname or alias.name, ast.Constant(alias.name)))
        return out

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.AST]:
        self.check_import(node)
        module = "." * node.level + (node.module or "")
        if module == "__future__" and [a.name for a in node.names] == ["annotations"]:
            return ast.copy_location(ast.Pass(), node)  # hints are stripped anyway
        if module not in self._offered.modules:
            self._deny_module(node, module)
            return node
        out: list[ast.AST] = []
        for alias in node.names:
            self._check_imported(node, module, alias.name)
            self.check_name(node, alias.asname or alias.name)
            out.append(self._bind(node, alias.asname or alias.name,
                                  ast.Constant(module), ast.Constant(alias.name)))
        return out

    def check_import(self, node: ast.AST) -> None:
        if getattr(node, "is_lazy", 0):
            self.deny(node, "import", "a lazy import is not available", "write a plain import")

    def _check_imported(self, node: ast.AST, module: str, name: str) -> None:
        if name == "*":
            self.deny(node, "import", "`*` cannot be imported", "name what you need")
        elif name not in self._offered.modules[module]:
            hint = ATTRIBUTE_HINTS.get(name) or (
                "it offers " + ", ".join(sorted(self._offered.modules[module])))
            self.deny(node, "import", f"`{name}` cannot be imported from `{module}`", hint)

    def _deny_module(self, node: ast.AST, name: str) -> None:
        modules = ", ".join(f"`{m}`" for m in sorted(self._offered.modules))
        self.deny(node, "import", f"the module `{name}` is not available in a UDF",
                  f"available are {modules}")

    def _bind(self, node: ast.AST, name: str, *arguments: ast.expr) -> ast.AST:
        bound = ast.Assign([ast.Name(name, ast.Store())], call("_import_", *arguments))
        return ast.fix_missing_locations(ast.copy_location(bound, node))
