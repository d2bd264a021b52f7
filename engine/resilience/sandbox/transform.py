"""The language policy: RestrictedPython's transformer, narrowed, and rewritten where C code would
otherwise iterate, repeat or format past a guard.

Default deny: a node without a `visit_` method here or upstream is refused, and so is a node that
upstream allows and this policy names in `NODE_HINTS`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any, cast

from RestrictedPython.transformer import INSPECT_ATTRIBUTES, RestrictingNodeTransformer

from resilience.sandbox.denials import ATTRIBUTE_HINTS, NODE_HINTS, Denial
from resilience.sandbox.limits import LITERAL_BITS_MAX

GUARDED_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "_add_", ast.Mult: "_mul_", ast.Mod: "_mod_", ast.Pow: "_pow_", ast.LShift: "_shl_",
}


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


class UdfPolicy(RestrictingNodeTransformer):  # type: ignore[misc]
    """One use: `visit` the tree, then read `denials`."""

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

    # --- functions: hints stripped, a step at the entry ---

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.check_name(node, node.name)
        if node.name in ("print", "printed"):
            self.deny(node, "name", f"the name `{node.name}` is reserved", "use another name")
        if node.decorator_list:
            self.deny(node.decorator_list[0], "language", "a decorator is not available",
                      "call the function where you need it")
        if getattr(node, "type_params", None):
            self.deny(node, "language", "type parameters are not available",
                      "leave them out: hints are ignored")
        node.returns = None
        node.type_comment = None
        node.decorator_list = []
        self._visit_arguments(node.args, node)
        node.body = self._visit_body(node.body)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self._visit_arguments(node.args, node)
        node.body = ast.BoolOp(ast.And(), [call("_step_"), self.visit(node.body)])
        return node

    def _visit_arguments(self, arguments: ast.arguments, node: ast.AST) -> None:
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        for argument in every:
            self.check_name(argument, argument.arg)
            if argument.arg in ("print", "printed"):
                self.deny(argument, "name", f"the name `{argument.arg}` is reserved",
                          "use another name")
            argument.annotation = None
            argument.type_comment = None
        arguments.defaults = [self.visit(d) for d in arguments.defaults]
        arguments.kw_defaults = [d and self.visit(d) for d in arguments.kw_defaults]

    def _visit_body(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Visit statements behind one step."""
        return [ast.Expr(call("_step_")), *self._visit_statements(body)]

    def _visit_statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in body:
            new = self.visit(statement)
            out.extend(new if isinstance(new, list) else [new])
        return out

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | list[ast.AST]:
        if node.value is None:
            if not isinstance(node.target, ast.Name):
                self.deny(node, "language", "a hint without a value needs a plain name")
            else:
                self.check_name(node, node.target.id)
            return ast.copy_location(ast.Pass(), node)
        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))

    # --- loops and comprehensions ---

    def visit_For(self, node: ast.For) -> ast.AST:
        node.type_comment = None
        node.target = _tuple_targets(node.target)
        node = self.guard_iter(node)
        node.body = [ast.Expr(call("_step_")), *node.body]
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        node.test = ast.BoolOp(ast.And(), [call("_step_"), self.visit(node.test)])
        node.body = self._visit_statements(node.body)
        node.orelse = self._visit_statements(node.orelse)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        if node.is_async:
            self.deny(node.target, "language", *NODE_HINTS["AsyncFor"])
        node.target = _tuple_targets(node.target)
        node = self.guard_iter(node)
        node.ifs = [call("_step_"), *node.ifs]
        return node

    # --- assignments ---

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.AST]:
        node.type_comment = None
        node.targets = [_tuple_targets(t) for t in node.targets]
        if len(node.targets) > 1 and any(isinstance(t, ast.Tuple) for t in node.targets):
            self.deny(node, "language", "a chained assignment cannot unpack",
                      "write one assignment a line")
        return cast("ast.AST | list[ast.AST]", super().visit_Assign(node))

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if isinstance(node.op, ast.MatMult):
            self.deny(node, "language", *NODE_HINTS["MatMult"])
            return node
        operator = ast.Constant(type(node.op).__name__)
        if isinstance(node.target, ast.Name):
            self.check_name(node, node.target.id)
            old = ast.Name(node.target.id, ast.Load())
            value = call("_inplacevar_", operator, old, self.visit(node.value))
            return ast.Assign([node.target], value)
        if isinstance(node.target, ast.Subscript):
            target = node.target
            return ast.Expr(call("_inplaceitem_", operator, self.visit(target.value),
                                 self.visit(target.slice), self.visit(node.value)))
        self.visit(node.target)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        return cast(ast.AST, super().visit_NamedExpr(node))

    # --- operators, displays, calls, texts ---

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if isinstance(node.op, ast.MatMult):
            self.deny(node, "language", *NODE_HINTS["MatMult"])
            return node
        guard = GUARDED_OPERATORS.get(type(node.op))
        if guard is not None:
            return call(guard, self.visit(node.left), self.visit(node.right))
        return cast(ast.AST, super().visit_BinOp(node))

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        membership = [op for op in node.ops if isinstance(op, ast.In | ast.NotIn)]
        if not membership:
            return cast(ast.AST, self.node_contents_visit(node))
        if len(node.ops) > 1:
            self.deny(node, "language", "`in` cannot stand in a chain of comparisons",
                      "join two comparisons by `and`")
        test = call("_in_", self.visit(node.left), self.visit(node.comparators[0]))
        return ast.UnaryOp(ast.Not(), test) if isinstance(node.ops[0], ast.NotIn) else test

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        value = self.visit(node.value)
        if isinstance(node.ctx, ast.Load):
            node.value = call("_spread_", value)
        else:
            node.value = value
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        node.keys = [None if k is None else self.visit(k) for k in node.keys]
        node.values = [
            call("_mapping_", self.visit(v)) if k is None else self.visit(v)
            for k, v in zip(node.keys, node.values, strict=True)
        ]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.func = self.visit(node.func)
        node.args = [self.visit(a) for a in node.args]
        for keyword in node.keywords:
            value = self.visit(keyword.value)
            keyword.value = call("_mapping_", value) if keyword.arg is None else value
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        spec = ast.Constant("") if node.format_spec is None else self.visit(node.format_spec)
        text = call("_text_", self.visit(node.value), ast.Constant(node.conversion), spec)
        return ast.FormattedValue(text, -1, None)

    # --- the rest ---

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        if node.type is None:
            self.deny(node, "language", "a bare `except:` is not available",
                      "write `except Exception:`")
        self.check_name(node, node.name)
        if node.name in ("print", "printed"):
            self.deny(node, "name", f"the name `{node.name}` is reserved", "use another name")
        return cast(ast.AST, self.node_contents_visit(node))

    def visit_Module(self, node: ast.Module) -> ast.AST:
        node.body = self._visit_statements(node.body)
        return ast.fix_missing_locations(node)


def _tuple_targets(target: ast.expr) -> ast.expr:
    """Return `target` with list targets written as tuples: upstream guards only those."""
    if isinstance(target, ast.List | ast.Tuple):
        return ast.copy_location(
            ast.Tuple([_tuple_targets(t) for t in target.elts], ast.Store()), target)
    if isinstance(target, ast.Starred):
        inner = _tuple_targets(target.value)
        return ast.copy_location(ast.Starred(inner, ast.Store()), target)
    return target
