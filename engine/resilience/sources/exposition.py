"""A fast reader of the two text formats in which metrics are exposed and exported.

It takes what Prometheus' own parser takes (UTF-8 names in quotes, escapes, odd blanks, a missing
comma between labels) and refuses the rest with the number of the line. Exemplars and metadata are
skipped. The texts of series are remembered, so that a sample of a known series costs one look-up
and one number.

Timestamps are whole milliseconds in Prometheus text. In OpenMetrics they are seconds, cut (not
rounded) to milliseconds, as Prometheus does: both sides then see a sample at the same instant.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from resilience.samples import FIRST_MS, LAST_MS, Labels

SERIES_MAX = 1_000_000
LINE_MAX = 1_000_000
NO_TIME = -(2**63)

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_SERIES = re.compile(rf"\s*[^\s{{}}\"#]*\s*(?:\{{(?:[^\"}}]|{_QUOTED})*\}})?")
_LABEL = re.compile(rf"\s*(?:([a-zA-Z_][a-zA-Z0-9_]*)|({_QUOTED}))\s*(?:=\s*({_QUOTED}))?\s*(,?)")
_ESCAPE = re.compile(r"\\([\\n\"])")
_ESCAPED = {"\\": "\\", "n": "\n", '"': '"'}
_BLANKS = " \t\r"


class ExpositionError(ValueError):
    """A text cannot be read; `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


@dataclass(slots=True)
class Samples:
    """Parallel columns, one entry a sample: index into the reader's `labels`, value, time.

    The time is epoch ms, or NO_TIME where the text gives none.
    """

    series: array[int] = field(default_factory=lambda: array("l"))
    values: array[float] = field(default_factory=lambda: array("d"))
    times_ms: array[int] = field(default_factory=lambda: array("q"))


class Reader:
    """Reads texts of one dialect; `labels` are all series seen so far, the name as `__name__`.

    Raises ExpositionError. A reader whose text failed can be used for the next text.
    """

    def __init__(self, *, openmetrics: bool = False, series_max: int = SERIES_MAX) -> None:
        self.labels: list[Labels] = []
        self._openmetrics = openmetrics
        self._series_max = series_max
        self._known: dict[str, int] = {}
        self._by_labels: dict[Labels, int] = {}

    def read(self, text: str) -> Samples:
        """Return the samples of one whole text; OpenMetrics must end with `# EOF`."""
        samples = Samples()
        ended = self.feed(text, samples)
        if self._openmetrics and not ended:
            raise ExpositionError(
                text.count("\n") + 1,
                "the text does not end with `# EOF`: it was cut, or is not OpenMetrics",
            )
        return samples

    def feed(self, text: str, into: Samples, *, first_line: int = 1, ended: bool = False) -> bool:
        """Append the samples of whole lines to `into`; return whether `# EOF` was seen."""
        known, series, values, times = self._known, into.series, into.values, into.times_ms
        for number, line in enumerate(text.split("\n"), first_line):
            key, rest = _split(line, number)
            if not key:
                ended = self._comment(line, number, ended)
                continue
            index = known.get(key)
            if index is None or ended:
                index = self._index(key, number, ended)
            series.append(index)
            values.append(_value(rest[0], number))
            times.append(self._time(rest[1], number) if len(rest) == 2 else NO_TIME)
        return ended

    def _comment(self, line: str, number: int, ended: bool) -> bool:
        if ended and self._openmetrics and line.strip():
            raise ExpositionError(number, "text after `# EOF`")
        return ended or line.rstrip() == "# EOF"

    def _index(self, key: str, number: int, ended: bool) -> int:
        if ended and self._openmetrics:
            raise ExpositionError(number, "text after `# EOF`")
        return self.index_of(key, number)

    def index_of(self, key: str, number: int = 1) -> int:
        """Return the place in `labels` of the series whose text is `key`, a new one if need be."""
        known = self._known.get(key)
        if known is not None:
            return known
        labels = parse_series(key, number)
        index = self._by_labels.get(labels)
        if index is None:
            if len(self.labels) >= self._series_max:
                raise ExpositionError(number, f"more than {self._series_max} series")
            index = self._by_labels[labels] = len(self.labels)
            self.labels.append(labels)
        if len(self._known) < 2 * self._series_max:
            self._known[key] = index
        return index

    def _time(self, text: str, number: int) -> int:
        try:
            if "_" in text or not text.isascii():
                raise ValueError
            t_ms = int(float(text) * 1000) if self._openmetrics else int(text)
        except (ValueError, OverflowError):
            unit = "seconds" if self._openmetrics else "whole milliseconds"
            raise ExpositionError(number, f"`{_cut(text)}` is not a time in {unit}") from None
        if FIRST_MS <= t_ms <= LAST_MS:
            return t_ms
        raise ExpositionError(number, f"`{_cut(text)}` is a time beyond the years 1 to 9999: "
                              f"{'seconds' if self._openmetrics else 'milliseconds'} are meant")


def _split(line: str, number: int) -> tuple[str, list[str]]:
    """Return the text of the series and the one or two words behind it; ("", []) for no sample."""
    if "#" in line:
        if line.lstrip(_BLANKS).startswith("#"):
            return "", []
        return _split_exemplar(line, number)
    brace = line.rfind("}") + 1
    if brace:
        key, rest = line[:brace], line[brace:].split()
    else:
        rest = line.split()
        if not rest:
            return "", []
        key = rest.pop(0)
        if "{" in line:
            raise ExpositionError(number, "the label set is not closed on this line")
    if len(rest) == 1 or len(rest) == 2:
        return key, rest
    raise _wrong_words(key, rest, number)


def _split_exemplar(line: str, number: int) -> tuple[str, list[str]]:
    """Split a line that holds a `#`: in a label's value, or before an exemplar."""
    match = _SERIES.match(line)
    end = match.end() if match else 0
    key, rest = line[:end].strip(_BLANKS), line[end:].partition("#")[0].split()
    if key and (len(rest) == 1 or len(rest) == 2):
        return key, rest
    raise _wrong_words(key, rest, number)


def _wrong_words(key: str, rest: list[str], number: int) -> ExpositionError:
    if key.count("{") > key.count("}"):
        return ExpositionError(number, "the label set is not closed on this line")
    if not rest:
        message = "`...` stands for left-out lines" if key == "..." else "no value after the series"
        return ExpositionError(number, f"{message}: `{_cut(key)}`" if key != "..." else message)
    return ExpositionError(number, f"`{_cut(rest[-1])}`: expected a value and at most one time")


def _value(text: str, number: int) -> float:
    try:
        if "_" in text or not text.isascii():
            raise ValueError
        return float(text)
    except ValueError:
        raise ExpositionError(number, f"`{_cut(text)}` is not a number") from None


def parse_series(text: str, number: int = 1) -> Labels:
    """Return the sorted labels of `name{label="value"}` or `{"name",label="value"}`."""
    if len(text) > LINE_MAX:
        raise ExpositionError(number, f"the series is longer than {LINE_MAX} characters")
    text = text.strip(_BLANKS)
    match = _NAME.match(text)
    name = match.group() if match else ""
    inside = text[len(name) :].lstrip(_BLANKS)
    pairs = [("__name__", name)] if name else []
    if inside:
        if not inside.startswith("{") or not inside.endswith("}"):
            raise ExpositionError(number, _not_a_series(text, inside))
        pairs.extend(_pairs(inside, number))
    return _checked(pairs, number)


def _not_a_series(text: str, inside: str) -> str:
    if inside.startswith("{"):
        return "the label set is not closed on this line"
    return f"`{_cut(text)}` is not the name of a metric"


def _pairs(inside: str, number: int) -> Iterator[tuple[str, str]]:
    """Yield the labels of a brace expression; a lone quoted word is the metric's name."""
    at, end = 1, len(inside) - 1
    while at < end:
        if not inside[at:end].strip(_BLANKS):
            return
        match = _LABEL.match(inside, at, end)
        if match is None:
            raise ExpositionError(number, f"`{_cut(inside[at:end])}` is not a label")
        bare, quoted, value, _ = match.groups()
        name = bare or _unquote(quoted)
        if value is None:
            if bare:
                raise ExpositionError(number, f'label `{bare}` needs a value: `{bare}="…"`')
            yield "__name__", name
        else:
            yield name, _unquote(value)
        at = match.end()


def _checked(pairs: list[tuple[str, str]], number: int) -> Labels:
    names = {name for name, _ in pairs}
    if "__name__" not in names:
        raise ExpositionError(number, "the series has no metric name")
    if len(names) < len(pairs):
        twice = next(n for n in names if sum(n == m for m, _ in pairs) > 1)
        what = "a metric name" if twice == "__name__" else f"label `{twice}`"
        raise ExpositionError(number, f"{what} is given twice")
    return tuple(sorted(pair for pair in pairs if pair[1]))


def _unquote(text: str) -> str:
    return _ESCAPE.sub(lambda m: _ESCAPED[m.group(1)], text[1:-1])


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= 60 else text[:57] + "…"


def decode(body: bytes, first_line: int = 1) -> str:
    """Return `body` as text; raises ExpositionError with the line of the first bad byte."""
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + body.count(b"\n", 0, error.start)
        raise ExpositionError(line, "not UTF-8 text") from None
