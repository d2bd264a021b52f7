"""Our answers against Prometheus': recorded ones always, a real server's where there is one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from resilience.errors import PromQLError  # noqa: E402
from resilience.promql import kernel  # noqa: E402
from resilience.promql.evaluate import instant  # noqa: E402
from resilience.promql.parser import parse  # noqa: E402
from tests.differential import cases, compare, data, generator, reference  # noqa: E402

EXAMPLES = int(os.environ.get("RESILIENCE_DIFFERENTIAL_EXAMPLES", "300"))


def _differing(case: cases.Case, answers: dict[str, compare.Points | str]) -> list[str]:
    store = data.store_of(case.series).view()
    found: list[str] = []
    for expr, wanted in answers.items():
        got = compare.ours(expr, store, case.start_ms, case.end_ms, case.step_ms)
        why = cases.unexplained(expr, got, wanted)
        if why is not None:
            found.append(f"{expr}\n    {why}")
    return found


@pytest.fixture(params=["kernel", "numpy"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways to compute, if the optional kernel is built; else one."""
    if request.param == "kernel" and kernel.COMPILED is None:
        pytest.skip("the optional kernel is not built")
    kernel.use(request.param == "kernel")
    yield request.param
    kernel.use(True)


@pytest.mark.usefixtures("engine")
def test_own_expressions_equal_the_recorded_answers() -> None:
    case = cases.own()
    answers = cases.read_golden(case)
    assert len(answers) == len(set(case.expressions))
    assert _differing(case, answers) == []


@pytest.mark.usefixtures("engine")
def test_corpus_expressions_equal_the_recorded_answers() -> None:
    case = cases.corpus()
    if case is None:
        pytest.skip("no corpus: set RESILIENCE_CORPUS")
    answers = cases.read_golden(case)
    if len(answers) < len(case.expressions) / 2:
        pytest.skip("the corpus is another one than the recorded answers are for")
    assert _differing(case, answers) == []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[reference.Reference]:
    binary = reference.find_binary()
    if binary is None:
        pytest.skip("no Prometheus 3.5: set RESILIENCE_PROMETHEUS to its binary")
    with reference.running(binary, tmp_path_factory.mktemp("prometheus")) as running:
        running.write(cases.own().series)
        yield running


@pytest.fixture(scope="module")
def store() -> Any:
    return data.store_of(cases.own().series).view()


@pytest.mark.live
@settings(
    max_examples=EXAMPLES, derandomize=True,
    suppress_health_check=(HealthCheck.function_scoped_fixture, HealthCheck.too_slow),
)
@given(draw=st.data())
def test_random_expressions_equal_a_real_prometheus(
    server: reference.Reference, store: Any, draw: Any
) -> None:
    expr = generator.expression(lambda options: draw.draw(st.sampled_from(options)))
    span = (data.START_MS + 900_000, data.START_MS + 3_500_000, 100_000)
    wanted = compare.theirs(server.query_range(expr, *span))
    got = compare.ours(expr, store, *span)
    why = cases.unexplained(expr, got, wanted)
    assert why is None, f"{expr}\n{why}"


@pytest.mark.live
def test_instant_answers_equal_a_real_prometheus(server: reference.Reference, store: Any) -> None:
    case = cases.own()
    t_ms = data.START_MS + 1_234_567
    for expr in case.expressions[:150]:
        wanted = compare.theirs_instant(server.query(expr, t_ms))
        try:
            result = instant([parse(expr, experimental=True)], store, t_ms)[0]
        except PromQLError as error:
            result = compare.failed(error.message)
        why = compare.instant_difference(result, wanted)
        if why is not None and result.kind == "vector":
            why = cases.unexplained(expr, *compare.as_points(result, wanted, t_ms))
        assert why is None, f"{expr}\n{why}"
