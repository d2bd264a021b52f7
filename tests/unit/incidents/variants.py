"""The same incident as other servers would have told it: other labels, another pace, gaps."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]
Points: TypeAlias = list[tuple[float, float]]
_LINE = re.compile(r"(?P<name>[a-zA-Z_:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+) (?P<t>[0-9.]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Story:
    """Series by name and labels, each with its (second, value) pairs."""

    series: Mapping[tuple[str, Labels], Points]

    @classmethod
    def of(cls, text: str) -> Story:
        found: dict[tuple[str, Labels], Points] = {}
        for line in text.splitlines():
            match = _LINE.fullmatch(line)
            if match:
                labels = tuple(_LABEL.findall(match["labels"] or ""))
                point = (float(match["t"]), float(match["value"]))
                found.setdefault((match["name"], labels), []).append(point)
        return cls(found)

    @property
    def start_s(self) -> float:
        return min(points[0][0] for points in self.series.values())

    @property
    def end_s(self) -> float:
        return max(points[-1][0] for points in self.series.values())

    def text(self) -> str:
        """Return OpenMetrics text; the series of one metric stand together."""
        lines: list[str] = []
        said = ""
        for (name, labels), points in sorted(self.series.items()):
            if name != said:
                kind = "counter" if name.endswith("_total") else "gauge"
                lines.append(f"# TYPE {name.removesuffix('_total')} {kind}")
                said = name
            shown = ",".join(f'{k}="{v}"' for k, v in labels)
            lines += [f"{name}{{{shown}}} {value!r} {t:.3f}" for t, value in points]
        return "\n".join([*lines, "# EOF", ""])

    def each(self, change: Callable[[str, Labels, Points], tuple[Labels, Points]]) -> Story:
        found: dict[tuple[str, Labels], Points] = {}
        for (name, labels), points in self.series.items():
            new, moved = change(name, labels, points)
            if moved:
                found[name, new] = moved
        return Story(found)


Variant: TypeAlias = Callable[[Story], Story]


def elsewhere(story: Story) -> Story:
    """A fleet's labels, and names that need quoting."""
    def change(name: str, labels: Labels, points: Points) -> tuple[Labels, Points]:
        own = {k: f'a/b \\"{v}\\" é' if k == "model_name" else v for k, v in labels}
        own |= {"cluster": "eu", "pod": "x-0", "instance": "[::1]:8000", "job": "llm"}
        if "engine" in own:
            own["engine"] = str(int(own["engine"]) + 7)
        return tuple(sorted(own.items())), points

    return story.each(change)


def every(seconds: int) -> Variant:
    """Scraped at another pace: the value at each moment is the last that was seen, counters
    between two samples lie on the line between them."""
    def vary(story: Story) -> Story:
        start_s = story.start_s

        def change(name: str, labels: Labels, points: Points) -> tuple[Labels, Points]:
            moments = range(0, int(story.end_s - start_s) + 1, seconds)
            at = (_at(points, start_s + t, name.endswith("_total")) for t in moments)
            return labels, [(start_s + t, v) for t, v in zip(moments, at, strict=True)
                            if v is not None]

        return story.each(change)

    return vary


def _at(points: Points, t: float, grows: bool) -> float | None:
    before = [p for p in points if p[0] <= t]
    after = [p for p in points if p[0] > t]
    if not before or t - before[-1][0] > 60:
        return None
    last = before[-1]
    if not after or not grows or after[0][1] < last[1] or after[0][0] - last[0] > 60:
        return last[1] if after or t - last[0] < 10 else None
    share = (t - last[0]) / (after[0][0] - last[0])
    return last[1] + (after[0][1] - last[1]) * share


def unsteady(story: Story) -> Story:
    """Each scrape comes up to two seconds late."""
    dice = random.Random(1)
    moments = sorted({t for points in story.series.values() for t, _ in points})
    late = {t: t + round(dice.uniform(0, 2), 3) for t in moments}
    return story.each(lambda _, labels, points: (labels, [(late[t], v) for t, v in points]))


def lossy(story: Story) -> Story:
    """One scrape in eight fails."""
    dice = random.Random(2)
    moments = sorted({t for points in story.series.values() for t, _ in points})
    lost = {t for t in moments[1:] if dice.random() < 0.125}
    return story.each(
        lambda _, labels, points: (labels, [p for p in points if p[0] not in lost]))


def beside(
    healthy: Callable[[str, float], float],
    told_by: str = "instance", names: tuple[str, str] = ("10.0.0.1:8000", "10.0.0.2:8000"),
) -> Variant:
    """A second replica that is well; the label `told_by` tells which is which."""
    def vary(story: Story) -> Story:
        start_s = story.start_s
        found: dict[tuple[str, Labels], Points] = {}
        for (name, labels), points in story.series.items():
            well = [(t, healthy(name, t - start_s)) for t, _ in points]
            for replica, own in zip(names, (points, well), strict=True):
                found[name, tuple(sorted({**dict(labels), told_by: replica}.items()))] = own
        return Story(found)

    return vary


def late(story: Story) -> Story:
    """Some of the series begin 20 s later."""
    def change(name: str, labels: Labels, points: Points) -> tuple[Labels, Points]:
        return labels, [p for p in points if p[0] >= story.start_s + 20 * (len(name) % 2)]

    return story.each(change)
