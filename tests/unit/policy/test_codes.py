"""The table of codes is complete, and nothing in it is dead."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import resilience.policy
from resilience.policy.codes import CODES

FOLDER = Path(next(iter(resilience.policy.__path__)))
MAKERS = {"Finding", "Remark", "Refused", "add", "say", "_error", "_stop", "_finding", "finding"}
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
WORDS = {"error", "warning", "info"}


def used() -> set[str]:
    """Return every code that a call in resilience.policy names."""
    found: set[str] = set()
    for path in FOLDER.glob("*.py"):
        if path.name in ("codes.py", "state.py", "decide.py", "claims.py", "machine.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _name(node.func) in MAKERS:
                found |= {t for a in node.args for t in _texts(a) if CODE.fullmatch(t)}
    return found - WORDS


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _texts(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    return [t for n in (node.body, node.orelse) for t in _texts(n)] \
        if isinstance(node, ast.IfExp) else []


def test_every_code_is_documented() -> None:
    assert used() - set(CODES) <= {"remove it", "quote it"}


def test_every_documented_code_is_used() -> None:
    sources = "".join(p.read_text(encoding="utf-8") for p in FOLDER.glob("*.py")
                      if p.name != "codes.py")
    assert [code for code in CODES if f'"{code}"' not in sources] == []


def test_the_words() -> None:
    for name, code in CODES.items():
        assert CODE.fullmatch(name)
        assert code.meaning.endswith(".") and code.meaning[0].isupper()
