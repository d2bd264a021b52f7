"""The core's health: judged by progress, watched by a monitor, exported, and acted on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from resilience.cores.exposition import CoreCollector
from resilience.cores.health import CODES, Vitals, health_from
from resilience.cores.memory import Free, Memory, free_memory
from resilience.cores.monitor import Monitor
from resilience.cores.vllm.equip import seats
from resilience.cores.vllm.link import UtilityLink
from resilience.cores.vllm.several import together
from resilience.model import HealthSettings, Json

GIB = 1 << 30


def pulse(**more: Json) -> Json:
    body: dict[str, Json] = {
        "running": 0, "waiting": 0, "steps": 0, "tokens": 0, "paused": "UNPAUSED", "seats": 8,
        "preempted": 0, "own": [], "lost": [], "holding": False, "findings": [],
        "longest_sequences": 3,
        "blocks": {"total": 100, "used": 1, "held": 0, "free": 99},
        "fragmentation": {"512": 0.25}, "residence": {"512": {"counts": [1] * 12, "sum_s": 9.0}},
    }
    return body | more


def judge(vitals: Vitals, now_ms: int, in_flight: int = 0, dead: bool = False) -> str:
    return vitals.verdict(now_ms, dead=dead, in_flight=in_flight).status


def test_tokens_that_advance_are_health_and_requests_without_are_not() -> None:
    vitals = Vitals(0)
    for second in range(40):
        vitals.on_pulse(pulse(running=2, tokens=second), second * 1_000)
        assert judge(vitals, second * 1_000, 2) == "well"
    for second in range(40, 55):
        vitals.on_pulse(pulse(running=2, tokens=39), second * 1_000)
    assert judge(vitals, 53_999, 2) == "well" and judge(vitals, 54_000, 2) == "stuck"
    verdict = vitals.verdict(54_000, dead=False, in_flight=2)
    assert verdict.code == 503
    assert verdict.reasons == ("no token for 15000 ms while 2 requests run and 0 wait",)
    vitals.on_pulse(pulse(running=2, tokens=40), 55_000)
    assert judge(vitals, 55_000, 2) == "well"


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        ({}, "well"), ({"waiting": 3}, "stuck"), ({"waiting": 3, "holding": True}, "well"),
        ({"running": 3, "paused": "PAUSED_ALL"}, "degraded"),
    ],
)
def test_idle_paused_and_held_back_are_not_stuck(seen: Json, status: str) -> None:
    vitals = Vitals(0)
    for second in range(20):
        vitals.on_pulse(pulse(**seen), second * 1_000)
    assert judge(vitals, 19_000) == status


def test_silence_is_blind_and_with_requests_under_way_stuck() -> None:
    vitals = Vitals(0)
    vitals.on_pulse(pulse(), 1_000)
    assert judge(vitals, 5_999) == "well"
    assert judge(vitals, 6_000) == "blind"
    assert judge(vitals, 16_000) == "blind" and judge(vitals, 16_000, 1) == "stuck"
    assert judge(vitals, 1_000, dead=True) == "dead"
    assert judge(Vitals(0), 5_000) == "blind"  # it has never answered


def test_what_is_wrong_is_told_and_leaves_it_in_rotation() -> None:
    vitals = Vitals(0)
    lost = {"knob": "cache.mode", "reason": "it moved"}
    own = {"knob": "cache.admit_running", "value": 4, "reason": "little memory"}
    vitals.on_pulse(pulse(lost=[lost], own=[own], findings=["the pool does not fit"]), 0)
    vitals.draining = True
    verdict = vitals.verdict(0, dead=False, in_flight=0)
    assert (verdict.status, verdict.code, len(verdict.reasons)) == ("degraded", 200, 4)
    assert CODES == {"dead": 503, "stuck": 503, "blind": 503, "degraded": 200, "well": 200}


def test_the_limits_of_health_are_the_documents() -> None:
    vitals = Vitals(0, HealthSettings(slow_ms=10, times=1, stuck_ms=2_000, blind_ms=1_000))
    assert vitals.on_allocation({"pool": 0.011}) and not vitals.on_allocation({"pool": 0.009})
    vitals.on_pulse(pulse(running=1), 0)
    assert judge(vitals, 999) == "well" and judge(vitals, 1_000) == "blind"
    vitals.on_pulse(pulse(running=1), 2_000)
    assert judge(vitals, 2_000) == "stuck"


def test_limits_travel_with_the_cores_settings() -> None:
    changed = HealthSettings(every_ms=1_000)
    assert health_from({"health": asdict(changed)}) == changed
    assert health_from({}) == HealthSettings()
    for bad in (3, {"every_ms": 1}, {**asdict(changed), "times": 0}):
        with pytest.raises(ValueError, match="`health` of the core's settings"):
            health_from({"health": bad})


def test_one_engine_that_stands_still_is_not_hidden_by_another() -> None:
    vitals = Vitals(0)
    for second in range(20):
        engines = [pulse(running=1, tokens=second), pulse(running=2, waiting=1, tokens=5)]
        vitals.on_pulse(together("pulse", [{**e, "watching": True} for e in engines]),
                        second * 1_000)
    verdict = vitals.verdict(19_000, dead=False, in_flight=1)
    assert verdict.status == "stuck" and vitals.pulse["running"] == 3
    assert verdict.reasons == (
        "no token for 19000 ms in engine process 1 of 2 while 2 requests run and 1 wait",)


def test_answers_of_several_engines_are_one_answer() -> None:
    lost = {"knob": "cache.mode", "reason": "it moved"}
    first, second = ({**pulse(tokens=n, findings=["tight"], fragmentation={"512": n / 10}),
                      "watching": True, "paused": p}
                     for n, p in ((3, "UNPAUSED"), (4, "PAUSED_ALL")))
    found = together("pulse", [first, {**second, "lost": [lost]}])
    assert (found["tokens"], found["seats"], found["paused"]) == (7, 16, "PAUSED_ALL")
    assert found["blocks"] == {"total": 200, "used": 2, "held": 0, "free": 198}
    assert found["residence"]["512"] == {"counts": [2] * 12, "sum_s": 18.0}
    assert found["fragmentation"] == {"512": 0.4}
    assert (found["findings"], found["lost"]) == (["tight"], [lost])
    assert together("allocate", [{"pool": 1.0}, {"pool": 2.0, "worker0": 3.0}]) == {
        "engine0-pool": 1.0, "engine1-pool": 2.0, "engine1-worker0": 3.0}
    assert together("pulse", [first]) is first
    engines = [{"lost": [], "knobs": {"k": {"fits": n, "grade": "g"}}} for n in (None, 9.0, 7.0)]
    assert together("capabilities", engines)["knobs"] == {"k": {"fits": 7.0, "grade": "g"}}


def test_what_several_engines_did_is_added_up_and_what_they_hold_is_told() -> None:
    did = [{"done": True, "aborted": 2}, {"done": True, "aborted": 1}]
    assert together("impulse", did) == {"done": True, "aborted": 3}
    half = [{"done": True, "how": "reset"}, {"done": False, "how": "evicted"}]
    assert together("impulse", half) == {"done": False, "how": "reset"}
    states = [{**pulse(), "watching": True, "paused": "UNPAUSED", "requests": [name]}
              for name in "ab"]
    found = together("state", states)
    assert [engine["requests"] for engine in found["engines"]] == [["a"], ["b"]]


def test_seats_are_those_of_all_engines() -> None:
    scheduler = SimpleNamespace(max_num_seqs=8)
    assert seats(SimpleNamespace(scheduler_config=scheduler)) == 8
    parallel = SimpleNamespace(data_parallel_size=2)
    both = SimpleNamespace(scheduler_config=scheduler, parallel_config=parallel)
    assert seats(both) == 16


def test_all_engine_processes_are_asked() -> None:
    class Core:
        async def call_utility_all_async(self, name: str, payload: Json) -> list[Json]:
            assert (name, payload) == ("resilience", {"op": "allocate"})
            return [{"pool": 0.1}, {"pool": 0.2}]

    link = UtilityLink(SimpleNamespace(engine_core=Core()))
    assert asyncio.run(link.call({"op": "allocate"}, 1.0)) == {
        "engine0-pool": 0.1, "engine1-pool": 0.2}


def test_all_engine_processes_are_asked_where_vllm_tells_the_first_answer_only() -> None:
    class Core:
        core_engines = (b"0", b"1")

        async def call_utility_async(self, name: str, payload: Json) -> Json:
            return await self._call_utility_async(name, payload, engine=b"0")

        async def _call_utility_async(self, name: str, payload: Json, *, engine: bytes) -> Json:
            assert (name, payload) == ("resilience", {"op": "allocate"})
            return {"pool": float(engine)}

    core = Core()
    link = UtilityLink(SimpleNamespace(engine_core=core))
    both = {"engine0-pool": 0.0, "engine1-pool": 1.0}
    assert asyncio.run(link.call({"op": "allocate"}, 1.0)) == both
    core.core_engines = (b"0",)  # type: ignore[assignment]
    assert asyncio.run(link.call({"op": "allocate"}, 1.0)) == {"pool": 0.0}


class Engine:
    """The engine process behind the link; `silent` makes it hang."""

    def __init__(self) -> None:
        self.calls: list[Json] = []
        self.allocation = {"pool": 0.0, "worker0": 0.01}
        self.silent = False

    async def call(self, payload: Json, timeout_s: float) -> Json:
        self.calls.append(payload)
        if self.silent:
            await asyncio.sleep(timeout_s)
        return {"pulse": pulse(running=1, tokens=len(self.calls)), "allocate": self.allocation,
                }.get(payload["op"], {})

    def asked(self, op: str) -> list[Json]:
        return [c for c in self.calls if c["op"] == op]


def watch(engine: Engine, times: list[int], memory: Callable[[], Free | None]) -> Monitor:
    """Run one round at each of `times` (monotonic ms)."""
    now = [0]
    monitor = Monitor(engine, lambda: now[0], memory=memory)

    async def rounds() -> None:
        for time_ms in times:
            now[0] = time_ms
            await monitor.round()

    asyncio.run(rounds())
    return monitor


def plenty() -> Free:
    return Free(8 * GIB, 16 * GIB)


def test_an_allocation_is_timed_each_thirty_seconds() -> None:
    engine = Engine()
    monitor = watch(engine, [0, 1_000, 29_999, 30_000, 60_000], plenty)
    assert len(engine.asked("allocate")) == 3 and len(engine.asked("pulse")) == 5
    assert monitor.verdict().status == "well" and engine.asked("hold_own") == []


def test_a_slow_allocation_twice_in_a_row_takes_the_conservative_path_and_back() -> None:
    engine = Engine()
    engine.allocation = {"pool": 0.0, "worker0": 0.086}
    monitor = watch(engine, [0], plenty)
    assert monitor.verdict().reasons == ("allocating one block took 86 ms",)
    assert engine.asked("reclaim") == []
    engine = Engine()
    engine.allocation = {"pool": 0.086}
    times = [0, 30_000]
    watch(engine, times, plenty)
    assert len(engine.asked("reclaim")) == 1
    assert engine.asked("hold_own")[0]["values"] == {
        "cache.prefix_enabled": False, "cache.admit_running": 4,
    }


def test_what_is_held_lasts_until_the_next_look_however_rare() -> None:
    engine = Engine()
    engine.allocation = {"pool": 0.086}
    monitor = Monitor(engine, lambda: 0, memory=plenty,
                      settings=HealthSettings(every_ms=100_000, times=1))
    asyncio.run(monitor.round())
    assert engine.asked("hold_own")[0]["ttl_ms"] > 100_000


def test_half_of_the_seats_are_those_of_one_engine() -> None:
    class Two(Engine):
        async def call(self, payload: Json, timeout_s: float) -> Json:
            answer = await super().call(payload, timeout_s)
            return together("pulse", [{**answer, "watching": True}] * 2) \
                if payload["op"] == "pulse" else answer

    engine = Two()
    watch(engine, [0], lambda: Free(GIB // 2, 16 * GIB))
    assert engine.asked("hold_own")[0]["values"] == {"cache.admit_running": 4}


def test_a_fast_allocation_ends_the_conservative_path() -> None:
    engine, now = Engine(), [0]
    monitor = Monitor(engine, lambda: now[0], memory=plenty)

    async def rounds() -> None:
        for step, taken in enumerate((0.09, 0.09, 0.01, 0.01)):
            now[0], engine.allocation = step * 30_000, {"pool": taken}
            await monitor.round()

    asyncio.run(rounds())
    assert [bool(c["values"]) for c in engine.asked("hold_own")] == [True, False]


def test_little_memory_halves_admission_until_there_is_more() -> None:
    engine, free = Engine(), [Free(GIB // 2, 16 * GIB), Free(GIB // 2, 16 * GIB), plenty()]
    watch(engine, [0, 1_000, 2_000], lambda: free.pop(0))
    assert [c["values"] for c in engine.asked("hold_own")] == [
        {"cache.admit_running": 4}, {"cache.admit_running": 4}, {},
    ]
    assert len(engine.asked("reclaim")) == 1


def test_a_silent_engine_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilience.cores.monitor.PULSE_S", 0.01)
    engine = Engine()
    engine.silent = True

    async def rounds() -> Monitor:
        monitor = Monitor(engine, lambda: 0, memory=plenty)
        for _ in range(5):
            await monitor.round()
        monitor.stop()
        return monitor

    assert asyncio.run(rounds()).vitals.pulse is None
    assert len(engine.calls) == 1


def test_an_error_in_a_round_does_not_end_the_watch() -> None:
    rounds: list[int] = []

    class Broken(Engine):
        async def call(self, payload: Json, timeout_s: float) -> Json:
            rounds.append(1)
            raise RuntimeError("moved")

    async def sleep(_: float) -> None:
        return None

    monitor = Monitor(Broken(), lambda: 0, dead=lambda: len(rounds) >= 3, memory=plenty)
    asyncio.run(monitor.run(sleep))
    assert len(rounds) == 3


def test_the_series_of_the_core() -> None:
    vitals = Vitals(0)
    vitals.on_pulse(pulse(tokens=7), 0)
    vitals.on_allocation({"pool": 0.001})
    registry = CollectorRegistry()
    registry.register(CoreCollector(
        vitals, lambda: vitals.verdict(0, dead=False, in_flight=0), plenty
    ))
    text = generate_latest(registry).decode()
    for line in (
        'resilience_core_health{status="well"} 1.0', 'resilience_core_health{status="dead"} 0.0',
        'resilience_core_allocation_seconds{place="pool"} 0.001',
        "resilience_core_scheduled_tokens_total 7.0",
        'resilience_core_kv_blocks{state="free"} 99.0',
        'resilience_core_kv_fragmentation_ratio{length="512"} 0.25',
        'resilience_core_kv_residence_seconds_bucket{le="+Inf",length="512"} 12.0',
        f'resilience_core_memory_bytes{{state="available"}} {float(8 * GIB)!r}',
        "resilience_core_oom_kills_total 0.0",
    ):
        assert line.replace("8589934592.0", "8.589934592e+09") in text


# --- memory that is really free: P20 ------------------------------------------------------------


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_the_smaller_of_machine_and_group_counts(tmp_path: Path) -> None:
    meminfo = write(tmp_path / "proc", meminfo="MemTotal: 1000 kB\nMemAvailable: 600 kB\n")
    group = write(
        tmp_path / "group", memory__max="409600\n", memory__current="307200\n",
        memory__stat="anon 1\ninactive_file 51200\n", memory__events="low 0\noom_kill 3\n",
    )
    assert free_memory(group, meminfo / "meminfo") == Free(153_600, 409_600, 3)
    (group / "memory.max").write_text("max\n")
    assert free_memory(group, meminfo / "meminfo") == Free(614_400, 1_024_000, 3)
    assert free_memory(tmp_path / "none", tmp_path / "none") is None


def test_blocks_that_need_more_than_is_free_are_refused() -> None:
    memory = Memory(blocks=100, block_bytes=GIB // 10, sequence_blocks=10)
    free = Free(6 * GIB, 20 * GIB)  # 5 GiB are to spare: 50 blocks
    assert memory.why_not(50, 0, free) is None and memory.why_not(60, 10, free) is None
    why = memory.why_not(61, 10, free)
    assert why is not None and "60 blocks" in why
    assert "may still grow" in memory.findings(0, free)[0]
    assert memory.findings(60, free) == [] and memory.longest_sequences == 10
    assert Memory(100, 0, 10).why_not(100, 0, free) is None  # not this machine's memory


def test_health_words_over_http(rig: Any) -> None:
    from resilience.cores.health import Verdict

    http = rig.http(peer="10.0.0.9")
    for status, code in CODES.items():
        rig.verdict = Verdict(status, ("why",))
        answer = http.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (code, status)
        assert answer.json()["reasons"] == ["why"]
    rig.service = None
    assert http.get("/health").status_code == 503
