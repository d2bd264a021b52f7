"""From text to a syntax tree that is small, shallow and shaped like a UDF file."""

from __future__ import annotations

import ast
import io
import tokenize
import unicodedata  # the parser imports it for names outside ASCII: too late under the lock
import warnings
from typing import NoReturn

from resilience.sandbox.denials import Denial
from resilience.sandbox.limits import SOURCE_BYTES_MAX, SOURCE_DEPTH_MAX, SOURCE_NODES_MAX

INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


class Refused(Exception):
    """The source is refused as a whole, for one reason."""

    def __init__(self, denial: Denial) -> None:
        super().__init__(denial.message)
        self.denial = denial


def parse(text: str) -> ast.Module:
    """Return the tree of `text` within the limits of size, nodes and depth; raises Refused."""
    check_text(text)
    tree = _parse(text)
    if not text.isascii():
        _check_names(text)
    _check_size(tree)
    return tree


def check_text(text: str) -> None:
    """Refuse a text that is too large or holds characters that a reviewer cannot see."""
    if len(text.encode("utf-8", "surrogatepass")) > SOURCE_BYTES_MAX:
        _refuse(1, 1, "source-size", f"the file is larger than {SOURCE_BYTES_MAX:,} bytes",
                "split it into several UDF files")
    for line_number, line in enumerate(text.split("\n"), start=1):
        if line.isascii() and line.replace("\t", " ").rstrip("\r").isprintable():
            continue
        _check_line(line_number, line.removesuffix("\r"))


def _check_line(line_number: int, line: str) -> None:
    for column, char in enumerate(line, start=1):
        if char not in "\t\ufeff" and unicodedata.category(char) in INVISIBLE:
            _refuse(line_number, column, "source-character",
                    f"the character U+{ord(char):04X} cannot be seen in a review",
                    "remove it, or write it as an escape inside a string")
        if char == "\ufeff" and (line_number, column) != (1, 1):
            _refuse(line_number, column, "source-character",
                    "a byte order mark stands inside the file", "remove it")


def _parse(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text.removeprefix("\ufeff"))
    except SyntaxError as error:
        _refuse(error.lineno or 1, error.offset or 1, "syntax",
                f"not valid Python: {(error.msg or 'syntax error').lower()}")
    except (RecursionError, MemoryError):
        _refuse(1, 1, "source-depth", "the source is nested too deeply", "split the expression")
    except ValueError as error:
        _refuse(1, 1, "syntax", f"not valid Python: {str(error).lower()}")


def _check_names(text: str) -> None:
    """Refuse names that only become ASCII by Python's normalisation: a reviewer reads others."""
    for token in tokenize.generate_tokens(io.StringIO(text.removeprefix("\ufeff")).readline):
        if token.type == tokenize.NAME and not token.string.isascii():
            _refuse(token.start[0], token.start[1] + 1, "name",
                    f"the name `{token.string}` has letters outside ASCII", "use a-z")


def _check_size(tree: ast.Module) -> None:
    """Walk without recursion. An `elif` stands as deep as its `if`, as a reader sees it."""
    count = 0
    stack: list[tuple[ast.AST, int]] = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        count += 1
        if count > SOURCE_NODES_MAX:
            _refuse(1, 1, "source-size",
                    f"the file has more than {SOURCE_NODES_MAX:,} syntax nodes",
                    "split it into several UDF files")
        if depth > SOURCE_DEPTH_MAX:
            _refuse(getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1, "source-depth",
                    f"the source is nested deeper than {SOURCE_DEPTH_MAX}", "split the expression")
        stack.extend((child, _depth(node, child, depth)) for child in ast.iter_child_nodes(node))


def _depth(parent: ast.AST, child: ast.AST, depth: int) -> int:
    is_elif = isinstance(parent, ast.If) and parent.orelse == [child] and isinstance(child, ast.If)
    return depth if is_elif else depth + 1


def _refuse(
    line: int, column: int, code: str, message: str, hint: str | None = None
) -> NoReturn:
    raise Refused(Denial(line, column, code, message, hint))
