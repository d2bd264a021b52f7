"""What the language layer refuses, and what an author writes instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Denial:
    """One refusal at a place of a source. Lines and columns count from 1.

    `fatal` refuses the file. The others are certain to be denied when that line runs: `udf check`
    reports them as errors, but the file still loads.
    """

    line: int
    column: int
    code: str
    message: str
    suggestion: str | None = None
    fatal: bool = True


NODE_HINTS: dict[str, tuple[str, str | None]] = {
    "ClassDef": ("a class cannot be defined", "use a function that returns a mapping"),
    "Yield": ("`yield` is not available", "build a list and return it"),
    "YieldFrom": ("`yield from` is not available", "build a list and return it"),
    "With": ("`with` is not available", "a UDF has nothing to open or to close"),
    "Global": ("`global` is not available", "pass the value as an argument and return it"),
    "Nonlocal": ("`nonlocal` is not available", "pass the value as an argument and return it"),
    "Match": ("`match` is not available", "use `if` and `elif`"),
    "AsyncFunctionDef": ("`async` is not available", "a UDF is one plain function"),
    "AsyncFor": ("`async` is not available", "a UDF is one plain function"),
    "AsyncWith": ("`async` is not available", "a UDF is one plain function"),
    "Await": ("`await` is not available", "a UDF is one plain function"),
    "TryStar": ("`except*` is not available", "use `except`"),
    "MatMult": ("the operator `@` is not available", "write the sum of products"),
    "TypeAlias": ("a type alias cannot be defined", "leave it out: hints are ignored"),
    "TemplateStr": ("a template string is not available", "use an f-string"),
    "Interpolation": ("a template string is not available", "use an f-string"),
}

NAME_HINTS: dict[str, str] = {
    "type": "use `isinstance(value, kind)`",
    "getattr": "write `value[\"key\"]`, or `value.get(\"key\")` for a mapping",
    "hasattr": "write `\"key\" in value`",
    "setattr": "write `value[\"key\"] = …`",
    "delattr": "write `del value[\"key\"]`",
    "open": "a UDF sees no files: everything is in `ctx`",
    "input": "a UDF sees no input: everything is in `ctx`",
    "eval": "write the expression itself",
    "exec": "write the code itself",
    "compile": "write the code itself",
    "id": "compare values with `==`",
    "hash": "compare values with `==`",
    "iter": "write a `for` loop",
    "bytes": "use text",
    "bytearray": "use text",
    "memoryview": "use text",
    "complex": "use two numbers",
    "object": "use a mapping",
    "super": "use functions and mappings",
    "property": "use a function",
    "classmethod": "use a function",
    "staticmethod": "use a function",
    "vars": "write the names that you need",
    "dir": "write the names that you need",
    "globals": "pass values as arguments",
    "locals": "pass values as arguments",
    "issubclass": "use `isinstance(value, kind)`",
    "slice": "write `value[a:b]`",
    "help": "see the documentation of UDFs",
    "breakpoint": "use `print`: it goes to the log of the call",
    "exit": "use `return`",
    "quit": "use `return`",
    "printed": "what was printed is in the log of the call",
    "aiter": "write a `for` loop",
    "anext": "write a `for` loop",
    "ascii": "use `repr(value)`",
    "copyright": "leave it out",
    "credits": "leave it out",
    "license": "leave it out",
    "BaseException": "use `except Exception`",
    "SystemExit": "use `return`",
    "KeyboardInterrupt": "raise ValueError",
    "GeneratorExit": "raise ValueError",
    "ExceptionGroup": "raise one exception",
    "BaseExceptionGroup": "raise one exception",
    "MemoryError": "build less: memory is limited",
    "OSError": "a UDF sees no files",
    "IOError": "a UDF sees no files",
    "FileNotFoundError": "a UDF sees no files",
    "PermissionError": "a UDF sees no files",
    "TimeoutError": "a UDF that takes too long is ended",
    "SyntaxError": "raise ValueError",
    "SystemError": "raise ValueError",
}

ATTRIBUTE_HINTS: dict[str, str] = {
    "format": "use an f-string",
    "format_map": "use an f-string",
    "now": "use `ctx[\"now\"]`: a UDF has no clock",
    "utcnow": "use `ctx[\"now\"]`: a UDF has no clock",
    "today": "use `ctx[\"now\"]`: a UDF has no clock",
    "time": "use `ctx[\"now\"]`: a UDF has no clock",
    "encode": "use text",
    "decode": "use text",
    "translate": "use `replace`",
    "maketrans": "use `replace`",
    "elements": "use `items()`",
    "namedtuple": "use a mapping",
    "ChainMap": "use `{**a, **b}`",
    "load": "use `json.loads` of text",
    "dump": "use `json.dumps`",
    "strptime": "use `datetime.fromisoformat`",
    "args": "use `str(error)`",
    "with_traceback": "use `raise`",
    "add_note": "put it into the message",
    "from_bytes": "use `int(text, base)`",
    "to_bytes": "use text",
}
