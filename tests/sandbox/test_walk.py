"""The assembled environment, searched: what a UDF can reach holds nothing of the interpreter.

The walk does what a UDF can do: read every attribute that the guard gives, call everything that it
gets with plain arguments, look into every container. Not by a list of known holes: everything that
is reached is one of the allowed types, or the test fails.
"""

from __future__ import annotations

import datetime
import types
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import pytest

from resilience.sandbox.attributes import every_name
from resilience.sandbox.budget import Denied, Run
from resilience.sandbox.environment import environment, offered
from resilience.sandbox.values import DICT_VIEWS, ORDERED_VIEWS, Facade, Kind

DATA = (
    type(None), bool, int, float, str, list, tuple, dict, set, frozenset, range, Counter,
    OrderedDict, defaultdict, deque, datetime.datetime, datetime.date, datetime.time,
    datetime.timedelta, datetime.timezone, types.GeneratorType, *DICT_VIEWS, *ORDERED_VIEWS,
)
CALLABLE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, Kind)
# Attribute names that lead into the interpreter, beside all that exist on the value itself.
NAMES = every_name() | {
    "gi_frame", "f_back", "f_globals", "f_builtins", "cr_frame", "ag_frame", "tb_frame", "tb_next",
    "func_globals", "mro", "obj", "name", "path", "args", "with_traceback", "add_note", "real",
    "imag", "conjugate", "fromhex", "from_bytes", "to_bytes", "as_integer_ratio", "format",
    "format_map", "encode", "translate", "maketrans", "elements", "default_factory", "sys", "types",
    "members", "registry", "modules",
}


def arguments() -> list[tuple[Any, ...]]:
    """Plain arguments, fresh for each call, as methods change them."""
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return [
        (), (1,), ("a",), (0.5,), ([1, 2],), ({"a": 1},), (moment,), (1, 2), ("a", "b"),
        ("%Y", [1]), ([1, 2], 1), (lambda *a: 1, [1, 2]), ([3, 1], [1, 2]), (None,),
        (datetime.UTC,), (1, datetime.UTC), ((x for x in [1]),), (1, 2, 3), ([(1, 2)],),
    ]


def samples() -> list[Any]:
    """One value of each kind that a UDF can build or be given."""
    return [
        None, True, 7, 0.5, "text", [1, "a"], (1, 2), {"a": [1]}, {1}, frozenset({1}), range(3),
        Counter("aab"), OrderedDict(a=1), defaultdict(int, a=1), deque([1]), (x for x in [1, 2]),
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), datetime.date(2026, 1, 1),
        datetime.time(1), datetime.timedelta(1), datetime.UTC, {"a": 1}.keys(), {"a": 1}.items(),
        ValueError("x"), KeyError("k"), lambda x: x, ImportError("x", name="n", path="/p"),
        AttributeError("x", obj=types), StopIteration(types),
    ]


class Walk:
    """Breadth first over (how it was reached, value); fails on the first thing that is not data."""

    def __init__(self) -> None:
        self.run = Run("udf.py", steps=10**9)
        self.names = environment(self.run)
        self.reached = 0
        self._seen: set[tuple[str, str]] = set()

    def search(self) -> None:
        builtins: dict[str, Any] = self.names["__builtins__"]
        front: list[tuple[str, Any]] = list(builtins.items())
        front += [(name, self.names["_import_"](name)) for name in offered().modules]
        front += [(f"sample {i}", value) for i, value in enumerate(samples())]
        for _ in range(4):
            front = [new for path, value in front for new in self._from(path, value)]

    def _from(self, path: str, value: Any) -> list[tuple[str, Any]]:
        self._judge(path, value)
        out = [(f"{path}.{n}", got) for n in NAMES | set(dir(value))
               for got in self._try(self.names["_getattr_"], value, n)]
        out += [(f"{path}[]", item) for item in self._inside(value)]
        if callable(value) and path not in ("print", "_step_"):
            for given in arguments():
                out += [(f"{path}({len(given)})", got) for got in self._try(value, *given)]
        return [new for new in out if self._is_new(*new)]

    def _is_new(self, path: str, value: Any) -> bool:
        key = (path.rpartition(".")[2], type(value).__name__)
        fresh = key not in self._seen
        self._seen.add(key)
        return fresh

    def _try(self, function: Any, *given: Any) -> list[Any]:
        self.run.denied = None
        try:
            return [function(*given)]
        except (Denied, Exception) as error:
            if isinstance(error, Exception):
                self._judge("an error", error)
            return []

    def _inside(self, value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [*value, *value.values()][:50]
        if isinstance(value, list | tuple | set | frozenset | deque):
            return list(value)[:50]
        return []

    def _judge(self, path: str, value: Any) -> None:
        self.reached += 1
        if isinstance(value, type):
            assert issubclass(value, Exception), f"{path} is the type {value!r}"
            assert issubclass(value, BaseException)
        elif isinstance(value, Exception):
            assert type(value).__module__ in ("builtins", "json.decoder", "statistics"), path
        else:
            allowed = isinstance(value, CALLABLE) or type(value) in (*DATA, Facade)
            assert allowed, f"{path} reaches {type(value)!r}"


def test_nothing_of_the_interpreter_is_reached() -> None:
    walk = Walk()
    walk.search()
    assert walk.reached > 1_000


@pytest.mark.parametrize("name", ["__class__", "__globals__", "__self__", "__code__", "__dict__",
                                  "__init__", "__call__", "__func__", "__wrapped__", "__module__"])
def test_no_underscore_is_read_from_anything(name: str) -> None:
    run = Run("udf.py")
    names = environment(run)
    everything = [*samples(), *names["__builtins__"].values(), *names.values()]
    everything += [names["_import_"](module) for module in offered().modules]
    for value in everything:
        with pytest.raises(Denied):
            names["_getattr_"](value, name)


def test_globals_of_a_udf_are_the_guards_and_the_builtins() -> None:
    names = environment(Run("udf.py"))
    assert set(names) == {
        "__builtins__", "_getattr_", "_import_", "_add_", "_mul_", "_mod_", "_pow_", "_shl_",
        "_in_", "_getitem_", "_getiter_", "_spread_", "_mapping_", "_write_", "_inplacevar_",
        "_inplaceitem_", "_unpack_sequence_", "_iter_unpack_sequence_", "_text_", "_step_",
    }
    assert not [n for n in names["__builtins__"] if n.startswith("_")]
