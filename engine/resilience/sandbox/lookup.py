"""Which file a function name means, or why it cannot be called."""

from __future__ import annotations

import re
from collections.abc import Mapping

from resilience.sandbox.answer import Answer
from resilience.sandbox.process import LoadedFile


def find(
    files: Mapping[str, LoadedFile], sources: Mapping[str, str], function: str
) -> str | Answer:
    """Return the file of `function`, or an answer with outcome COMPILE_DENIED."""
    found = [file for file, loaded in files.items()
             if any(name == function for name, *_ in loaded.functions)]
    if not found:
        return Answer("COMPILE_DENIED", None, _why_missing(files, sources, function))
    best = min(map(_root, found))
    found = [file for file in found if _root(file) == best]
    if len(found) > 1:
        named = " and ".join(f"`{file}`" for file in found)
        return Answer("COMPILE_DENIED", None, f"`{function}` is defined in {named}")
    return _callable(found[0], files[found[0]], function)


def _root(file: str) -> tuple[bool, int, str]:
    """Return where a file stands in the order of lookup: `udfs`, `udfs.1`, … then the shipped."""
    root = file.partition("/")[0] if "/" in file else ""
    number = root.rpartition(".")[2]
    return root == "shipped", int(number) if number.isdecimal() else 0, root


def _callable(file: str, loaded: LoadedFile, function: str) -> str | Answer:
    for name, line, column, takes_one in loaded.functions:
        if name == function and not takes_one:
            detail = (f"{file}:{line}:{column}: `{function}` must take one argument; "
                      f"write `def {function}(ctx):`")
            return Answer("COMPILE_DENIED", None, detail)
    return file


def _why_missing(
    files: Mapping[str, LoadedFile], sources: Mapping[str, str], function: str
) -> str:
    name = re.escape(function)
    definition = re.compile(rf"^\s*(?:async\s+)?(?:def|class)\s+{name}\b", re.MULTILINE)
    for file, loaded in files.items():
        if loaded.denials and definition.search(sources.get(file, "")):
            line, column, _, message, hint = loaded.denials[0]
            return f"{file}:{line}:{column}: {message}" + (f"; {hint}" if hint else "")
    return f"no UDF file defines `{function}`"
