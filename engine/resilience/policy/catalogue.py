"""Which metrics serving stacks export, of which type, with which labels, and in which versions.

The data are tables of lines (catalogue_vllm.py, catalogue_stacks.py); a line that begins with a
blank goes on with the one before it:

    NAME TYPE UNIT LABELS [FIRST..LAST] [-> NOW] [? NEEDS | ! NEEDS]

UNIT: fraction (0..1), percent (0..100), seconds, milliseconds, microseconds, bytes, mebibytes,
epoch (seconds since 1970). LABELS stand beside those of the whole stack; `=a,b` are all there are,
`*` is not known. NOW is what to write since. NEEDS: exported only with this; `!` marks what a
default installation lacks. A counter is exported with `_total` (a bare_counter is not), a histogram
as `_bucket`, `_sum` and `_count`, a summary as itself (quantiles), `_sum` and `_count`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Literal, TypeAlias

from resilience.policy import catalogue_stacks as stacks
from resilience.policy import catalogue_vllm as vllm
from resilience.policy.words import nearest

MetricType: TypeAlias = Literal["gauge", "counter", "bare_counter", "histogram", "summary"]
Part: TypeAlias = Literal["value", "bucket", "sum", "count", "created", "base"]
Version: TypeAlias = tuple[int, ...]

SERVERS = {"vllm": "vLLM", "sglang": "SGLang", "triton": "Triton", "tgi": "TGI"}
OLDEST_VLLM, NEWEST_VLLM = "0.5", "0.33"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family. `labels` None: not known, so never judged; otherwise all its own ones,
    without those that scraping adds. `missing_by_default`: most installations lack it."""

    name: str
    type: MetricType
    unit: str = ""
    stack: str = "vllm"
    labels: frozenset[str] | None = None
    since: Version | None = None
    last: Version | None = None
    now: str | None = None
    needs: str | None = None
    missing_by_default: bool = False

    @property
    def grows(self) -> bool:
        """Return whether the values only grow, until the server starts again."""
        return self.type in ("counter", "bare_counter")


@dataclass(frozen=True, slots=True)
class Known:
    """What a series name is: its family and which part of it. `base`: named, never exported.

    `head` is what stands in the place of `vllm:` on a platform that renames (Ray, KServe, NIM).
    `labels` are those that the serving stack itself puts on the series.
    """

    metric: Metric
    part: Part
    head: str = "vllm:"
    labels: frozenset[str] | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        own = self.metric.labels
        of_part = {"le"} if self.part == "bucket" else \
            {"quantile"} if self.metric.type == "summary" else frozenset[str]()
        object.__setattr__(self, "labels", own | of_part if own is not None and of_part else own)

    def successor(self) -> str | None:
        """Return what to write today for a metric that had its time."""
        now = self.metric.now
        if now is None:
            return None
        if "(" not in now:
            now += _SUFFIX_OF.get(self.part, "_total" if self.metric.type == "counter" else "")
        return now.replace("vllm:", self.head)


@dataclass(frozen=True, slots=True)
class Target:
    """The server that policies will meet; `version` None: not known."""

    stack: str
    version: Version | None = None

    def __str__(self) -> str:
        name = SERVERS.get(self.stack, self.stack)
        return f"{name} {'.'.join(map(str, self.version))}" if self.version else name

    def dropped(self, metric: Metric) -> bool:
        """Return whether this version, or the current one, no longer exports `metric`."""
        if metric.last is None:
            return False
        mine = self.version if self.stack == metric.stack else None
        return mine is None or mine[: len(metric.last)] > metric.last

    def lacks_yet(self, metric: Metric) -> bool:
        """Return whether `metric` came after this version."""
        if self.version is None or metric.since is None or self.stack != metric.stack:
            return False
        return self.version < metric.since[: len(self.version)]

    def outside(self) -> str | None:
        """Return what to tell when the catalogue does not reach to this version."""
        if self.version is None or self.stack != "vllm":
            return None
        oldest, newest = _version(OLDEST_VLLM), _version(NEWEST_VLLM)
        mine = self.version[:2] if len(self.version) > 1 else (*self.version, 0)
        if oldest <= mine <= newest:
            return None
        return (f"the metric catalogue knows vLLM {OLDEST_VLLM} to {NEWEST_VLLM}: {self} is judged "
                f"like {OLDEST_VLLM if mine < oldest else NEWEST_VLLM}")


CURRENT = Target("vllm")


def target_of(text: str) -> Target:
    """Return the target of `vllm@0.11` or `sglang`; raises ValueError."""
    match = _TARGET.fullmatch(text.strip().lower())
    if match is None or match[1] not in SERVERS:
        raise ValueError(f"write a serving stack ({', '.join(SERVERS)}) and its version, as in "
                         "`vllm@0.11`")
    return Target(match[1], _version(match[2]) if match[2] else None)


def _version(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


# --- reading the tables ---------------------------------------------------------------------------

_TABLES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("vllm", vllm.LABELS, vllm.TABLE),
    ("gate", stacks.GATE_LABELS, stacks.GATE),
    ("sglang", stacks.SGLANG_LABELS, stacks.SGLANG),
    ("triton", stacks.TRITON_LABELS, stacks.TRITON),
    ("tgi", stacks.TGI_LABELS, stacks.TGI),
    ("dcgm", stacks.DCGM_LABELS, stacks.DCGM),
    ("general", stacks.GENERAL_LABELS, stacks.GENERAL),
)
_TARGET = re.compile(r"([a-z]+)(?:@v?([0-9]+(?:\.[0-9]+){0,3})[a-z0-9.+-]*)?")
_LINE = re.compile(r"(.*?)(?: -> (.*?))?(?: ([?!]) (.*))?")
_SUFFIX_OF: dict[Part, str] = {
    "bucket": "_bucket", "sum": "_sum", "count": "_count", "created": "_created",
}


@cache
def metrics() -> tuple[Metric, ...]:
    """Return every family of the catalogue, in the order of the tables."""
    return tuple(
        _metric(stack, common, line)
        for stack, common, table in _TABLES
        for line in re.sub(r"\n +", " ", table).splitlines() if line
    )


def _metric(stack: str, common: tuple[str, ...], line: str) -> Metric:
    match = _LINE.fullmatch(line)
    assert match is not None
    name, kind, unit, labels, *versions = match[1].split()
    first, _, last = (versions[0] if versions and versions[0] != "-" else "").partition("..")
    return Metric(
        name, _TYPES[kind], "" if unit == "-" else unit, stack, _labels(common, labels),
        _version(first) if first else None, _version(last) if last else None,
        match[2], match[4], match[3] == "!",
    )


_TYPES: dict[str, MetricType] = {
    "gauge": "gauge", "counter": "counter", "bare_counter": "bare_counter",
    "histogram": "histogram", "summary": "summary",
}


def _labels(common: tuple[str, ...], field: str) -> frozenset[str] | None:
    if field == "*":
        return None
    if field.startswith("="):
        return frozenset(filter(None, field[1:].split(",")))
    return frozenset((*common, *(() if field == "-" else field.split(","))))


@cache
def series() -> dict[str, Known]:
    """Return every series name of the catalogue; histogram bases are in it as part `base`."""
    found: dict[str, Known] = {}
    for metric in metrics():
        for name, part in _series_of(metric):
            found[name] = Known(metric, part)
    return found


def _series_of(metric: Metric) -> list[tuple[str, Part]]:
    if metric.type == "counter":
        return [(f"{metric.name}_total", "value"), (f"{metric.name}_created", "created")]
    if metric.type not in ("histogram", "summary"):
        return [(metric.name, "value")]
    parts: list[tuple[str, Part]] = [
        (metric.name + suffix, part) for part, suffix in _SUFFIX_OF.items()
        if metric.type == "histogram" or part != "bucket"
    ]
    return [(metric.name, "base" if metric.type == "histogram" else "value"), *parts]


# --- questions ------------------------------------------------------------------------------------

# What platforms put before the name: Ray Serve, KServe and OpenShift, NVIDIA NIM.
_PLATFORMS = ("ray_", "kserve_", "nim_")


@lru_cache(maxsize=4_096)
def lookup(name: str) -> Known | None:
    """Return what `name` is, also where a platform has renamed it; None when it is not known.

    NIM exports vLLM's metrics without `vllm:`.
    """
    known = series().get(name)
    if known is not None:
        return known
    for platform in _PLATFORMS:
        rest = name.removeprefix(platform)
        if rest != name:
            mark = ":" if rest.startswith("vllm:") else "_"
            found = series().get(rest) or series().get(rest.replace("_", ":", 1))
            return found and Known(found.metric, found.part, f"{platform}vllm{mark}")
    bare = series().get(f"vllm:{name}")
    return bare and Known(bare.metric, bare.part, "")


@cache
def names_of(name: str) -> frozenset[str]:
    """Return every name that the series `name` has had; just `name` if it was never renamed."""
    known = lookup(name)
    current = (known and known.successor()) or name
    old = (n for n, k in series().items() if k.metric.now and k.successor() == current)
    return frozenset({name, current, *old})


def predecessor(known: Known, target: Target | None = None) -> str | None:
    """Return the series that `target`, or any older one, exported in the place of this one."""
    for metric in metrics():
        if metric.now == known.metric.name and not (target and target.dropped(metric)):
            suffix = _SUFFIX_OF.get(known.part, "_total" if metric.type == "counter" else "")
            return (metric.name + suffix).replace("vllm:", known.head)
    return None


@cache
def own_labels() -> frozenset[str]:
    """Return the labels that some metric has by itself, and that scraping does not add."""
    return frozenset(
        label for metric in metrics() if metric.labels is not None and metric.stack != "dcgm"
        for label in metric.labels
    ) | {"le", "quantile"}


@cache
def labels_of_gpus() -> frozenset[str]:
    """Return the labels that dcgm-exporter puts on its metrics, those of the pod included."""
    return frozenset(stacks.DCGM_LABELS)


@lru_cache(maxsize=4_096)
def guess(name: str, exported: frozenset[str] | None = None) -> str | None:
    """Return the series that `name` was meant to be, of `exported` or of the catalogue."""
    options = exported if exported is not None else _current_names()
    for candidate in (
        f"{name}_total", name.removesuffix("_total"), name.replace("_", ":", 1), f"{name}_bucket"
    ):
        if candidate in options and candidate != name:
            return candidate
    return nearest(name, options, 0.75)


@cache
def _current_names() -> frozenset[str]:
    return frozenset(n for n, known in series().items()
                     if known.metric.last is None and known.metric.needs is None)
