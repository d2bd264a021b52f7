"""Bytes of a file -> text that a YAML parser and an editor number alike, or one finding.

Only UTF-8 (with or without a byte order mark) is read. Characters that some programs take for a
line break and others do not are refused, so that every line number means the same everywhere.
"""

from __future__ import annotations

import re

from resilience.model import Finding

FILE_MAX_BYTES = 10 * 1024 * 1024

_BOMS = (
    (b"\xff\xfe\x00\x00", "UTF-32"), (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"),
)
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)
# They let a reviewer read another text than the engine does, in comments too.
BIDI = frozenset(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))))
BREAK = re.compile("\r\n|\r|\n")
_NAMES = {
    0x00: "NUL byte", 0x85: "next-line character U+0085", 0x2028: "line separator U+2028",
    0x2029: "paragraph separator U+2029", 0xFEFF: "byte order mark U+FEFF",
}


def read_text(file: str, content: str | bytes) -> tuple[str, Finding | None]:
    """Return the text of `content` and why it cannot be used (then the text is empty)."""
    if len(content) > FILE_MAX_BYTES:
        return "", _finding(
            file, 1, 1, "file-too-large",
            f"file has more than {FILE_MAX_BYTES // 1024 // 1024} MiB, the limit of one file",
            "split it into several files",
        )
    if isinstance(content, str):
        return _checked(file, content)
    for mark, name in _BOMS:
        if content.startswith(mark):
            return "", _not_utf8(file, 1, 1, f"file is {name}")
    if content[:4].count(0) in (2, 3) and len(content) > 3:
        wide = "UTF-32" if content[:4].count(0) == 3 else "UTF-16"
        return "", _not_utf8(file, 1, 1, f"file looks like {wide}")
    try:
        return _checked(file, content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line, column = position(content[: error.start].decode("utf-8", "replace"))
        byte = f"byte 0x{content[error.start]:02x} is not UTF-8"
        return "", _not_utf8(file, line, column, byte)


def unreadable(file: str, why: str) -> Finding:
    """Return the finding for what is no file or cannot be opened, such as a link to nowhere."""
    return Finding(file, 1, 1, "error", "unreadable", why)


def forbidden(text: str) -> str | None:
    """Return the first character of a value that a file may not hold, however it was written."""
    found = _FORBIDDEN.search(text)
    return None if found is None else found.group()


def position(before: str) -> tuple[int, int]:
    """Return line and column, from 1, of the character that follows `before`."""
    breaks = [m.end() for m in BREAK.finditer(before)]
    return len(breaks) + 1, len(before) - (breaks[-1] if breaks else 0) + 1


def _checked(file: str, text: str) -> tuple[str, Finding | None]:
    text = text.removeprefix("\ufeff")
    bad = _FORBIDDEN.search(text)
    if bad is None:
        return text, None
    code = ord(bad.group())
    kind = "bidirectional control character" if bad.group() in BIDI else "control character"
    name = _NAMES.get(code, f"{kind} U+{code:04X}")
    line, column = position(text[: bad.start()])
    return "", _finding(
        file, line, column, "control-character", f"{name} inside the file", "remove it"
    )


def _not_utf8(file: str, line: int, column: int, what: str) -> Finding:
    return _finding(file, line, column, "encoding", what, "save the file as UTF-8")


def _finding(
    file: str, line: int, column: int, code: str, message: str, suggestion: str
) -> Finding:
    return Finding(file, line, column, "error", code, message, suggestion)
