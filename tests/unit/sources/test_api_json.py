"""The JSON of Prometheus' HTTP API, both directions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from resilience.model import QueryResult, RangeSample, Sample
from resilience.sources.api_json import (
    ApiError,
    query_result,
    result_data,
    value_text,
    warnings_of,
)


def answer(kind: str, result: Any, **more: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": result}, **more}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (5.0, "5"),
        (0.1, "0.1"),
        (1e-6, "0.000001"),
        (1e-7, "1e-07"),
        (1.5e16, "15000000000000000"),
        (1e21, "1e+21"),
        (-1.5e300, "-1.5e+300"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_values_are_written_as_prometheus_writes_them(value: float, text: str) -> None:
    assert value_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.0, "2"), (-0.0, "-0"), (1e-7, "0.0000001"), (1e21, "1" + "0" * 21),
     (1.5e22, "15" + "0" * 21), (math.nan, "NaN"), (-math.inf, "-Inf")],
)
def test_scalars_are_written_without_an_exponent(value: float, text: str) -> None:
    data = result_data(QueryResult("s", "scalar", (Sample((), value),)), 1_000)
    assert data["result"] == [1, text]


def test_every_type_comes_back_as_it_went() -> None:
    results = [
        QueryResult("v", "vector", (Sample((("a", "1"),), 1.5), Sample((), math.inf))),
        QueryResult("s", "scalar", (Sample((), 2.0),)),
        QueryResult("m", "matrix", ranges=(RangeSample((("a", "1"),), (1000, 1500), (1.0, 2.0)),)),
        QueryResult("t", "string", text="x"),
    ]
    for result in results:
        body = {"status": "success", "data": result_data(result, 1_500)}
        assert query_result(result.expr, body) == result


def test_a_scalar_and_a_vector_look_exactly_like_the_api() -> None:
    assert result_data(QueryResult("s", "scalar", (Sample((), 2.0),)), 1_000) == {
        "resultType": "scalar",
        "result": [1, "2"],
    }
    vector = QueryResult("v", "vector", (Sample((("__name__", "a"),), 0.5),))
    assert result_data(vector, 1_250) == {
        "resultType": "vector",
        "result": [{"metric": {"__name__": "a"}, "value": [1.25, "0.5"]}],
    }


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"status": "error", "errorType": "bad_data", "error": "no"}, "bad_data: no"),
        ({"status": "error"}, "no reason given"),
        ({"status": "success"}, "resultType"),
        ({"status": "success", "data": {"resultType": "", "result": None}}, "resultType"),
        (answer("vector", None), "no list"),
        (answer("vector", [{"metric": {}}]), "malformed"),
        (answer("vector", [{"metric": {}, "value": [1, "1"]}] * 2), "a series twice"),
        (answer("vector", [{"metric": {}, "value": [1, "x"]}]), "`x` is not the value"),
        (answer("vector", [{"metric": {}, "value": [1, "1_0"]}]), "not the value"),
        (answer("vector", [{"metric": {}, "histogram": [1, {}]}]), "native histogram"),
        (answer("matrix", [{"metric": {}, "values": [["1", "1"]]}]), "not a time"),
        (answer("matrix", [{"metric": {}, "values": [[1e300, "1"]]}]), "beyond the years"),
        (answer("matrix", [{"metric": {}, "values": [[10**400, "1"]]}]), "beyond the years"),
        (answer("matrix", [{"metric": {}, "values": [[math.inf, "1"]]}]), "not finite"),
        (answer("matrix", [{"metric": {}, "values": [], "histograms": [[]]}]), "native histograms"),
        (answer("scalar", []), "malformed"),
    ],
)
def test_an_odd_answer_is_an_error_never_an_empty_result(body: Any, reason: str) -> None:
    with pytest.raises(ApiError, match=reason):
        query_result("x", body)


def test_partial_answers_warn_and_remarks_do_not() -> None:
    body = answer("vector", [], warnings=["store down", "PromQL info: not a counter"])
    assert warnings_of(body) == ("store down",)
    assert "partial" in warnings_of(answer("vector", [], isPartial=True))[0]
    assert warnings_of(answer("vector", [], isPartial=False, warnings=None)) == ()
