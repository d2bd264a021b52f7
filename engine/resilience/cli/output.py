"""What every command says the same way: `-o text|json`, JSON on stdout, colour, tables, notes."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TextIO, TypeVar, cast

import click

from resilience.samples import VERSION, Json, canonical_json

F = TypeVar("F", bound=Callable[..., Any])


def output_option(function: F) -> F:
    """Add `-o/--output text|json`; the command gets it as `output`."""
    option = click.option(
        "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
        help="Text for people or JSON for programs, on stdout.",
    )
    return option(function)


def emit_json(body: Json) -> None:
    """Write one JSON object with `version: 1` first, or any other value as it is."""
    if isinstance(body, dict):
        body = {"version": VERSION, **body}
    emit(json.dumps(json.loads(canonical_json(body)), indent=2, ensure_ascii=False))


def emit_line(body: Json) -> None:
    """Write one line of a JSON stream, in the canonical form."""
    emit(canonical_json(body))


def emit(text: str, newline: bool = True) -> None:
    """Write what programs read to stdout: UTF-8 as it is, also where texts are plain ASCII."""
    click.echo(text, file=getattr(sys.stdout, "as_it_is", sys.stdout), nl=newline)


def note(text: str) -> None:
    """Tell people something that is not data: stderr."""
    click.echo(text, err=True)


def colour() -> bool:
    """Return whether stdout may be coloured: a terminal that can, and nobody set NO_COLOR."""
    able = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return able and not os.environ.get("NO_COLOR")


def paint(text: str, shade: str) -> str:
    """Colour `text` when stdout is a terminal that wants it; an empty shade is none."""
    return click.style(text, fg=shade) if shade and colour() else text


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return left-aligned columns under `header`; every row has as many cells as the header."""
    lines = [list(header), *([str(c) for c in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def width() -> int:
    """Return the columns of the terminal (or of COLUMNS); 100 where there is none."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def unicode_wanted() -> bool:
    """Return whether stdout takes more than ASCII: not in locale C, nor where none is set.

    Python itself turns locale C into UTF-8 for its streams, so their encoding does not tell.
    """
    names = [os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    given = next((name for name in names if name), "C")
    if given == "C.UTF-8" and not names[0] and names[2] in ("", "C", "POSIX"):
        given = "C"  # what Python has written into LC_CTYPE because the locale is C
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return given not in ("C", "POSIX") and encoding.startswith("utf")


class PlainText:
    """A text stream that writes our own signs (`…`, `–`) in ASCII; what users wrote stays."""

    _SIGNS = str.maketrans({"…": "...", "–": "-", "·": "-", "φ": "q", "×": "x", "─": "-"})

    def __init__(self, stream: TextIO) -> None:
        self.as_it_is = stream

    def write(self, text: str) -> int:
        """Write `text`; raises TypeError for bytes, as every text stream does."""
        return self.as_it_is.write(str.translate(text, self._SIGNS))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.as_it_is, name)


@contextlib.contextmanager
def plain_streams() -> Generator[None]:
    """Write plain text to stdout and stderr meanwhile, if the locale has no more than ASCII."""
    if unicode_wanted():
        yield
        return
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, PlainText(_willing(stream))) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _willing(stream: TextIO) -> TextIO:
    """Let a stream take all that users wrote: an ASCII one as UTF-8, as click does, any other with
    escapes for what it lacks."""
    if isinstance(stream, io.TextIOWrapper) and "utf" not in stream.encoding.lower():
        if codecs.lookup(stream.encoding).name == "ascii":
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
        else:
            stream.reconfigure(errors="backslashreplace")
    return stream
