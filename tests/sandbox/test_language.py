"""The language layer, kind by kind: what is refused, where, with which help; what must work."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from resilience.sandbox.budget import Denied, Run
from resilience.sandbox.compile import check_source, functions
from resilience.sandbox.program import load, run

WRAP = "def f(ctx):\n    return {0}\n"


def evaluate(source: str, context: Any = None) -> Any:
    """Run `f` of `source` in this process, without the kernel layer; raises Denied."""
    program, denials = load("udf.py", source)
    assert program is not None, denials
    budget = Run("udf.py")
    result = run(program, "f", context, budget)
    if budget.denied is not None:
        raise budget.denied
    return result


def expression(text: str, context: Any = None) -> Any:
    return evaluate(WRAP.format(text), context)


# (source, line, column, part of message and suggestion): refused before anything runs
REFUSED = [
    ("def f(ctx):\n    class A: pass", 2, 5, "use a function that returns a mapping"),
    ("def f(ctx):\n    yield 1", 2, 5, "build a list"),
    ("def f(ctx):\n    with ctx: pass", 2, 5, "`with` is not available"),
    ("def f(ctx):\n    global a", 2, 5, "pass the value as an argument"),
    ("def f(ctx):\n    try: pass\n    except: pass", 3, 5, "except Exception"),
    ("def f(ctx):\n    return ctx.__class__", 2, 12, "`__class__`"),
    ("def f(ctx):\n    ctx.a = 1", 2, 5, 'value["a"]'),
    ("def f(ctx):\n    del ctx.a", 2, 9, 'value["a"]'),
    ("def f(ctx):\n    ctx.a += 1", 2, 5, 'value["a"]'),
    ("def f(ctx):\n    for ctx.a in [1]: pass", 2, 9, 'value["a"]'),
    ("def f(ctx):\n    a = b, c = ctx", 2, 5, "one assignment a line"),
    ("def f(ctx):\n    return 1 < 2 in ctx", 2, 12, "join two comparisons"),
    ("def f(ctx):\n    return ctx @ ctx", 2, 12, "sum of products"),
    ("def f(ctx):\n    return b'x'", 2, 12, "use text"),
    ("def f(ctx):\n    return 1j", 2, 12, "complex"),
    ("def f(ctx):\n    return [é for é in ctx]", 2, 13, "outside ASCII"),
    ("def f(ctx):\n    x = lambda _getattr_: 1", 2, 16, "starts with `_`"),
    ("def f(_write_, /): pass", 1, 7, "starts with `_`"),
    ("def f(*, print): pass", 1, 10, "reserved"),
    ("def f(ctx):\n    print = 1", 2, 5, "reserved"),
    ("@f\ndef f(ctx): pass", 1, 2, "decorator"),
    ("async def f(ctx): pass", 1, 1, "outside a function"),
    ("import os\ndef f(ctx): pass", 1, 1, "`os` is not available"),
    ("import collections.abc\ndef f(ctx): pass", 1, 1, "`collections.abc`"),
    ("from . import x\ndef f(ctx): pass", 1, 1, "not available"),
    ("from math import *\ndef f(ctx): pass", 1, 1, "name what you need"),
    ("from datetime import _sys\ndef f(ctx): pass", 1, 1, "cannot be imported"),
    ("from collections import namedtuple\ndef f(ctx): pass", 1, 1, "use a mapping"),
    ("from __future__ import braces\ndef f(ctx): pass", 1, 1, "__future__"),
    ("x = 1\nif x: y = 2\ndef f(ctx): pass", 2, 1, "outside a function"),
    ("print(1)\ndef f(ctx): pass", 1, 1, "outside a function"),
    ("def f(ctx): pass\ndef f(ctx): pass", 2, 1, "defined twice"),
    ("def f(ctx): pass\nf = 1", 2, 1, "is a function of this file"),
    ("def f(ctx):\n  return 1 +", 2, 13, "not valid Python"),
    ("def f(ctx):\n    return 'a\u202eb'", 2, 14, "U+202E"),
    ("def f(ctx):\n    return 'a\u200bb'", 2, 14, "U+200B"),
    ("def f(ctx):\n    x = 1\x0c\n", 2, 10, "U+000C"),
    ("x = " + "[" * 61 + "]" * 61, 1, 64, "deeper than 60"),
    ("x = " + "+".join(["1"] * 80), 1, 5, "deeper than 60"),
    ("x = [" + "1," * 20_001 + "]", 1, 1, "20,000"),
    ("x = 0x" + "f" * 3_000, 1, 5, "8,192 bits"),
    ("#" * 70_000, 1, 1, "65,536 bytes"),
    ("def f(ctx):\n    match ctx:\n        case _: pass", 2, 5, "`if` and `elif`"),
    ("def f(ctx):\n    try: pass\n    except* ValueError: pass", 2, 5, "use `except`"),
]


@pytest.mark.parametrize(("source", "line", "column", "part"), REFUSED,
                         ids=[s[:40] for s, *_ in REFUSED])
def test_refused_with_place_and_help(source: str, line: int, column: int, part: str) -> None:
    program, denials = load("udf.py", source)
    assert program is None
    first = next(d for d in denials if d.fatal)
    assert part in f"{first.message}; {first.suggestion}", first
    assert first.line == line
    if "deeper" not in part:
        assert first.column == column, first
    findings = check_source("udf.py", source)
    assert findings and all(f.severity == "error" and f.file == "udf.py" for f in findings)


# (expression, part of the suggestion): loads, certain to be denied, so `check` says it
CERTAIN = [
    ("'{}'.format(1)", "f-string"), ("ctx.format_map({})", "f-string"), ("type(ctx)", "isinstance"),
    ("getattr(ctx, 'a')", 'value["key"]'), ("open('x')", "ctx"), ("id(ctx)", "=="),
    ("ctx.mro", "documentation"), ("lenn(ctx)", "`len`"), ("BaseException", "except Exception"),
]


@pytest.mark.parametrize(("text", "part"), CERTAIN, ids=[t for t, _ in CERTAIN])
def test_check_reports_what_is_certain_to_be_denied(text: str, part: str) -> None:
    program, denials = load("udf.py", WRAP.format(text))
    assert program is not None and not denials[0].fatal
    finding = check_source("udf.py", WRAP.format(text))[0]
    assert (finding.severity, finding.line) == ("error", 2)
    assert part in (finding.suggestion or "")


# denied while it runs, whatever the UDF catches
DENIED = [
    "(1).real", "print.write",
    "len.name", "(lambda: 1).code", "(x for x in [1]).send", "ValueError('x').args",
    "list.mro", "str.join", "dict.values", "'a'.ljust(10**6)", "'\\t'.expandtabs(10**6)",
    "('a' * 4000).replace('a', 'b' * 4000)", "'a' * 10**8", "[1] * 10**8", "10 ** 10 ** 6",
    "1 << 10 ** 7", "2 ** 60000 * 2 ** 60000", "('x' * 4000000) + ('y' * 4000000)",
    "'%1000000d' % 1", "'%.1000000f' % 1.0", "'%*d' % (10**9, 1)", "f'{1:1000000}'",
    "f'{1.0:.{10**6}f}'", "format(1, '100000d')", "range(10 ** 9)", "'a' in range(10)",
    "1.5 in range(10)", "round(5, -3 * 10**8)", "pow(3, 2**5000, 7)", "int('9' * 5000)",
    "sum([[0] * 10**6] * 30, [])", "','.join(['x' * 10**6] * 30)", "str(f'{len}')",
    "str([f])", "repr({'a': f})", "f'{f}'", "'%s' % f", "str(ValueError(f))", "print(f)",
    "str((x for x in [1]))", "isinstance(1, f)", "iter([1])", "next([1])", "sorted([1], foo=1)",
    "max([1], foo=1)", "print('x', file=ctx)", "bytes(3)",
    "{**[1]}", "f(**[1])", "[*1]", "1[0]", "ctx.a", "[x for x in 5]", "'a' in 5",
]


@pytest.mark.parametrize("text", DENIED)
def test_denied_at_run_time_and_not_to_be_caught(text: str) -> None:
    source = (f"def f(ctx):\n    try:\n        return {text}\n"
              "    except Exception:\n        return 'caught'\n")
    with pytest.raises(Denied) as denied:
        evaluate(source)
    assert denied.value.outcome == "RUNTIME_DENIED"
    assert denied.value.message.startswith("udf.py:3:")


MODULES = [
    "math.sys", "math.factorial(10**6)", "math.comb(10**6, 5)", "math.perm(10**6)",
    "math.prod([10**1000] * 100)", "math.lcm(*[10**4000 + i for i in range(10)])",
    "statistics.sys", "statistics.quantiles([1, 2], n=10**9)", "statistics.NormalDist",
    "json.load", "json.codecs", "json.loads('1', parse_int=len)", "json.dumps({}, default=len)",
    "json.dumps({}, indent=10**9)", "json.JSONDecoder", "json.dumps(f)",
    "datetime.datetime.now()", "datetime.datetime.today", "datetime.date.today()",
    "datetime.datetime.fromtimestamp(0)", "datetime.datetime(2026, 1, 1).timestamp()",
    "datetime.datetime(2026, 1, 1).astimezone(datetime.timezone.utc)",
    "datetime.datetime(2026, 1, 1).strftime('%1000000d')", "datetime.sys", "datetime.tzinfo",
    "collections.namedtuple", "collections.abc", "collections.Counter('a').elements()",
    "collections.UserDict",
]


@pytest.mark.parametrize("text", MODULES)
def test_modules_offer_only_what_is_listed(text: str) -> None:
    source = "import collections, datetime, json, math, statistics\n" + WRAP.format(text)
    with pytest.raises(Denied):
        evaluate(source)


STEPS = [
    "while True: pass", "for i in range(10**7): pass", "[i for i in range(10**7)]",
    "sum(1 for i in range(10**7))", "list(map(lambda x: x, range(10**7)))",
    "while True:\n        try:\n            while True: pass\n        except Exception: pass",
    "while True:\n        try: pass\n        finally: pass",
    "xs = [0] * 10**6\n    while True: xs = xs + [1]",
    "while True: print('x' * 1000)", "while True: sorted([1] * 1000)",
]


@pytest.mark.parametrize("body", STEPS)
def test_endless_work_ends_at_the_step_limit_or_denied(body: str) -> None:
    with pytest.raises(Denied) as denied:
        evaluate(f"def f(ctx):\n    {body}\n")
    assert denied.value.outcome in ("STEP_LIMIT", "RUNTIME_DENIED")


def test_steps_are_the_same_every_time() -> None:
    source = "def f(ctx):\n    return sum(i * i for i in range(1000) if i % 3)\n"
    program, _ = load("udf.py", source)
    assert program is not None
    left = set()
    for _ in range(3):
        budget = Run("udf.py")
        run(program, "f", None, budget)
        left.add(budget.steps_left)
    assert len(left) == 1


def test_a_swallowed_denial_is_kept() -> None:
    source = ("def f(ctx):\n    try:\n        return ctx.nothing\n"
              "    finally:\n        return 'swallowed'\n")
    program, _ = load("udf.py", source)
    assert program is not None
    budget = Run("udf.py")
    assert run(program, "f", None, budget) == "swallowed"
    assert budget.denied is not None and budget.denied.outcome == "RUNTIME_DENIED"


def test_a_denial_at_the_end_of_the_stack_is_kept() -> None:
    source = ("def g(ctx, depth):\n    try:\n        return g(ctx, depth + 1)\n"
              "    except RecursionError:\n        return ctx.nothing\n"
              "def f(ctx):\n    try:\n        g(ctx, 0)\n    except Exception:\n        pass\n")
    with pytest.raises(Denied):
        evaluate(source)


# (expression or body, value): normal code that the guards must not break
WORKS: list[tuple[str, Any]] = [
    ("[*range(3), *'ab']", [0, 1, 2, "a", "b"]), ("{**{'a': 1}, 'b': 2}", {"a": 1, "b": 2}),
    ("max(*[1, 5], 3)", 5), ("min([3, 1], key=lambda x: -x)", 3), ("max([], default=7)", 7),
    ("next((x for x in [1, 2] if x > 1), None)", 2), ("any(x > 1 for x in [1, 2])", True),
    ("list(reversed([1, 2]))", [2, 1]), ("list(zip('ab', [1, 2], strict=True))",
                                         [("a", 1), ("b", 2)]),
    ("sum([[1], [2]], [])", [1, 2]), ("sum([0.5, 1])", 1.5), ("'a,b'.split(',')", ["a", "b"]),
    ("', '.join(str(x) for x in [1, 2])", "1, 2"), ("f'{3.14159:.2f}|{7:>4}|{\"x\"!r}'",
                                                    "3.14|   7|'x'"),
    ("f'{1:{2}d}'", " 1"), ("f'{{}}{1=}'", "{}1=1"),
    ("'%(a)s %(b)d' % {'a': 1, 'b': 2}", "1 2"), ("'%s %r' % ('a', 'b')", "a 'b'"),
    ("1 in [1] and 2 not in {3: 4} and 'a' in 'abc'", True), ("3 in range(10)", True),
    ("[1, 2, 3][::-1]", [3, 2, 1]), ("'abc'[1:]", "bc"), ("range(10)[3]", 3),
    ("(lambda *a, **k: (a, k))(1, *[2], x=3, **{'y': 4})", ((1, 2), {"x": 3, "y": 4})),
    ("isinstance(True, int) and not isinstance('a', (int, float))", True),
    ("isinstance(ValueError('x'), (ValueError, TypeError))", True),
    ("int('12') + int(3.9) + int('ff', 16)", 270), ("float('inf') > 1", True),
    ("round(2.345, 1) + round(7)", 9.3), ("2 ** 10 + (1 << 3) + 7 % 4 + 2 ** -1", 1035.5),
    ("pow(3, 4, 5)", 1), ("divmod(7, 2)", (3, 1)), ("dict([('a', 1)], b=2)", {"a": 1, "b": 2}),
    ("dict.fromkeys('ab', 0)", {"a": 0, "b": 0}), ("sorted({'b', 'a'})", ["a", "b"]),
    ("{1, 2} & {2, 3} | {4}", {2, 4}), ("{'a': 1} | {'b': 2}", {"a": 1, "b": 2}),
    ("str({'a': [1.5, None, True]})", "{'a': [1.5, None, True]}"), ("str(KeyError('x'))", "'x'"),
    ("[x for [x, y] in [[1, 2]] for z in [y] if z]", [1]),
    ("{k: v for k, (v, *_) in [('a', (1, 2, 3))]}", {"a": 1}),
    ("0 if 1 < 2 < 3 else 1", 0), ("not None", True), ("-(+1) + ~0", -2),
    ("list(filter(None, [0, 1]))", [1]),
    ("list(enumerate('a', 1))", [(1, "a")]), ("'x'.center(5, '*')", "**x**"),
    ("callable(len) and not callable(1)", True), ("chr(97) + hex(255) + bin(5)", "a0xff0b101"),
    ("(y := 5) + y", 10), ("[i for i in range(3) if (j := i)] + [j]", [1, 2, 2]),
]


@pytest.mark.parametrize(("text", "value"), WORKS, ids=[t for t, _ in WORKS])
def test_normal_code_works(text: str, value: Any) -> None:
    assert expression(text, {"a": 1}) == value


BODIES: list[tuple[str, Any]] = [
    ("d = {'a': [1]}\n    d['a'][0] += 2\n    d['b'] = d.setdefault('b', 0) + 1\n    return d",
     {"a": [3], "b": 1}),
    ("a: int = 1\n    b: str\n    b = 'x'\n    return [a, b]", [1, "x"]),
    ("a, [b, (c, *d)] = 1, [2, (3, 4, 5)]\n    return [a, b, c, d]", [1, 2, 3, [4, 5]]),
    ("xs = [1]\n    ys = xs\n    xs += (2,)\n    return ys", [1, 2]),
    ("xs = [1]\n    ys = xs\n    xs *= 2\n    return ys", [1, 1]),
    ("from collections import deque\n    xs = deque([1])\n    xs += [2]\n    return list(xs)",
     [1, 2]),
    ("from collections import Counter\n    c = Counter('a')\n    d = c\n    c += Counter('ab')\n"
     "    return [d['a'], d['b']]", [2, 1]),
    ("return dict(self=1, items=2)", {"self": 1, "items": 2}),
    ("n = 7\n    n //= 2\n    n **= 2\n    n <<= 1\n    n |= 1\n    n ^= 2\n    return n", 17),
    ("s = 'a'\n    s *= 3\n    s %= ()\n    return s", "aaa"),
    ("xs = [3, 1]\n    xs.sort(key=lambda x: x)\n    xs.extend(x for x in [9])\n    return xs",
     [1, 3, 9]),
    ("xs = [0, 1, 2, 3]\n    xs[1:3] = [9]\n    del xs[0]\n    return xs", [9, 3]),
    ("try:\n        {}['a']\n    except (KeyError, IndexError) as e:\n        return str(e)\n"
     "    finally:\n        x = 1", "'a'"),
    ("try:\n        raise ValueError('a') from KeyError('b')\n    except ValueError as e:\n"
     "        return f'{e}'", "a"),
    ("for i in range(5):\n        if i == 3: break\n    else:\n        i = 9\n    return i", 3),
    ("i = 0\n    while i < 5:\n        i += 1\n        if i == 2: continue\n    else:\n"
     "        i *= 2\n    return i", 10),
    ("def g(n, acc=1):\n        return acc if n < 2 else g(n - 1, acc * n)\n    return g(5)", 120),
    ("assert ctx is None, 'why'\n    return 'ok'", "ok"),
    ("a = b = []\n    a.append(1)\n    return b", [1]),
    ("from math import floor as down\n    import json as j\n    return [down(1.5), j.dumps([1])]",
     [1, "[1]"]),
]


@pytest.mark.parametrize(("body", "value"), BODIES, ids=[b[:30] for b, _ in BODIES])
def test_normal_statements_work(body: str, value: Any) -> None:
    assert evaluate(f"def f(ctx):\n    {body}\n") == value


TIMES = [
    ("t.isoformat()", "2026-01-01T12:30:00+00:00"), ("t.strftime('%H:%M')", "12:30"),
    ("f'{t:%Y}'", "2026"), ("t.weekday()", 3), ("(t + timedelta(hours=12)).day", 2),
    ("t.timestamp()", 1767270600.0), ("t.isocalendar()[1]", 1), ("str(t.date())", "2026-01-01"),
    ("(t - t).total_seconds()", 0.0), ("t.replace(hour=1).hour", 1),
    ("datetime.fromtimestamp(0, timezone.utc).year", 1970), ("isinstance(t, datetime)", True),
]


@pytest.mark.parametrize(("text", "value"), TIMES, ids=[t for t, _ in TIMES])
def test_times_work_without_a_clock(text: str, value: Any) -> None:
    source = ("from datetime import datetime, timedelta, timezone\ndef f(ctx):\n"
              "    t = datetime.fromisoformat('2026-01-01T12:30:00+00:00')\n"
              f"    return {text}\n")
    assert evaluate(source) == value
    assert datetime.datetime.now(datetime.UTC).year >= 2026


def test_functions_are_listed_with_their_lines() -> None:
    source = "X = 1\ndef a(ctx):\n    def inner(): pass\n\ndef b(ctx, more=1): pass\n"
    assert functions(source) == {"a": 2, "b": 5}
    assert functions("def (") == {}


def test_the_log_is_kept_and_cut() -> None:
    program, _ = load("udf.py", "def f(ctx):\n    for i in range(999): print('x' * 99, end='')\n")
    assert program is not None
    budget = Run("udf.py")
    run(program, "f", None, budget)
    log = "".join(budget.log)
    assert len(log) < 17_000 and log.endswith("… log cut\n")
