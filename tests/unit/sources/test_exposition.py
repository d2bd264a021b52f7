"""The text formats: what is read, what is refused, and on which line."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.model import labels_of
from resilience.sources.exposition import NO_TIME, ExpositionError, Reader, decode, parse_series

CORPUS = Path(
    os.environ.get("RESILIENCE_CORPUS", Path(__file__).resolve().parents[4] / "shared" / "corpus")
)


def read(text: str, *, openmetrics: bool = False) -> list[tuple[dict[str, str], float, int]]:
    reader = Reader(openmetrics=openmetrics)
    samples = reader.read(text)
    return [
        (dict(reader.labels[index]), value, time)
        for index, value, time in zip(samples.series, samples.values, samples.times_ms, strict=True)
    ]


@pytest.mark.parametrize(
    ("line", "labels", "value", "time"),
    [
        ("a 1", {"__name__": "a"}, 1.0, NO_TIME),
        ("a  -1e3\t123", {"__name__": "a"}, -1000.0, 123),
        ("a:b_c{} 1", {"__name__": "a:b_c"}, 1.0, NO_TIME),
        ('  a { x = "1" , } 2', {"__name__": "a", "x": "1"}, 2.0, NO_TIME),
        ('a{x="1" y="2"} 2', {"__name__": "a", "x": "1", "y": "2"}, 2.0, NO_TIME),
        (r'a{x="\\n\n\"\t"} 2', {"__name__": "a", "x": '\\n\n"\\t'}, 2.0, NO_TIME),
        ('a{x="} # {"} 2', {"__name__": "a", "x": "} # {"}, 2.0, NO_TIME),
        ('a{x="1,2 = 3"} 2 7', {"__name__": "a", "x": "1,2 = 3"}, 2.0, 7),
        ('{"p.q r",x="1"} 2', {"__name__": "p.q r", "x": "1"}, 2.0, NO_TIME),
        ('{x="1","p.q"} 2', {"__name__": "p.q", "x": "1"}, 2.0, NO_TIME),
        ('{"a","l.m"="1"} 2', {"__name__": "a", "l.m": "1"}, 2.0, NO_TIME),
        ('a{x=""} 2', {"__name__": "a"}, 2.0, NO_TIME),
        ("a +Inf", {"__name__": "a"}, math.inf, NO_TIME),
        ("a 3.9e+010\r", {"__name__": "a"}, 3.9e10, NO_TIME),
        ('a_bucket{le="1"} 5 9 # {t="x}"} 0.5 1', {"__name__": "a_bucket", "le": "1"}, 5.0, 9),
        ("a 5 # {} 0.5", {"__name__": "a"}, 5.0, NO_TIME),
        ('a{u="é"} 1', {"__name__": "a", "u": "é"}, 1.0, NO_TIME),
    ],
)
def test_a_sample_line(line: str, labels: dict[str, str], value: float, time: int) -> None:
    assert read(line) == [(labels, value, time)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a", "no value"),
        ("...", "left-out lines"),
        ("a 1 2 3", "at most one time"),
        ("a one", "`one` is not a number"),
        ("a 1_000", "not a number"),
        ("a ١", "not a number"),
        ("a 0x10", "not a number"),
        ("a 1 1.5", "whole milliseconds"),
        ("a 1 1_0", "whole milliseconds"),
        ("a 1 99999999999999999999", "beyond the years 1 to 9999: milliseconds are meant"),
        ("a 1 253402300800000", "beyond the years"),
        ("a 1 -99999999999999", "beyond the years"),
        ("a {", "not closed on this line"),
        ('a{x="1" 1', "not closed on this line"),
        ('a{x="1",...} 1', "`...` is not a label"),
        ("a{x=1} 1", "label `x` needs a value"),
        ('a{x="1",x="2"} 1', "label `x` is given twice"),
        ('a{"b"} 1', "a metric name is given twice"),
        ('{x="1"} 1', "no metric name"),
        ("{} 1", "no metric name"),
        ("9a 1", "`9a` is not the name of a metric"),
        ('a b{x="1"} 1', "not the name of a metric"),
    ],
)
def test_a_bad_line_is_named(line: str, reason: str) -> None:
    with pytest.raises(ExpositionError) as caught:
        read(f"# TYPE a gauge\n\ngood 1\n{line}\n")
    assert caught.value.line == 4
    assert reason in caught.value.message


def test_openmetrics_times_are_seconds_cut_as_prometheus_cuts_them() -> None:
    assert [t for _, _, t in read("a 1 1.5\na 2 1764430000.123\n# EOF", openmetrics=True)] == [
        1500,
        int(1764430000.123 * 1000),
    ]


@pytest.mark.parametrize("text", ["a 1\n", "", "a 1\n# EOF\na 2\n", "a 1\n# EOF\nb 2\n"])
def test_openmetrics_ends_with_its_mark_and_nothing_behind(text: str) -> None:
    with pytest.raises(ExpositionError, match="EOF"):
        read(text, openmetrics=True)


@pytest.mark.parametrize("time", ["NaN", "Inf", "1e999", "1_0", "1700000000000"])
def test_openmetrics_refuses_a_time_that_is_none(time: str) -> None:
    with pytest.raises(ExpositionError, match="seconds"):
        read(f"a 1 {time}\n# EOF", openmetrics=True)


def test_a_reader_keeps_its_series_over_texts() -> None:
    reader = Reader()
    reader.read("a 1\nb 1\n")
    assert list(reader.read("b 2\na 2\nc 1\n").series) == [1, 0, 2]
    assert [dict(labels)["__name__"] for labels in reader.labels] == ["a", "b", "c"]


def test_two_spellings_are_one_series() -> None:
    reader = Reader()
    assert list(reader.read('a{x="1",y="2"} 1\na{ y="2",x="1" } 2\n').series) == [0, 0]


def test_too_many_series_are_refused() -> None:
    with pytest.raises(ExpositionError, match="more than 2 series"):
        Reader(series_max=2).read("a 1\nb 1\nc 1\n")


def test_bytes_that_are_no_text_name_their_line() -> None:
    with pytest.raises(ExpositionError) as caught:
        decode(b"a 1\nb\xff 2\n")
    assert caught.value.line == 2


NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)


@given(NAMES, st.dictionaries(NAMES, st.text(min_size=1, max_size=8), max_size=4))
def test_any_label_value_survives_its_escapes(name: str, labels: dict[str, str]) -> None:
    def quote(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    inside = ",".join(f'{k}="{quote(v)}"' for k, v in labels.items())
    text = f"{name}{{{inside}}}"
    if "__name__" not in labels:
        assert parse_series(text) == labels_of({"__name__": name, **labels})


@given(st.text(max_size=60))
def test_no_text_crashes_the_reader(text: str) -> None:
    for openmetrics in (False, True):
        try:
            Reader(openmetrics=openmetrics).read(text)
        except ExpositionError as error:
            assert 1 <= error.line <= text.count("\n") + 1


REFUSED = {
    "03_triton_vllm_backend_readme_elided.txt": 14,
    "09_vllm_cache_config_elided_label.txt": 5,
    "31_litellm_pretty_printed_multiline.txt": 3,
}


def test_every_corpus_text_loads_or_names_its_line() -> None:
    files = sorted((CORPUS / "metrics").glob("*.txt"))
    if not files:
        pytest.skip(f"no exposition texts in {CORPUS}: set RESILIENCE_CORPUS")
    refused: dict[str, int] = {}
    for file in files:
        try:
            assert len(Reader().read(decode(file.read_bytes())).values) > 0
        except ExpositionError as error:
            refused[file.name] = error.line
    assert {k: v for k, v in refused.items() if k in REFUSED} == REFUSED
    assert set(refused) <= set(REFUSED)
