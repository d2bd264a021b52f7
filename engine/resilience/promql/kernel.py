"""The optional compiled kernel (`_kernel.c`, `_labels.c`, `_pages.c`): there or not, results agree.

`build_kernel.py` in bench/promql compiles it in place. Without it NumPy does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from resilience.arrays import np, npt
from resilience.promql.storage import Floats, Ints
from resilience.samples import Labels

FORMAT = 9
Buffer: TypeAlias = bytes | bytearray | memoryview
Numbers: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.uint8]


class Kernel(Protocol):
    """The functions of `_kernel.c`; outputs are the last arguments."""

    def window_sums(
        self, values: Floats, lo: Ints, hi: Ints, sums: Floats, means: Floats, /
    ) -> None: ...
    def window_variance(self, values: Floats, lo: Ints, hi: Ints, out: Floats, /) -> None: ...
    def window_fit(
        self, values: Floats, times: Ints, lo: Ints, hi: Ints, origin: Ints, slope: Floats,
        intercept: Floats, /,
    ) -> None: ...
    def window_quantile(
        self, values: Floats, lo: Ints, hi: Ints, q: Floats, out: Floats, /
    ) -> None: ...
    def bounds(
        self, times: Ints, ends: Ints, range_ms: Ints, lo: Ints, hi: Ints, /
    ) -> None: ...
    def geometry(
        self, times: Ints, lo: Ints, hi: Ints, ends: Ints, range_ms: Ints, start: Floats,
        end: Floats, sampled: Floats, factor: Floats, /,
    ) -> None: ...
    def rates(
        self, values: Floats, lo: Ints, hi: Ints, start: Floats, end: Floats, sampled: Floats,
        factor: Floats, range_s: Floats, out: Floats, /,
    ) -> None: ...
    def group_sums(
        self, values: Floats, rows: Ints, first: Ints, group: Ints, sums: Floats, c: Floats, /
    ) -> None: ...
    def bucket_quantile(
        self, values: Floats, rows: Ints, bounds: Floats, q: Floats, out: Floats, /
    ) -> None: ...
    def lz4(self, source: Buffer, target: Buffer, /) -> None: ...
    def thrift(self, source: Buffer, start: int, /) -> tuple[dict[int, Any], int]: ...
    def hybrid(self, source: Buffer, start: int, width: int, out: Numbers, /) -> int: ...
    def label_sets(
        self, keys: Sequence[str], texts: Sequence[str | None], offsets: Sequence[int],
        names: Sequence[str | None], rows: Sequence[int], /,
    ) -> list[Labels]: ...
    def grouped(
        self, label_sets: Sequence[Labels], names: frozenset[str], among: bool, numbers: Ints, /,
    ) -> dict[Labels, int]: ...
    def joined(self, source: Buffer, out: Ints, /) -> None: ...
    def lists(
        self, page: Buffer, split: bool, count: int, state: Ints, lengths: Ints, starts: Ints,
        gaps: Ints, target: Floats, /,
    ) -> None: ...


def _load() -> Kernel | None:
    try:
        from resilience.promql import _kernel
    except ImportError:
        return None
    # One that was compiled before a change of `_kernel.c` is left alone.
    return _kernel if getattr(_kernel, "FORMAT", 0) == FORMAT else None


COMPILED: Kernel | None = _load()
_active: Kernel | None = COMPILED


def active() -> Kernel | None:
    """Return the kernel, or None where NumPy is to do the work."""
    return _active


def use(compiled: bool) -> None:
    """Switch the kernel on (if it is there) or off, for comparisons."""
    global _active
    _active = COMPILED if compiled else None
