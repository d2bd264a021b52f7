"""The language policy: RestrictedPython's transformer, narrowed by `refusals.py`, and rewriting
what C code would otherwise iterate, repeat or format past a guard.
"""

from __future__ import annotations

import ast
from typing import cast

from resilience.sandbox.denials import NODE_HINTS
from resilience.sandbox.refusals import Refusals, call

GUARDED_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "_add_", ast.Mult: "_mul_", ast.Mod: "_mod_", ast.Pow: "_pow_", ast.LShift: "_shl_",
}


class UdfPolicy(Refusals):
    """One use: `visit` the tree, then read `denials`."""

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
        node = cast("ast.For", self.guard_iter(node))
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
        node = cast("ast.comprehension", self.guard_iter(node))
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
