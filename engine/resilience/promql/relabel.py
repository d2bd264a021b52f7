"""Functions that change labels or order: label_replace, label_join, sort, and absent's labels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from resilience.arrays import np
from resilience.promql import regex
from resilience.promql.plan import Node, Selector
from resilience.promql.vector import Vec, evaluation_error
from resilience.samples import Labels, labels_of

_NUMBER = re.compile("0|[1-9][0-9]{0,8}")  # one with a leading zero is a name
VALUE_MAX = 65_536  # characters: each nested call could double a value
_DIGITS = re.compile(r"([0-9]+)")


def label_replace(vec: Vec, target: str, template: str, source: str, pattern: str) -> Vec:
    """Set `target` from `template` where the whole value of `source` matches `pattern`."""
    try:
        found = regex.substitution(pattern)
    except ValueError:
        raise evaluation_error(
            f"invalid regular expression in label_replace(): {pattern}"
        ) from None
    if not target:
        raise evaluation_error(f"invalid destination label name in label_replace(): {target}")

    def change(labels: Labels) -> Labels | None:
        match = found.search(dict(labels).get(source, ""))
        return None if match is None else _set(labels, target, expand(template, match))

    return _changed(vec, change, target)


def label_join(vec: Vec, target: str, separator: str, sources: Sequence[str]) -> Vec:
    """Set `target` to the values of `sources`, joined."""
    if any(not s for s in sources):
        raise evaluation_error("invalid source label name in label_join(): ")
    if not target:
        raise evaluation_error(f"invalid destination label name in label_join(): {target}")

    def change(labels: Labels) -> Labels | None:
        have = dict(labels)
        values = [have.get(s, "") for s in sources]
        _bounded(sum(map(len, values)) + len(separator) * len(values))
        return _set(labels, target, separator.join(values))

    return _changed(vec, change, target)


def _bounded(length: int) -> None:
    if length > VALUE_MAX:
        raise evaluation_error(f"a label value would have more than {VALUE_MAX} characters")


def _set(labels: Labels, name: str, value: str) -> Labels:
    return labels_of({**dict(labels), name: value})


def _changed(vec: Vec, change: Callable[[Labels], Labels | None], target: str) -> Vec:
    """Change labels, where `change` gives any. A name that was to be dropped stays once a label
    function has written it."""
    new = [change(x) for x in vec.labels]
    labels = [x if y is None else y for x, y in zip(vec.labels, new, strict=True)]
    drop = vec.drop
    if drop is not None and target == "__name__":
        drop = drop & np.array([y is None for y in new], dtype=bool)
    return Vec(labels, vec.values, vec.present, drop, vec.ranked)


def expand(template: str, match: Any) -> str:
    """Fill `$1`, `${name}` and `$$` as Go's Regexp.Expand does; unknown groups are empty."""
    made: list[str] = []
    length = 0
    for piece in _pieces(template):
        text = piece if isinstance(piece, str) else _group(match, piece.name)
        length += len(text)
        _bounded(length)
        made.append(text)
    return "".join(made)


@dataclass(frozen=True, slots=True)
class _Reference:
    """A group of the match, by number or by name."""

    name: str


@lru_cache(maxsize=256)
def _pieces(template: str) -> tuple[str | _Reference, ...]:
    """Cut a template into texts and references."""
    pieces: list[str | _Reference] = []
    at = 0
    while (dollar := template.find("$", at)) >= 0:
        piece, after = _reference(template, dollar + 1)
        pieces += (template[at:dollar], piece)
        at = after
    pieces.append(template[at:])
    return tuple(pieces)


def _reference(template: str, at: int) -> tuple[str | _Reference, int]:
    """Read what stands after a `$`, and say where it ends; what begins like a reference and is
    none leaves the `$` to stand for itself."""
    if template.startswith("$", at):
        return "$", at + 1
    braced = template.startswith("{", at)
    start = at + braced
    end = _end_of_name(template, start)
    if end == start or (braced and not template.startswith("}", end)):
        return "$", at
    return _Reference(template[start:end]), end + braced


def _end_of_name(text: str, at: int) -> int:
    """Return where the letters, decimal digits and underscores of any script end."""
    while at < len(text) and (text[at].isalpha() or text[at].isdecimal() or text[at] == "_"):
        at += 1
    return at


def _group(match: Any, name: str) -> str:
    """Return what a group has matched: of those with one name the first that took part."""
    named = regex.groups(match.re.pattern).get(name, ())
    numbers = [int(name)] if _NUMBER.fullmatch(name) else named
    found = (match.group(number) for number in numbers if number <= match.re.groups)
    return next((text for text in found if text is not None), "")


def by_value(vec: Vec, descending: bool) -> Vec:
    """Order one step by value, NaN last."""
    if vec.steps != 1:
        return vec
    values = vec.values[:, 0].tolist()

    def key(row: int) -> tuple[bool, float]:
        value = values[row]
        return math.isnan(value), 0.0 if math.isnan(value) else -value if descending else value

    return _ranked(vec, sorted(range(len(values)), key=key))


def by_label(vec: Vec, names: Sequence[str], descending: bool) -> Vec:
    """Order one step by labels, numbers inside them as numbers; ties by all labels."""
    if vec.steps != 1:
        return vec

    def key(row: int) -> tuple[Any, ...]:
        have = dict(vec.labels[row])
        return (*(_natural(have.get(n, "")) for n in names), vec.labels[row])

    return _ranked(vec, sorted(range(len(vec.labels)), key=key, reverse=descending))


def _natural(text: str) -> list[tuple[int, int, str, str]]:
    """Cut a text into what is compared as numbers, however long, and what as texts."""
    found: list[tuple[int, int, str, str]] = []
    for place, piece in enumerate(_DIGITS.split(text)):
        if place % 2:
            number = piece.lstrip("0")
            found.append((0, len(number), number, piece))
        elif piece:
            found.append((1, 0, piece, ""))
    return found


def _ranked(vec: Vec, order: Sequence[int]) -> Vec:
    ordered = vec.take(order)
    return Vec(ordered.labels, ordered.values, ordered.present, ordered.drop, True)


def absent_labels(node: Node) -> Labels:
    """Return the labels that `absent` can know from the equality matchers of a selector."""
    if not isinstance(node, Selector):
        return ()
    known: dict[str, str] = {}
    seen: set[str] = set()
    for matcher in node.matchers:
        if matcher.name == "__name__":
            continue
        if matcher.op == "=" and matcher.name not in seen:
            known[matcher.name] = matcher.value
            seen.add(matcher.name)
        else:
            known.pop(matcher.name, None)
    return labels_of(known)
