"""Binary operators: arithmetic, comparison, matching of two vectors, and the set operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

from resilience.arrays import np
from resilience.promql.plan import Binary, Matching
from resilience.promql.storage import Bools, Floats
from resilience.promql.vector import (
    IDENTITY,
    Scalar,
    Value,
    Vec,
    bounded,
    concat,
    drop_name,
    empty,
    evaluation_error,
    merged,
    unnamed,
)
from resilience.samples import Labels, labels_of

Operation: TypeAlias = Callable[[Floats, Floats], Floats]


def _power(a: Floats, b: Floats) -> Floats:
    """NumPy takes the square root for a single exponent of 0.5: of -0 and -Inf another value."""
    found = np.power(a, b)
    if not (b == 0.5).any():
        return found
    found = np.where((b == 0.5) & (a == 0), 0.0, found)
    return np.where((b == 0.5) & (a == -np.inf), np.inf, found)


ARITHMETIC: dict[str, Operation] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "%": np.fmod,
    "^": _power, "atan2": np.arctan2,
}
COMPARE: dict[str, Callable[[Floats, Floats], Bools]] = {
    "==": np.equal, "!=": np.not_equal, "<": np.less, ">": np.greater, "<=": np.less_equal,
    ">=": np.greater_equal,
}


def evaluate(node: Binary, lhs: Value, rhs: Value, delayed: bool) -> Value:
    """Return `lhs op rhs`; both sides lie on the same grid. Floating-point errors are the
    caller's to ignore."""
    if isinstance(lhs, Scalar) and isinstance(rhs, Scalar):
        return Scalar(_computed(node.op, lhs.values, rhs.values))
    if isinstance(lhs, Vec) and isinstance(rhs, Scalar):
        return _with_scalar(node, lhs, rhs.values, False, delayed)
    if isinstance(lhs, Scalar) and isinstance(rhs, Vec):
        return _with_scalar(node, rhs, lhs.values, True, delayed)
    assert isinstance(lhs, Vec) and isinstance(rhs, Vec) and node.matching is not None
    if node.op in _SETS:
        return merged(_SETS[node.op](lhs, rhs, node.matching))
    return _matched(node, lhs, rhs, node.matching, delayed)


def _computed(op: str, a: Floats, b: Floats) -> Floats:
    if op in ARITHMETIC:
        return ARITHMETIC[op](a, b)
    return COMPARE[op](a, b).astype(np.float64)


def _with_scalar(
    node: Binary, vec: Vec, scalar: Floats, swapped: bool, delayed: bool
) -> Vec:
    a, b = (scalar, vec.values) if swapped else (vec.values, scalar)
    if node.op in ARITHMETIC or node.bool_result:
        return merged(unnamed(vec.with_values(_computed(node.op, a, b)), delayed))
    keep = COMPARE[node.op](a, b)
    return vec.kept(keep if vec.present is None else keep & vec.present)


# --- matching ---


@lru_cache(maxsize=65_536)
def signature(labels: Labels, on: bool, names: frozenset[str]) -> Labels:
    """Return the labels by which a series is matched."""
    if on:
        return tuple(p for p in labels if p[0] in names)
    return tuple(p for p in labels if p[0] not in names and p[0] not in IDENTITY)


def _signatures(vec: Vec, matching: Matching) -> list[Labels]:
    names = frozenset(matching.labels)
    return [signature(labels, matching.on, names) for labels in vec.labels]


def _matched(node: Binary, lhs: Vec, rhs: Vec, matching: Matching, delayed: bool) -> Vec:
    """Pair the series, compute, and refuse pairs that are not unique at some step."""
    swapped = matching.card == "one-to-many"
    many, one = (rhs, lhs) if swapped else (lhs, rhs)
    if not many.labels or not one.labels:
        return empty(lhs.steps)
    many_keys, one_keys = _signatures(many, matching), _signatures(one, matching)
    rows_of = _one_side(many, one, one_keys, swapped)
    pairs = [(m, o) for m, key in enumerate(many_keys) for o in rows_of.get(key, ())]
    if not pairs:
        return empty(lhs.steps)
    bounded(len(pairs), lhs.steps)
    m_rows, o_rows = [m for m, _ in pairs], [o for _, o in pairs]
    left, right = many.take(m_rows), one.take(o_rows)
    values, present = _paired(node, left, right, swapped)
    labels = _result_labels(node, left.labels, right.labels, matching, delayed)
    drop = _dropped(node, left, delayed)
    vec = Vec(labels, values, present, drop)
    _refuse_repeats(vec, [many_keys[m] for m in m_rows], matching)
    return merged(vec if present is None else vec.kept(present))


def _one_side(
    many: Vec, one: Vec, keys: Sequence[Labels], swapped: bool
) -> dict[Labels, list[int]]:
    """Return the rows of the "one" side by signature; two at one step are an error."""
    rows_of: dict[Labels, list[int]] = {}
    for row, key in enumerate(keys):
        rows_of.setdefault(key, []).append(row)
    if len(rows_of) == len(keys):
        return rows_of
    mask = one.mask() & many.mask().any(axis=0)
    for key, rows in rows_of.items():
        if len(rows) > 1 and (crowded := mask[rows].sum(axis=0) > 1).any():
            step = int(np.argmax(crowded))
            both = sorted(labels_text(one.labels[r]) for r in rows if mask[r, step])
            side = "left" if swapped else "right"
            raise evaluation_error(
                f"found duplicate series for the match group {labels_text(key)} on the {side} "
                f"hand-side of the operation: [{both[0]}, {both[1]}];many-to-many matching not "
                "allowed: matching labels must be unique on one side"
            )
    return rows_of


def labels_text(labels: Labels) -> str:
    """Return labels as Prometheus prints them in messages."""
    return "{" + ", ".join(f'{k}="{v}"' for k, v in labels) + "}"


def _paired(
    node: Binary, left: Vec, right: Vec, swapped: bool
) -> tuple[Floats, Bools | None]:
    a, b = (right.values, left.values) if swapped else (left.values, right.values)
    present = None
    if left.present is not None or right.present is not None:
        present = left.mask() & right.mask()
    if node.op in ARITHMETIC or node.bool_result:
        return _computed(node.op, a, b), present
    keep = COMPARE[node.op](a, b)
    return a, keep if present is None else keep & present


def _result_labels(
    node: Binary, many: Sequence[Labels], one: Sequence[Labels], matching: Matching, delayed: bool
) -> list[Labels]:
    bare = node.op in ARITHMETIC or (node.bool_result and not delayed)
    if matching.card == "one-to-one":
        names = frozenset(matching.labels)
        return [_single_labels(m, matching.on, names, bare) for m in many]
    found = [_grouped_labels(m, o, matching.include, bare) for m, o in zip(many, one, strict=True)]
    # An included name survives arithmetic, but not `bool`: Prometheus drops the name last there.
    return [drop_name(labels) for labels in found] if bare and node.bool_result else found


@lru_cache(maxsize=65_536)
def _single_labels(labels: Labels, on: bool, names: frozenset[str], bare: bool) -> Labels:
    kept = tuple(p for p in labels if (p[0] in names) == on)
    return drop_name(kept) if bare else kept


@lru_cache(maxsize=65_536)
def _grouped_labels(
    many: Labels, one: Labels, include: tuple[str, ...], bare: bool
) -> Labels:
    base = dict(drop_name(many) if bare else many)
    source = dict(one)
    for name in include:
        base[name] = source.get(name, "")
    return labels_of(base)


def _dropped(node: Binary, left: Vec, delayed: bool) -> Bools | None:
    """Return whose names go at the end; arithmetic drops its names at once, but included ones."""
    if not delayed or node.op in ARITHMETIC:
        return None
    return np.ones(len(left.labels), dtype=bool) if node.bool_result else left.drop


def _refuse_repeats(vec: Vec, keys: Sequence[Labels], matching: Matching) -> None:
    """Two results of one match group at one step: not unique."""
    single = matching.card == "one-to-one"
    seen: dict[object, list[int]] = {}
    for row, key in enumerate(keys):
        seen.setdefault(key if single else (key, vec.labels[row]), []).append(row)
    if len(seen) == len(keys):
        return
    mask = vec.mask()
    for rows in seen.values():
        if len(rows) > 1 and (mask[rows].sum(axis=0) > 1).any():
            raise evaluation_error(
                "multiple matches for labels: many-to-one matching must be explicit "
                "(group_left/group_right)" if single else
                "multiple matches for labels: grouping labels must ensure unique matches"
            )


# --- set operators ---


def _partner(vec: Vec, other: Vec, matching: Matching) -> Bools | None:
    """Return at which steps each row of `vec` has a match in `other`; None: never."""
    if not other.labels:
        return None
    other_mask = other.mask()
    by_key: dict[Labels, Bools] = {}
    for row, key in enumerate(_signatures(other, matching)):
        by_key[key] = other_mask[row] if key not in by_key else by_key[key] | other_mask[row]
    nothing = np.zeros(vec.steps, dtype=bool)
    keys = _signatures(vec, matching)
    if not keys:
        return None
    return np.array([by_key.get(key, nothing) for key in keys])


def _and(lhs: Vec, rhs: Vec, matching: Matching) -> Vec:
    partner = _partner(lhs, rhs, matching)
    return empty(lhs.steps) if partner is None else lhs.kept(lhs.mask() & partner)


def _unless(lhs: Vec, rhs: Vec, matching: Matching) -> Vec:
    partner = _partner(lhs, rhs, matching)
    return lhs if partner is None else lhs.kept(lhs.mask() & ~partner)


def _or(lhs: Vec, rhs: Vec, matching: Matching) -> Vec:
    partner = _partner(rhs, lhs, matching)
    more = rhs if partner is None else rhs.kept(rhs.mask() & ~partner)
    return concat([v for v in (lhs, more) if v.labels], lhs.steps)


_SETS: dict[str, Callable[[Vec, Vec, Matching], Vec]] = {"and": _and, "or": _or, "unless": _unless}
