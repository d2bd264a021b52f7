"""Every command that talks to a running engine, against one behind a real socket."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from resilience.cli import record
from resilience.cli.get import ladder_text

kit = sys.modules["cli_rig"]  # loaded by conftest.py

THINGS = (
    "status", "policies", "claims", "decisions", "executions", "udfs", "capabilities", "bundle",
    "ladder",
)


@pytest.mark.parametrize("thing", THINGS)
def test_get_shows_each_thing_to_people_and_programs(fired: Any, cli: Any, thing: str) -> None:
    text = cli("get", thing)
    assert (text.code, text.err) == (0, "")
    assert text.out.strip()
    body = cli("get", thing, "-o", "json").json()
    assert body["version"] == 1


def test_a_rungs_costs_are_shown_whole() -> None:
    rung: dict[str, Any] = {
        "name": "cpu", "kind": "url", "model": "m", "url": None, "throughput": 40.5,
        "p99_ms": 1_500, "quality": 0.715, "context": 512, "tools": False, "running": None,
        "available": None, "claimed_by": [],
    }
    row = ladder_text({"ladder": [rung]}).splitlines()[1]
    assert row.split()[4:8] == ["40.5", "1s500ms", "71.5%", "512"]


def test_get_policies_tells_state_value_and_labels(fired: Any, cli: Any) -> None:
    header, row = cli("get", "policies").out.splitlines()
    assert header.split()[:3] == ["POLICY", "MODE", "STATE"]
    assert row.split()[:3] == ["queue", "enforce", "firing"]
    assert '{model_name="m"}' in row


def test_get_with_a_name_shows_only_that(fired: Any, cli: Any) -> None:
    assert len(cli("get", "policies", "queue", "-o", "json").json()["policies"]) == 1
    assert cli("get", "claims", "nobody", "-o", "json").json()["claims"] == []
    wrong = cli("get", "policies", "nobody")
    assert (wrong.code, wrong.err) == (
        2, "error: no `nobody` in policies; `resilience get policies` lists them\n"
    )
    assert cli("get", "status", "x").code == 2


@pytest.mark.parametrize("name", ["a/b", "a?b", "a b", "%"])
def test_a_strange_name_is_a_policy_that_is_not_there(fired: Any, cli: Any, name: str) -> None:
    for words in (("pause", name, "--reason", "x"), ("resume", name)):
        wrong = cli(*words)
        assert (wrong.code, wrong.err) == (
            1, f"error: no policy `{name}`; `resilience get policies` lists them\n")


@pytest.mark.parametrize("name", ["../status", "x", ""])
def test_what_is_no_id_is_no_decision(cli: Any, name: str) -> None:
    for words in (("get", "decisions", name), ("explain", name), ("replay", name)):
        wrong = cli(*words)
        assert (wrong.code, wrong.err.partition(";")[0]) == (2, f"error: `{name}` is no decision")


def test_an_escalation_is_explained_as_one(engine: Any, cli: Any) -> None:
    text = kit.POLICY.replace("LIMIT", "10") + (
        "  escalation:\n    - {after: 2s, actions: [{type: cache_degrade, max_running: 4}]}\n")
    engine.operations.apply(
        kit.Sources((("queue.yaml", text.encode()),)), allow_missing=True)
    for _ in range(4):
        engine.second(20)
    decision = cli("get", "decisions", "-o", "json").json()["decisions"][-1]
    told = cli("explain", decision["id"]).out
    assert 'policy `queue` for {model_name="m"} stayed firing.' in told
    assert "It has escalated to stage 1." in told and "+ cache.max_running = 4" in told


def test_get_decisions_can_be_narrowed(fired: Any, cli: Any) -> None:
    assert len(cli("get", "decisions", "--since", "1h", "-o", "json").json()["decisions"]) == 1
    assert cli("get", "decisions", "--policy", "other").out == "no decisions\n"
    fired.clock.forward(7_200_000)
    assert cli("get", "decisions", "--since", "1h").out == "no decisions\n"


def test_a_decision_is_explained_in_plain_words(fired: Any, cli: Any) -> None:
    (decision,) = cli("get", "decisions", "-o", "json").json()["decisions"]
    told = cli("explain", decision["id"][:6])
    assert told.code == 0
    assert 'policy `queue` for {model_name="m"} went from inactive to firing' in told.out
    assert "Why: the trigger was true, at value 20." in told.out
    assert '+ throttle.max_concurrency{tier="best-effort"} = 4' in told.out
    assert "the core's read-back was equal" in told.out
    body = cli("explain", decision["id"], "-o", "json").json()
    assert body["decision"] == decision
    missing = cli("explain", "00000000")
    assert (missing.code, missing.err.count("\n")) == (1, 1)


def test_pause_and_resume(fired: Any, cli: Any) -> None:
    shown = cli("pause", "queue", "--for", "1h", "--reason", "drill")
    assert shown.out.startswith("paused queue until ")
    fired.second(20)
    assert fired.core.values() == {}
    assert "enforce, paused" in cli("get", "policies").out
    assert "paused    queue until" in cli("get", "status").out
    assert cli("resume", "queue").out.startswith("resumed queue")
    all_paused = cli("pause", "--all", "--reason", "x").out
    assert all_paused.startswith("paused all policies until resumed")
    assert cli("resume", "--all", "-o", "json").json()["paused"] is False
    assert cli("pause", "nobody", "--reason", "x").code == 1


def test_a_resume_says_what_it_did_not_end(fired: Any, cli: Any) -> None:
    assert cli("resume", "queue").out == "queue was not paused\n"
    assert cli("resume", "--all").out == "no policy was paused\n"
    cli("pause", "--all", "--for", "1h", "--reason", "drill")
    for _ in range(2):                              # also before a tick has heard of the pause
        shown = cli("resume", "queue")
        assert shown.out.startswith("queue stays paused: all policies are until ")
        assert cli("resume", "queue", "-o", "json").json()["paused"] is True
        fired.second(20)
        assert fired.core.values() == {}
    assert cli("resume", "--all").out.startswith("resumed all policies")


@pytest.mark.parametrize(("args", "said"), [
    (("pause", "queue", "--reason", ""), "`--reason` is empty"),
    (("pause", "queue", "--reason", "a\nb"), "`--reason` is one line"),
    (("pause", "queue", "--reason", "\x1b[31m"), "`--reason` is one line"),
    (("pause", "queue", "--reason", "x" * 501), "at most 500 characters"),
    (("resume", "queue", "--reason", "a\tb"), "`--reason` is one line"),
    (("pause", "", "--reason", "x"), "name one POLICY"),
    (("pause", "", "--all", "--reason", "x"), "name one POLICY"),
    (("pause", "queue", "--for", "0", "--reason", "x"), "longer than 0 and at most 30 days"),
    (("rollback", "--to", ""), "`--to` is empty"),
    (("explain", "a\nb"), r"`a\nb` is no decision"),
    (("explain", "a" * 5_000), "is no decision"),
    (("replay", "\x1b[31m"), r"`\x1b[31m` is no decision"),
])
def test_an_odd_word_is_one_clear_line(
    fired: Any, cli: Any, args: tuple[str, ...], said: str
) -> None:
    shown = cli(*args)
    assert shown.code in (1, 2)
    assert said in shown.err and shown.err.count("\n") == 1 and len(shown.err) < 200
    assert shown.err.strip().isprintable()
    assert "enforce, paused" not in cli("get", "policies").out


def test_a_warning_of_the_engine_names_the_file_as_it_was_given(
    fired: Any, cli: Any, rules: Path
) -> None:
    path = rules / "queue.yaml"
    path.write_text(path.read_text().replace("num_requests_waiting) > ", "kv_cache_usage_perc) > "))
    args = ("apply", rules, "--dry-run", "--allow-missing-metrics")
    shown, body = cli(*args), cli(*args, "-o", "json").json()
    assert shown.code == 0
    assert {f["file"] for f in body["findings"]} == {str(path)}
    assert [line.endswith("]") for line in shown.err.splitlines()] == [True] * len(body["findings"])
    assert shown.err.startswith(f"{path}:")


def test_get_decisions_with_an_id_shows_that_one(fired: Any, cli: Any) -> None:
    (decision,) = cli("get", "decisions", "-o", "json").json()["decisions"]
    body = cli("get", "decisions", decision["id"], "-o", "json").json()
    assert body == {"version": 1, "decisions": [decision]}


def test_apply_shows_the_difference_and_swaps(fired: Any, cli: Any, rules: Path) -> None:
    assert "is active already" in cli("apply", rules).out
    text = (rules / "queue.yaml").read_text()
    (rules / "other.yaml").write_text(text.replace("name: queue", "name: other"))
    dry = cli("apply", rules, "--dry-run")
    assert (dry.code, dry.out.splitlines()[0]) == (0, "+ other")
    assert "would apply" in dry.out
    done = cli("apply", rules, "-o", "json").json()
    assert (done["applied"], done["added"]) == (True, ["other"])
    (rules / "queue.yaml").unlink()
    assert "- queue" in cli("apply", rules).out


def test_rollback_and_history(fired: Any, cli: Any, rules: Path) -> None:
    (rules / "queue.yaml").write_text(
        (rules / "queue.yaml").read_text().replace("> 10", "> 50")
    )
    assert cli("apply", rules).code == 0
    assert "~ queue" in cli("rollback").out
    rows = cli("history").out.splitlines()[1:]
    assert [row.split()[2] for row in rows] == ["start", "apply", "rollback"]
    assert cli("rollback", "--to", "sha256:000000000000").code == 1


@pytest.mark.parametrize(("text", "word"), [
    ("kind: Policy\n  bad indent: [", "queue.yaml:"),
    ("apiVersion: resilience/v1\nkind: Policy\nmetadata: {name: x}\nspec: {}\n", "queue.yaml:4"),
])
def test_a_bad_bundle_is_refused_before_the_engine_is_asked(
    fired: Any, cli: Any, rules: Path, text: str, word: str
) -> None:
    before = cli("get", "bundle").out
    (rules / "queue.yaml").write_text(text)
    shown = cli("apply", rules)
    assert (shown.code, shown.out) == (3, "")
    assert word in shown.err
    assert cli("get", "bundle").out == before


def test_what_the_running_server_lacks_is_refused_by_the_engine(
    fired: Any, cli: Any, rules: Path
) -> None:
    path = rules / "queue.yaml"
    path.write_text(path.read_text().replace("num_requests_waiting", "kv_cache_usage_perc"))
    shown = cli("apply", rules)
    assert shown.code == 3
    assert "vllm:kv_cache_usage_perc" in shown.err
    assert cli("apply", rules, "--allow-missing-metrics").code == 0


def test_apply_refuses_when_somebody_was_faster(fired: Any, cli: Any, rules: Path) -> None:
    path = rules / "queue.yaml"
    path.write_text(path.read_text().replace("> 10", "> 50"))
    shown = cli("apply", rules, "--if-match", "sha256:000000000000")
    assert shown.code == 1
    assert "the active revision is" in shown.err


def test_doctor_finds_the_engine(fired: Any, cli: Any) -> None:
    shown = cli("doctor", "-o", "json")
    checks = {c["name"]: c["status"] for c in shown.json()["checks"]}
    assert checks["engine"] == "ok"
    assert shown.code == (1 if "error" in checks.values() else 0)


def test_a_candidate_from_apply_to_promotion(
    cli: Any, fired: Any, rules: Path
) -> None:
    text = (rules / "queue.yaml").read_text()
    (rules / "queue.yaml").write_text(text.replace("> 10", "> 15"))
    said = cli("apply", rules, "--shadow")
    assert said.code == 0 and "runs in shadow beside" in said.out
    fired.second(30)
    fired.runtime.canary.close()
    shown = cli("get", "canary")
    assert shown.code == 0 and "~ queue" in shown.out
    assert cli("get", "canary", "-o", "json").json()["canary"]["ticks"] == 1
    promoted = cli("promote", "-o", "json")
    assert promoted.json()["applied"] is True
    assert cli("discard").code == 1


def test_options_of_apply_that_contradict_each_other(cli: Any, rules: Path) -> None:
    for words in (["--watch", "--dry-run"], ["--shadow", "--if-match", "x"],
                  ["--watch", "--if-match", "x"]):
        assert cli("apply", rules, *words).code == 2


def test_replay_without_a_journal_or_an_id(cli: Any, tmp_path: Path) -> None:
    assert cli("replay", "xyz").code == 2
    assert cli("replay", "abcd", "--state", tmp_path / "nowhere").code == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_recording_ends_with_the_process_that_asked_for_it(
    fired: Any, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(record, "time", SimpleNamespace(
        monotonic=time.monotonic, sleep=lambda _: signal.raise_signal(number)))
    before = signal.signal(number, signal.SIG_DFL)  # a shell ignores SIGINT for what it runs aside
    try:
        done = cli("record", "--out", str(tmp_path / "run.parquet"))
    finally:
        signal.signal(number, before)
    assert done.code == 0 and "run.parquet" in done.out
    assert fired.recorder.path is None


def test_a_signal_that_is_ignored_ends_no_recording(
    fired: Any, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under `nohup`, when the terminal is closed."""
    recorded: list[bool] = []

    def sleep(_: float) -> None:
        recorded.append(fired.recorder.path is not None)
        signal.raise_signal(signal.SIGTERM if len(recorded) > 2 else signal.SIGHUP)

    monkeypatch.setattr(record, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        done = cli("record", "--out", str(tmp_path / "run.parquet"))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (done.code, recorded) == (0, [True, True, True])


def test_a_signal_while_the_recording_starts_ends_it(
    fired: Any, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "note", lambda _: signal.raise_signal(signal.SIGTERM))
    done = cli("record", "--out", str(tmp_path / "run.parquet"))
    assert done.code == 0 and "run.parquet" in done.out
    assert fired.recorder.path is None
