"""The simulated core's scripted faults, and the kinds that the registry lists."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml

from resilience.cores.kind import CoreKind
from resilience.cores.simulated.core import Fault, SimulatedCore
from resilience.errors import CoreError, CoreUnreachableError, UsageError
from resilience.model import Claim, Desired
from resilience.registry import catalogue

MakeClaim = Callable[..., Claim]
RUNNING = "cache.max_running"


def put(core: SimulatedCore, generation: int, *claims: Claim) -> None:
    core.put_desired(Desired(1, generation, claims), deadline_ms=100)


def test_a_failing_call_does_nothing(claim: MakeClaim) -> None:
    core = SimulatedCore()
    core.script(Fault("failing"))
    with pytest.raises(CoreError, match="failed in `put_desired`"):
        put(core, 1, claim(RUNNING, 2))
    assert core.value(RUNNING) == 32
    put(core, 1, claim(RUNNING, 2))
    assert core.value(RUNNING) == 2


def test_a_lost_reply_has_done_its_work(claim: MakeClaim) -> None:
    core = SimulatedCore()
    core.script(Fault("lost_reply"))
    with pytest.raises(CoreUnreachableError):
        put(core, 1, claim(RUNNING, 2))
    assert core.value(RUNNING) == 2


def test_an_impulse_whose_reply_was_lost_is_not_repeated() -> None:
    core = SimulatedCore()
    core.script(Fault("lost_reply"))
    with pytest.raises(CoreUnreachableError):
        core.impulse("k", "reset_prefix_cache", None, epoch=1, deadline_ms=100)
    core.impulse("k", "reset_prefix_cache", None, epoch=1, deadline_ms=100)
    assert len(core.done) == 1


def test_a_slow_call_is_late_only_past_its_deadline(claim: MakeClaim) -> None:
    core = SimulatedCore()
    core.script(Fault("slow", 100), None, Fault("slow", 101))
    put(core, 1, claim(RUNNING, 2))
    put(core, 2, claim(RUNNING, 3))
    with pytest.raises(CoreUnreachableError, match="100 ms"):
        put(core, 3, claim(RUNNING, 4))
    assert core.value(RUNNING) == 4 and list(core.calls) == ["put_desired"] * 3


def test_a_restart_forgets_everything(claim: MakeClaim) -> None:
    core = SimulatedCore()
    put(core, 5, claim(RUNNING, 2))
    core.impulse("k", "reset_prefix_cache", None, epoch=1, deadline_ms=100)
    core.restart()
    assert core.actual(deadline_ms=100).epoch == 0 and core.value(RUNNING) == 32
    core.impulse("k", "reset_prefix_cache", None, epoch=1, deadline_ms=100)
    assert len(core.done) == 2


@pytest.mark.parametrize("kind", catalogue("cores").values(), ids=lambda kind: str(kind.name))
def test_every_kind_of_core_runs_its_example(
    kind: CoreKind, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    params = kind.params(**yaml.safe_load(kind.example))
    if hasattr(params, "token_file"):
        with pytest.raises(UsageError, match="cannot read the token file `core.token`"):
            kind.connect(params)
        with open("core.token", "w", encoding="ascii") as file:
            file.write("t" * 32)
    core = kind.connect(params)
    assert kind.doc.endswith(".") and hasattr(core, "put_desired")
