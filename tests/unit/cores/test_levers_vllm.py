"""KV limits, draining, static batching, modes and isolation on vLLM's real scheduler, no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resilience.cores.vllm.engine_impulses import reset_prefix_cache
from resilience.cores.vllm.plugin import engine_utility
from resilience.desired import BadDocumentError
from resilience.model import Json

# vLLM's import is full of other people's deprecations.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

MakeRig = Callable[..., Any]
TOTAL = 199
LONGEST = 128  # blocks of a request of the greatest length
SEATS = 8
both_modes = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def fill(rig: Any, count: int = SEATS, prompt: int = 300, outputs: int = 60) -> None:
    """Let `count` sequences of about 20 blocks run, none sharing a prefix."""
    for i in range(count):
        rig.add(f"r{i}", prompt, outputs, salt=500 * i)
    for _ in range(count * prompt // 256 + 3):
        rig.step()


def check(rig: Any, count: int = SEATS, prompt: int = 300, outputs: int = 60) -> None:
    rig.run()
    for i in range(count):
        rig.check_tokens(f"r{i}", prompt, outputs)


@both_modes
def test_the_hard_cap_takes_blocks_out_in_one_step(make_rig: MakeRig, asynchronous: bool) -> None:
    rig = make_rig(asynchronous)
    fill(rig)
    pool = rig.levers.pool
    assert pool.used > LONGEST and len(rig.running()) == SEATS
    rig.hold(kv_blocks=LONGEST)
    rig.step()
    assert pool.usable == LONGEST and pool.used <= LONGEST
    assert len(rig.running()) < SEATS and rig.levers.preempted > 0
    assert rig.scheduler.make_stats().kv_cache_usage == pool.used / LONGEST
    for _ in range(20):
        rig.step()
        assert pool.used <= LONGEST
    rig.hold()
    assert pool.held == 0
    check(rig)
    assert rig.free_blocks() == TOTAL


@both_modes
def test_the_soft_cap_binds_admission_and_not_growth(
    make_rig: MakeRig, asynchronous: bool
) -> None:
    rig = make_rig(asynchronous)
    rig.hold(kv_blocks_soft=60)
    fill(rig, outputs=100)
    assert len(rig.running()) == 3  # three prompts of 19 blocks, and none preempted
    assert rig.levers.preempted == 0
    for _ in range(60):
        rig.step()
    assert rig.levers.pool.used > 60  # what runs still grows
    rig.hold()
    for _ in range(12):
        rig.step()
    assert len(rig.running()) > 3 and rig.scheduler.kv_cache_manager.watermark_blocks == 0
    check(rig, outputs=100)
    assert rig.free_blocks() == TOTAL


@both_modes
def test_one_sequence_always_gets_in_under_the_soft_cap(
    make_rig: MakeRig, asynchronous: bool
) -> None:
    rig = make_rig(asynchronous)
    rig.hold(kv_blocks_soft=1)
    for i in range(3):
        rig.add(f"r{i}", 300, 20, salt=500 * i)
    check(rig, 3, 300, 20)


@both_modes
def test_draining_admits_nobody_and_preempts_nobody(make_rig: MakeRig, asynchronous: bool) -> None:
    rig = make_rig(asynchronous)
    for i in range(10):
        rig.add(f"r{i}", 20, 10 + 5 * i, salt=100 * i)
    for _ in range(5):
        rig.step()
    assert len(rig.running()) == SEATS
    rig.hold(admit_running=2)
    widths = []
    while len(rig.running()) > 2:
        rig.step()
        widths.append(len(rig.running()))
    assert widths == sorted(widths, reverse=True) and rig.levers.preempted == 0
    rig.run()
    for i in range(10):
        rig.check_tokens(f"r{i}", 20, 10 + 5 * i)


@both_modes
def test_a_static_batch_is_not_joined(make_rig: MakeRig, asynchronous: bool) -> None:
    rig = make_rig(asynchronous)
    rig.hold(max_running=4, batching="static")
    for i in range(10):
        rig.add(f"r{i}", 20, 10 + 3 * i, salt=100 * i)
    rig.run()
    batches = [w for w, before in zip(rig.widths, [0, *rig.widths], strict=False) if w > before]
    assert batches == [4, 4, 2]
    for i in range(10):
        rig.check_tokens(f"r{i}", 20, 10 + 3 * i)
    rig.hold()
    assert rig.scheduler.max_num_active_reqs == SEATS


@both_modes
def test_stream_mode_admits_only_who_streams(make_rig: MakeRig, asynchronous: bool) -> None:
    rig = make_rig(asynchronous)
    rig.add("before", 20, 40)
    rig.step()
    rig.hold(mode="stream")
    rig.add("whole", 20, 10, salt=500)
    rig.add("tokens", 20, 10, salt=1000, stream=True)
    for _ in range(20):
        rig.step()
    assert rig.received["whole"] == [] and len(rig.received["tokens"]) == 10
    assert len(rig.received["before"]) > 10  # what was admitted goes on
    rig.hold()
    rig.run()
    for name, outputs in (("before", 40), ("whole", 10), ("tokens", 10)):
        rig.check_tokens(name, 20, outputs)


def test_what_stream_mode_holds_is_admitted_when_its_lease_ends(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.hold(ttl_ms=500, mode="stream")
    rig.add("whole", 20, 5)
    rig.step()
    assert rig.running() == [] and rig.scheduler.has_unfinished_requests()
    rig.clock.now += 500
    rig.run()
    rig.check_tokens("whole", 20, 5)


@both_modes
def test_hybrid_mode_leaves_three_seats_in_ten_to_streams(
    make_rig: MakeRig, asynchronous: bool
) -> None:
    rig = make_rig(asynchronous)
    rig.hold(mode="hybrid")
    for i in range(SEATS):
        rig.add(f"w{i}", 20, 30, salt=100 * i)
    for i in range(3):
        rig.add(f"s{i}", 20, 30, salt=2000 + 100 * i, stream=True)
    for _ in range(4):
        rig.step()
    assert sorted(rig.running()) == ["s0", "s1", "s2", "w0", "w1", "w2", "w3", "w4"]
    rig.run()
    for name in rig.received:
        rig.check_tokens(name, 20, 30)


def test_hybrid_mode_leaves_three_blocks_in_ten_to_streams(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.hold(mode="hybrid")
    for i in range(3):
        rig.add(f"w{i}", 1000, 8, salt=1200 * i)
    for _ in range(8):
        rig.step()
    assert rig.running() == ["w0", "w1"]  # 63 blocks each: a third would pass 70 % of 199
    rig.run()
    for i in range(3):
        rig.check_tokens(f"w{i}", 1000, 8)


@pytest.mark.parametrize("knob", ["kv_blocks", "step_tokens", "max_running", "admit_running"])
def test_a_cap_without_progress_is_refused_and_changes_nothing(
    make_rig: MakeRig, knob: str
) -> None:
    rig = make_rig()
    rig.hold(max_running=3)
    with pytest.raises(BadDocumentError, match="progress|takes 1 to"):
        rig.hold(prefix_enabled=False, **{knob: LONGEST - 1 if knob == "kv_blocks" else 0})
    assert rig.scheduler.max_num_active_reqs == 3 and not rig.levers.prefix_hidden
    assert rig.levers.pool.hard is None


def test_the_cache_can_be_reset_while_blocks_are_taken_out(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.hold(kv_blocks=150)
    rig.add("a", 100, 4)
    rig.run()
    rig.add("b", 100, 4, salt=500)
    rig.step()
    assert rig.levers.pool.held == 49
    rig.run()
    assert reset_prefix_cache(rig.engine, {}) == {"done": True, "how": "reset"}
    rig.add("c", 100, 4)
    rig.step()
    assert rig.hits == 0 and rig.levers.pool.held == 49
    rig.run()
    rig.hold()
    assert rig.free_blocks() == TOTAL


def test_a_pool_that_fails_gives_its_blocks_back(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    rig.hold(kv_blocks=150)
    rig.add("a", 20, 30)
    rig.step()

    def broken(*_: Any) -> None:
        raise RuntimeError("moved")

    monkeypatch.setattr(rig.levers.pool._pool, "get_new_blocks", broken)
    rig.hold(kv_blocks=140)
    rig.levers.before_step()
    assert "cache.kv_blocks" not in rig.levers.knobs
    assert [entry["knob"] for entry in rig.levers.lost] == ["cache.kv_blocks"]
    monkeypatch.undo()
    rig.run()
    rig.check_tokens("a", 20, 30)
    assert rig.free_blocks() == TOTAL


def test_without_prefix_caching_its_lever_and_its_impulse_say_so(make_rig: MakeRig) -> None:
    found = engine_utility(make_rig(caching=False).engine, {"op": "capabilities"})
    reason = "the server runs without prefix caching"
    assert found["dropped"] == [{"knob": "cache.prefix_enabled", "reason": reason}]
    assert found["missing"] == [{"impulse": "reset_prefix_cache", "reason": reason}]


def test_what_the_core_holds_on_itself_is_no_policys(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.hold(max_running=6)
    rig.levers.hold_own("core:memory", {"cache.admit_running": 2}, 1_000, "little memory")
    assert rig.scheduler.max_num_active_reqs == 2
    assert list(rig.levers.effective()) == ["cache.max_running"]
    assert rig.levers.own()[0]["reason"] == "little memory"
    rig.hold()  # a document does not end it
    assert rig.scheduler.max_num_active_reqs == 2
    rig.clock.now += 1_000
    rig.levers.on_request()
    assert rig.scheduler.max_num_active_reqs == SEATS and rig.levers.own() == []


# --- isolation: P19 ---------------------------------------------------------------------------


def test_a_block_is_reached_by_equal_hash_and_equal_salt_only(make_rig: MakeRig) -> None:
    rig = make_rig()

    def blocks(name: str, **more: Any) -> set[int]:
        rig.add(name, 100, 50, **more)
        rig.step()
        return set(rig.blocks_of(name)[:6])  # its full blocks

    mine = blocks("mine", cache_salt="a")
    assert blocks("same", cache_salt="a") == mine
    assert not blocks("other salt", cache_salt="b") & mine
    assert not blocks("no salt") & mine
    assert not blocks("other prompt", cache_salt="a", salt=1) & mine


def test_nothing_of_a_long_context_reaches_a_later_request(make_rig: MakeRig) -> None:
    """The long one's blocks are used again by others, and its hashes are gone with them."""
    rig = make_rig()
    rig.add("long", 1900, 4, cache_salt="a")
    rig.run()
    for i in range(12):
        rig.add(f"short{i}", 250, 4, salt=2000 + 300 * i % 2900)
    rig.run()
    hits = rig.hits
    rig.add("again", 1900, 4, cache_salt="a")
    rig.step()
    reached = rig.hits - hits
    still = rig.scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block
    assert reached < 1900 and reached % 16 == 0
    rig.run()
    rig.check_tokens("again", 1900, 4)
    assert rig.free_blocks() == TOTAL and len(still) <= TOTAL


# --- watching ---------------------------------------------------------------------------------


def test_residence_and_fragmentation_by_length(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.add("short", 17, 3)
    rig.add("long", 600, 3, salt=1000)
    for _ in range(3):
        rig.step()
    pulse = rig.levers.watch.pulse()
    held = len(rig.blocks_of("long")) * 16
    done = rig.scheduler.requests["long"].num_computed_tokens
    assert pulse["fragmentation"]["2048"] == pytest.approx(1 - done / held)
    assert pulse["fragmentation"]["+Inf"] == 0.0
    rig.clock.now += 700
    rig.run()
    rig.step()  # vLLM tells of an end with the step after it
    residence = rig.levers.watch.pulse()["residence"]
    assert sum(residence["512"]["counts"]) == 1 and residence["512"]["sum_s"] == 0.7
    assert sum(residence["2048"]["counts"]) == 1


def test_the_pulse_counts_progress(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.add("a", 20, 5)
    rig.step()
    first = engine_utility(rig.engine, {"op": "pulse"})
    assert (first["running"], first["tokens"], first["blocks"]["used"]) == (1, 20, 2)
    rig.step()
    assert engine_utility(rig.engine, {"op": "pulse"})["tokens"] == 21


def test_a_watch_that_fails_keeps_nothing_of_the_requests(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.add("a", 20, 5)
    rig.step()
    assert rig.levers.watch._since
    rig.levers.watch.on_step(object(), 0)
    rig.run()
    assert not rig.levers.watch._since and rig.levers.watch.pulse()["watching"] is False


# --- limits flipped at random -------------------------------------------------------------------

LIMITS = st.fixed_dictionaries({}, optional={
    "max_running": st.integers(1, SEATS), "admit_running": st.integers(1, SEATS),
    "step_tokens": st.sampled_from([1, 7, 16, 64, 256]),
    "kv_blocks": st.integers(LONGEST, TOTAL + 10), "kv_blocks_soft": st.integers(1, TOTAL),
    "prefix_enabled": st.booleans(), "batching": st.sampled_from(["dynamic", "static"]),
    "mode": st.sampled_from(["batch", "hybrid", "stream"]),
})
FLIPS = st.lists(
    st.tuples(st.integers(1, 12), LIMITS, st.sampled_from(["", "", "", "forget", "preempt"])),
    min_size=3, max_size=25,
)
REQUESTS = st.lists(
    st.tuples(st.integers(1, 700), st.integers(1, 40), st.booleans(), st.integers(0, 3)),
    min_size=4, max_size=18,
)


@both_modes
@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(flips=FLIPS, requests=REQUESTS)
def test_whatever_is_flipped_no_token_and_no_block_is_lost(
    make_rig: MakeRig, asynchronous: bool, flips: list[Any], requests: list[Any]
) -> None:
    rig = make_rig(asynchronous)
    arriving = [*enumerate(requests)]
    for steps, limits, reset in flips:
        rig.hold(**limits)
        for index, (prompt, outputs, stream, group) in arriving[:3]:
            rig.add(f"r{index}", prompt, outputs, salt=900 * group, stream=stream)
        del arriving[:3]
        if reset:
            reset_prefix_cache(rig.engine, {"preempt": reset == "preempt"})
        for _ in range(steps):
            rig.step()
            within(rig, limits)
    rig.hold()
    for index, (prompt, outputs, stream, group) in arriving:
        rig.add(f"r{index}", prompt, outputs, salt=900 * group, stream=stream)
    rig.run()
    for index, (prompt, outputs, _, _) in enumerate(requests):
        rig.check_tokens(f"r{index}", prompt, outputs)
    assert rig.levers.lost == [] and rig.free_blocks() == TOTAL
    assert rig.scheduler.max_num_active_reqs == SEATS


def within(rig: Any, limits: dict[str, Json]) -> None:
    """After a step every limit that acts at once holds."""
    assert len(rig.running()) <= limits.get("max_running", SEATS)
    assert rig.levers.pool.used <= limits.get("kv_blocks", TOTAL)


@both_modes
@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(limits=LIMITS, requests=REQUESTS)
def test_no_lasting_limit_starves_anybody(
    make_rig: MakeRig, asynchronous: bool, limits: dict[str, Json], requests: list[Any]
) -> None:
    """Only `stream` mode holds requests back for as long as it lasts, and it says so."""
    rig = make_rig(asynchronous)
    rig.hold(**limits)
    for index, (prompt, outputs, stream, group) in enumerate(requests):
        rig.add(f"r{index}", prompt, outputs, salt=900 * group,
                stream=stream or limits.get("mode") == "stream")
    rig.run(steps_max=60_000)
    for index, (prompt, outputs, _, _) in enumerate(requests):
        rig.check_tokens(f"r{index}", prompt, outputs)
