"""The order in which `serve` ends, and who listens to it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from resilience.app import serve as module
from resilience.app.prepare import Report, Settings
from resilience.app.serve import serve
from resilience.errors import CoreError


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    """Outside of `serve` a signal is an error here, and not the end of the test run."""
    def handle(number: int, frame: object) -> None:
        raise AssertionError("a signal reached the handlers from before")

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {n: signal.signal(n, handle) for n in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _prepare(ended: list[str], begin: Callable[[], None]) -> Callable[..., Any]:
    def prepare(settings: Settings, stack: ExitStack, say: Any) -> Any:
        def end() -> None:
            signal.raise_signal(signal.SIGTERM)
            ended.append("in order")

        stack.callback(end)
        begin()
        raise AssertionError("not reached")

    return prepare


SETTINGS = Settings(rules=Path("rules"), attach="http://127.0.0.1:1")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_disturb_the_ordered_end(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(module, "prepare", _prepare(ended, lambda: signal.raise_signal(number)))
    said: list[str] = []
    assert serve(SETTINGS, Report(said.append)) == 0
    assert (ended, said) == (["in order"], ["stopping"])


def test_a_signal_does_not_disturb_the_end_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise CoreError("the server ended")

    ended: list[str] = []
    monkeypatch.setattr(module, "prepare", _prepare(ended, fail))
    with pytest.raises(CoreError, match="the server ended"):
        serve(SETTINGS, Report())
    assert ended == ["in order"]


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("I/O operation on closed file")])
def test_a_reader_that_is_gone_ends_nothing(error: Exception) -> None:
    def gone(_: object) -> None:
        raise error

    report = Report(gone, gone).for_ever()
    report.say("text")
    report.event({"event": "log"})
