"""Generated sources and mutated frames against the sandbox; each case follows from its seed.

    python tests/sandbox/fuzz.py [--seconds 60] [--seed N]

Three properties. Hostile: a generated source ends in the closed set of outcomes, never reaches a
forbidden system call (the language layer holds alone) and shows no address. Same: a generated
expression of plain code has Python's own value, or is denied. Frames: no mutated answer raises, and
what passes is valid. A failure prints the seed and the case that repeat it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "engine"))

from resilience.model import UDF_OUTCOMES, EngineConfig, UdfCall  # noqa: E402
from resilience.sandbox.answer import Rules, check_result, check_values, read_answer  # noqa: E402
from resilience.sandbox.attributes import every_name  # noqa: E402
from resilience.sandbox.budget import Denied, Run  # noqa: E402
from resilience.sandbox.denials import NAME_HINTS  # noqa: E402
from resilience.sandbox.environment import builtin_names  # noqa: E402
from resilience.sandbox.limits import words  # noqa: E402
from resilience.sandbox.program import load, run  # noqa: E402
from resilience.sandbox.runner import SandboxRunner, Settings  # noqa: E402

ADDRESS = re.compile(r"0x[0-9a-f]{8,}")
CONTEXT = {"a": [1, 2.5, "x"], "b": {"c": None, "d": [True]}, "e": "text", "n": 7}
NAMES = sorted(builtin_names() | set(words("ctx a b x y z f g math json datetime statistics")))
FORBIDDEN = (*sorted(NAME_HINTS), *words(
    "_getattr_ __builtins__ _step_ __import__ self __name__ _write_ printed"))
ATTRIBUTES = (*sorted(every_name()), *words(
    "__class__ __globals__ gi_frame f_back mro format __dict__ sys modules __init__ func_code loads"
    " dumps fromisoformat now utc fromkeys quantiles mean factorial comb prod elements args"))
OPERATORS = words("+ - * / // % ** << >> & | ^ @ and or < <= == != in is") + ("not in", "is not")
LITERALS = (
    "0", "1", "-3", "2.5", "1e308", "''", "'a'", "'%s %d'", "'{0.__class__}'", "None", "True", "[]",
    "[1, 'a']", "(1, 2)", "{}", "{'a': 1}", "{1, 2}", "10**9", "ctx['a']", "ctx['b']", "ctx['n']",
    "ctx['e']",
)


REFUSED = ("class C: pass", "with x: pass", "x.y = 1", "break", "yield x", "return b''", "x = 1j",
           "global x", "return x @ x", "async def g(): pass", "import os", "try: x\n    except: y",
           "(_step_ := 1)", "def _add_(x): pass", "lambda _in_: 1", "from math import sys")


class Writer:
    """Writes random Python of the kinds that matter here."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, *options: Any) -> Any:
        return self.random.choice(options)

    def name(self) -> str:
        return str(self.one(*(FORBIDDEN if self.random.random() < 0.06 else NAMES)))

    def expression(self, depth: int) -> str:
        if depth <= 0:
            return self.name() if self.random.random() < 0.5 else str(self.one(*LITERALS))
        kind = self.one(
            self._binary, self._call, self._attribute, self._item, self._display, self._text,
            self._comprehension, self._lambda, self._choice, self._method)
        return str(kind(depth - 1))

    def _binary(self, d: int) -> str:
        return f"({self.expression(d)} {self.one(*OPERATORS)} {self.expression(d)})"

    def _call(self, d: int) -> str:
        given = [self.one("", "", "", "*", "**") + self.expression(d)
                 for _ in range(self.random.randrange(3))]
        given.sort(key=lambda g: g.startswith("**"))
        named = [f"{self.one('key', 'default', 'reverse', 'sep', 'n')}={self.expression(d)}"] * (
            self.random.random() < 0.2)
        return f"{self.name()}({', '.join([*given, *named])})"

    def _method(self, d: int) -> str:
        return f"({self.expression(d)}).{self.one(*ATTRIBUTES)}({self.expression(d)})"

    def _attribute(self, d: int) -> str:
        return f"({self.expression(d)}).{self.one(*ATTRIBUTES)}"

    def _item(self, d: int) -> str:
        index = self.one(self.expression(d), f"{self.expression(0)}:{self.expression(0)}", "::-1")
        return f"{self.expression(d)}[{index}]"

    def _display(self, d: int) -> str:
        a, b = self.expression(d), self.expression(d)
        return str(self.one(f"[{a}, *{b}]", f"({a}, {b})", f"{{{a}: {b}}}", f"{{**{a}, 'k': {b}}}",
                            f"{{{a}, {b}}}"))

    def _text(self, d: int) -> str:
        inner = self.expression(d).replace('"', "'")
        spec = self.one("", "!r", ":>9", ":.3f", ":{ctx}", ":9999999d", "!s:%Y")
        return f'f"""{{({inner}){spec}}}"""'

    def _comprehension(self, d: int) -> str:
        target = self.one("x", "x, y", "[x, y]", "x, *y", "(x, (y, z))")
        body = f"{self.expression(d)} for {target} in {self.expression(d)}"
        return str(self.one(f"[{body}]", f"({body})", f"{{{body} if {self.expression(d)}}}"))

    def _lambda(self, d: int) -> str:
        return f"(lambda {self.one('x', '*x', '**x', 'x, /', 'x=1')}: {self.expression(d)})"

    def _choice(self, d: int) -> str:
        return f"({self.expression(d)} if {self.expression(d)} else {self.expression(d)})"

    def statement(self, depth: int) -> list[str]:
        value = self.expression(2)
        target = self.one("x", "y", "x, y", "[x, *y]", "x[0]", "ctx['k']", "x[1:2]")
        simple = [f"{target} = {value}", f"x {self.one('+', '*', '**', '|', '%')}= {value}", value,
                  f"ctx['n'] += {value}", f"return {value}", f"raise ValueError({value})",
                  f"assert {value}", "del x", f"z: int = {value}", "import math, json",
                  "from datetime import datetime", "pass", f"print({value})"]
        if depth <= 0 or self.random.random() < 0.6:
            return [str(self.one(*simple))]
        head = self.one(f"if {value}:", f"for {target} in {value}:", f"while {value}:", "try:",
                        "def g(x, *y, z=1):", "try:", "try:")
        body = [f"    {line}" for _ in range(2) for line in self.statement(depth - 1)]
        tail = ["except Exception as e:", "    x = str(e)", "finally:", "    y = 1"]
        return [str(head), *body, *(tail if head == "try:" else [])]

    def function(self, name: str) -> str:
        if self.random.random() < 0.1:  # what must be refused
            return f"def {name}(ctx):\n    {self.one(*REFUSED)}\n"
        lines = [line for _ in range(self.random.randrange(1, 5)) for line in self.statement(2)]
        ends = "    return {'actions': [], 'state': [x, y, z]}"
        head = f"def {name}(ctx, x=1, y=2, z=3):"
        return "\n".join([head, *(f"    {line}" for line in lines), ends, ""])


# --- hostile ---


def hostile(seed: int, count: int) -> list[str]:
    """Run `count` generated sources in one sandbox and return what is wrong."""
    sources = {f"s{i}.py": Writer(seed * 100_000 + i).function(f"f{i}") for i in range(count)}
    wrong = [f"seed {seed}: load raised {error}" for error in _load_errors(sources)]
    runner = SandboxRunner(
        sources, EngineConfig(udf_quarantine_after=0), Settings(spares=2, parallel=2))
    try:
        calls = [UdfCall("p", "i", "0", f"f{i}", 500, CONTEXT) for i in range(count)]
        outcomes = runner.run(calls, deadline_ms=count * 600)
    finally:
        runner.close()
    for (name, text), outcome in zip(sources.items(), outcomes, strict=True):
        shown = json.dumps([outcome.result, outcome.detail, outcome.log])
        bad = outcome.outcome not in UDF_OUTCOMES or outcome.outcome == "SECCOMP_KILL"
        if bad or ADDRESS.search(shown) or "PermissionError" in shown or "<locals>" in shown:
            wrong.append(f"seed {seed} {name}: {outcome.outcome} {shown[:300]}\n{text}")
    return wrong


def _load_errors(sources: dict[str, str]) -> Iterator[str]:
    for name, text in sources.items():
        try:
            load(name, text)
        except Exception as error:
            yield f"{type(error).__name__}: {error}\n{text}"


# --- the same as Python ---

PLAIN = words("a b")
PLAIN_CALLS = ("len({0})", "sum([{0}, {1}])", "max({0}, {1})", "abs({0})", "str({0})", "list({0})",
               "sorted([{0}, {1}])", "round({0}, 1)", "dict(k={0})", "isinstance({0}, int)",
               "[x for x in [{0}, {1}] if x]", "{{'k': {0}, **{{'j': {1}}}}}", "[*[{0}], {1}]",
               "f'{{{0}}}'", "({0} if {1} else {0})", "list(zip([{0}], [{1}]))", "int({0})",
               "(lambda x, y=2: x)({0})", "[{0}, {1}][0]", "'%s' % ({0},)", "any(x for x in [{0}])",
               "[y for x, y in [({0}, {1})]]", "list(map(lambda x: x, [{0}]))", "not {0}")


def plain(chooser: random.Random, depth: int) -> str:
    """Return an expression of ordinary code over `a` and `b`."""
    if depth <= 0:
        return chooser.choice(words("a b 1 2.5 -7 'xy' [1,2] (3,) True None"))
    left, right = plain(chooser, depth - 1), plain(chooser, depth - 1)
    if chooser.random() < 0.5:
        operator = chooser.choice(words("+ - * / // % < == and or in") + ("not in", "!="))
        return f"({left} {operator} {right})"
    return chooser.choice(PLAIN_CALLS).format(left, right)


def same(seed: int, count: int) -> list[str]:
    """Compare `count` plain expressions with Python's own evaluation."""
    chooser = random.Random(seed)
    wrong: list[str] = []
    for _ in range(count):
        text = plain(chooser, 3)
        expected, got = _python(text), _sandboxed(text)
        if got != "denied" and got != expected:
            wrong.append(f"seed {seed}: {text}\n  python {expected}\n  sandbox {got}")
    return wrong


def _python(text: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return repr(eval(text, {"a": 3, "b": [4, "q"]}))
        except Exception as error:
            return type(error).__name__


def _sandboxed(text: str) -> str:
    program, _ = load("p.py", f"def f(ctx):\n    a = 3\n    b = [4, 'q']\n    return {text}\n")
    if program is None:
        return "denied"
    budget = Run("p.py")
    try:
        return repr(run(program, "f", None, budget))
    except Denied:
        return "denied"
    except Exception as error:
        return type(error).__name__


# --- frames ---

ANSWERS = [
    {"outcome": "ok", "result": {"actions": [{"type": "t", "n": 1.5, "d": {"k": [None, True]}}],
                                 "state": {"é": "ü"}, "note": "n"}, "detail": None, "log": "x\n"},
    {"outcome": "RUNTIME_DENIED", "result": None, "detail": "why", "log": ""},
]
PIECES = [b"[", b"]", b"{", b"}", b'"', b"\\ud800", b"NaN", b"Infinity", b"1e999", b"9" * 40,
          b"\xff", b"\x00", b"\\u0000", b",", b":", b'"actions"', b"null", b"-0", b"[" * 99,
          b'{"a":1,"a":2}']


def mutated(chooser: random.Random) -> bytes:
    """Return an answer with a few random changes."""
    body = bytearray(json.dumps(chooser.choice(ANSWERS), ensure_ascii=False).encode())
    for _ in range(chooser.randrange(4)):
        at = chooser.randrange(len(body))
        change = chooser.randrange(4)
        if change == 0:
            body[at] = chooser.randrange(256)
        elif change == 1:
            del body[at:at + chooser.randrange(1, 9)]
        elif change == 2:
            body[at:at] = chooser.choice(PIECES)
        else:
            body[at:at] = body[chooser.randrange(len(body)):][:chooser.randrange(30)]
        body = body or bytearray(b"0")
    return bytes(body)


def frames(seed: int, count: int) -> list[str]:
    """Read `count` mutated answers and return what is wrong."""
    chooser, rules = random.Random(seed), Rules()
    wrong: list[str] = []
    for _ in range(count):
        body = mutated(chooser)
        try:
            answer = read_answer(body, rules)
            if answer.outcome == "ok":
                check_values(answer.result)
                check_result(answer.result, rules)
                json.dumps(answer.result, allow_nan=False, ensure_ascii=False).encode()
            good = answer.outcome in UDF_OUTCOMES and (answer.detail or " ").isprintable()
        except Exception as error:
            good, body = False, body + repr(error).encode()
        if not good:
            wrong.append(f"seed {seed}: {body!r}")
    return wrong


def main() -> int:
    """Fuzz for the given time; exit code 1 if something was found."""
    parser = argparse.ArgumentParser(description="fuzz the UDF sandbox")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    seed, cases, found = arguments.seed, 0, 0
    ends = time.monotonic() + arguments.seconds
    while time.monotonic() < ends:
        wrong = [*hostile(seed, 50), *same(seed, 2_000), *frames(seed, 5_000)]
        for item in wrong:
            print(item, flush=True)
        seed, cases, found = seed + 1, cases + 7_050, found + len(wrong)
    print(f"{cases} cases up to seed {seed - 1}: {found} found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
