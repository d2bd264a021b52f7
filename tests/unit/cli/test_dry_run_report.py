"""The report of a dry run on the command line: text, JSON and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resilience.model import labels_of
from resilience.sources.recording import RecordingMeta, read, write
from resilience.sources.store import Group, MemoryStore
from tests.unit.cli.dry_run_rig import QUEUE, write_recording


def test_people_get_timeline_figures_and_the_end_as_before(over: Any) -> None:
    shown = over()
    assert shown.code == 0
    text = shown.out
    assert "POLICY  FIRINGS" in text
    assert "firing" in text
    assert "claimed throttle.max_concurrency" in text
    assert text.splitlines()[-1].endswith(" decisions")


def test_programs_get_the_report_in_the_summary(over: Any) -> None:
    *_, last = over("-o", "json").out.splitlines()
    found = json.loads(last)["summary"]["report"]
    queue = found["policies"]["queue"]
    assert queue["firings"] == 2
    assert queue["flaps"] == 1
    assert queue["claims"][0]["knob"] == "throttle.max_concurrency"
    assert found["would_have_shed"][0]["refused_max"] is None
    assert "vllm:num_requests_running" in found["would_have_shed"][0]["why"]
    assert found["resampled"] is False


def test_the_bound_of_what_would_have_been_shed(cli: Any, rules: Path, tmp_path: Path) -> None:
    path = write_recording(tmp_path / "load.parquet", {
        "vllm:num_requests_waiting": [50] * 120,
        "vllm:num_requests_running": [50] * 120,
        "vllm:request_success_total": list(range(0, 1_200, 10)),
    })
    shown = cli("apply", rules, "--dry-run", "--recording", path, "-o", "json")
    (shed,) = json.loads(shown.out.splitlines()[-1])["summary"]["report"]["would_have_shed"]
    assert 0 < shed["refused_max"] <= shed["arrived"] <= 1_200
    assert any("between 0 and this" in c for c in shed["caveats"])


def test_a_metric_that_is_missing_is_blind_and_never_quiet(
    cli: Any, rules: Path, tmp_path: Path
) -> None:
    path = write_recording(tmp_path / "other.parquet", {"vllm:num_requests_running": [1] * 30})
    shown = cli("apply", rules, "--dry-run", "--recording", path)
    assert "blind: the recording has no `vllm:num_requests_waiting`" in shown.out
    assert "(100.0%)" in shown.out


FAR_BACK = "not so live: RULES/queue.yaml:8:"


@pytest.mark.parametrize("also", [(), ("--set", "queue.trigger.for=1s")])
@pytest.mark.parametrize("command", [
    ("apply", "RULES", "--dry-run"), ("plan", "RULES", "--against", "RULES"),
])
def test_what_the_engine_would_not_remember_is_said_wherever_the_figures_are(
    cli: Any, rules: Path, recording: Path, tmp_path: Path, command: tuple[str, ...],
    also: tuple[str, ...],
) -> None:
    """The recording holds all of it, so only the live engine would be blind."""
    policy = rules / "queue.yaml"
    policy.write_text(policy.read_text().replace("_waiting) > ", "_waiting offset 3h) > "))
    words = [str(rules) if w == "RULES" else w for w in command]
    words += ["--recording", str(recording), *also]
    said = FAR_BACK.replace("RULES", str(rules))
    text = cli(*words)
    assert text.code == 0
    assert (text.out + text.err).count(said) == 1
    out = cli(*words, "-o", "json").out
    found = json.loads(out if out.startswith("{\n") else out.splitlines()[-1])
    report = found.get("summary", found.get("prediction", found))
    (warning,) = report.get("report", report)["warnings"]
    assert warning.startswith(said) and "the engine keeps them for 1h" in warning
    if not also:
        page = tmp_path / "page.html"
        cli(*words, "--html", page)
        assert f'<p class="warning">{said}' in page.read_text()


def test_of_many_warnings_the_first_are_printed_and_all_are_in_json(
    cli: Any, rules: Path, recording: Path
) -> None:
    policy = rules / "queue.yaml"
    text = policy.read_text().replace("_waiting) > ", "_waiting offset 3h) > ")
    for number in range(30):
        name = f"queue-{number:02}"
        (rules / f"{name}.yaml").write_text(text.replace("name: queue", f"name: {name}"))
    shown = cli("apply", rules, "--dry-run", "--recording", recording, "-o", "text").out
    assert shown.count("not so live") == 8 and "and 22 more warnings" in shown


def test_a_function_that_the_sandbox_refuses_ends_a_plan_too(
    cli: Any, rules: Path, recording: Path
) -> None:
    (rules / "udfs").mkdir()
    (rules / "udfs" / "mine.py").write_text("import os\n\n\ndef mine(ctx):\n    return {}\n")
    policy = rules / "queue.yaml"
    policy.write_text(policy.read_text().rstrip() + "\n    - {type: udf_call, function: mine}\n")
    for words in (("plan", rules), ("apply", rules, "--dry-run", "--recording", recording),
                  ("plan", rules, "--recording", recording)):
        shown = cli(*words)
        assert (shown.code, shown.out) == (3, "") and "mine.py:1:1" in shown.err


def test_a_mistyped_metric_comes_with_the_recorded_one(
    cli: Any, rules: Path, tmp_path: Path
) -> None:
    path = write_recording(tmp_path / "other.parquet", {
        "vllm:num_requests_waiting_": [1] * 30, "other": [1] * 30,
    })
    shown = cli("apply", rules, "--dry-run", "--recording", path)
    assert "it has `vllm:num_requests_waiting_`" in shown.out
    assert "did you mean `vllm:num_requests_waiting_`?" in shown.err


@pytest.mark.parametrize("command", [
    ("apply", "RULES", "--dry-run"), ("plan", "RULES"), ("query", "up"), ("check", "RULES"),
])
@pytest.mark.parametrize(("name", "body", "part"), [
    ("x.om.txt", b"up 1 1700000000\n# EOF\n", "make one with `resilience record import"),
    ("x.json", b'{"status": "success"}', "make one with `resilience record import"),
    ("x.parquet", b"", "it is empty"),
    ("x.bin", b"\x00\x01\xff" * 40, "no Parquet file"),
])
def test_what_is_no_recording_is_told_how_to_become_one(
    cli: Any, rules: Path, tmp_path: Path, command: tuple[str, ...], name: str, body: bytes,
    part: str,
) -> None:
    path = tmp_path / name
    path.write_bytes(body)
    words = [str(rules) if w == "RULES" else w for w in command]
    shown = cli(*words, "--recording", path)
    assert (shown.code, shown.out, shown.err.count("\n")) == (1, "", 1)
    assert "is not a recording: " in shown.err and part in shown.err


def test_a_shadow_policy_has_its_bound_too(cli: Any, rules: Path, tmp_path: Path) -> None:
    path = write_recording(tmp_path / "load.parquet", {
        "vllm:num_requests_waiting": [50] * 120,
        "vllm:num_requests_running": [50] * 120,
        "vllm:request_success_total": list(range(0, 1_200, 10)),
    })
    bounds: list[int] = []
    policy = rules / "queue.yaml"
    text = policy.read_text()
    for mode in ("enforce", "shadow"):
        policy.write_text(text.replace("spec:\n", f"spec:\n  mode: {mode}\n", 1))
        shown = cli("apply", rules, "--dry-run", "--recording", path, "-o", "json")
        (shed,) = json.loads(shown.out.splitlines()[-1])["summary"]["report"]["would_have_shed"]
        assert shed["shadow"] == (["queue"] if mode == "shadow" else [])
        bounds.append(shed["refused_max"])
    assert bounds[0] == bounds[1] > 0
    said = cli("apply", rules, "--dry-run", "--recording", path).out
    assert "would be limited for" in said and "were `queue` in enforce" in said


@pytest.mark.parametrize("options", [(), ("--set", "policy.trigger.for=1s")])
def test_rules_without_a_policy(
    cli: Any, tmp_path: Path, recording: Path, options: tuple[str, ...]
) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text("apiVersion: resilience/v1\nkind: Engine\nmetadata: {name: e}\nspec: {}\n")
    shown = cli("apply", path, "--dry-run", "--recording", recording, *options)
    assert (shown.code, shown.out) == (2, "")
    assert "the rules hold no" in shown.err
    assert "no policy to evaluate" in cli("plan", path, "--recording", recording).out or options


def test_a_resampled_recording_is_said_first(cli: Any, rules: Path, tmp_path: Path) -> None:
    path = write_recording(
        tmp_path / "thin.parquet", {"vllm:num_requests_waiting": QUEUE}, raw=False
    )
    shown = cli("apply", rules, "--dry-run", "--recording", path)
    assert "warning: this recording is resampled" in shown.out
    assert shown.code == 0


@pytest.mark.parametrize(("name", "value", "ascii_only"), [
    ("LC_ALL", "C", True), ("LC_ALL", "en_US.UTF-8", False), ("LANG", "C", True),
])
def test_locale_c_gets_ascii(
    over: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: str, ascii_only: bool
) -> None:
    for other in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    shown = over()
    assert shown.out.isascii() is ascii_only
    assert "\x1b" not in shown.out


def test_live_decisions_that_differ_are_exit_code_1(
    cli: Any, rules: Path, rig: Any, tmp_path: Path
) -> None:
    path = tmp_path / "run.parquet"
    rig.second(0)
    rig.ask("POST", "recordings", {"action": "start", "path": str(path)})
    for waiting in (0, 20, 20, 5, 0, 0):
        rig.second(waiting)
    rig.ask("POST", "recordings", {"action": "stop"})
    assert cli("apply", rules, "--dry-run", "--recording", path).code == 0
    found = read(path)
    events = [e for e in found.events if e["type"] != "decision"]
    other = [e for e in found.events if e["type"] == "decision"][:-1]
    changed = tmp_path / "changed.parquet"
    write(changed, found.store, [*events, *other], found.meta)
    shown = cli("apply", rules, "--dry-run", "--recording", changed)
    assert (shown.code, shown.out.splitlines()[-1]) == (1, "2 decisions, 1 differ")


def test_a_masked_label_is_in_no_report_either(cli: Any, rules: Path, tmp_path: Path) -> None:
    """Two values stay two, or their claims would seem to meet."""
    (rules / "engine.yaml").write_text(
        "apiVersion: resilience/v1\nkind: Engine\nmetadata: {name: e}\n"
        "spec: {records: {mask: {labels: [model_name]}}}\n")
    policy = rules / "queue.yaml"
    policy.write_text(policy.read_text().replace(
        "{type: throttle, tier: best-effort", "{type: throttle, model: '{{ $labels.model_name }}'"))
    path, page = tmp_path / "two.parquet", tmp_path / "report.html"
    names = ("secret-one", "secret-two")
    labels = tuple(labels_of({"__name__": "vllm:num_requests_waiting", "model_name": name})
                   for name in names)
    times = 1_700_000_000_000 + np.arange(len(QUEUE), dtype=np.int64) * 1_000
    values, seqs = np.array([QUEUE, QUEUE], dtype=float), np.arange(1, len(QUEUE) + 1)
    store = MemoryStore.from_groups([Group(times, seqs, labels, values)])
    write(path, store, [], RecordingMeta("test", scrape_interval_ms=1_000))
    shown = cli("apply", rules, "--dry-run", "--recording", path, "--html", page)
    assert shown.code == 0, shown.err
    assert "***1" in shown.out and "***2" in shown.out
    as_json = cli("apply", rules, "--dry-run", "--recording", path, "-o", "json").out
    plan = cli("plan", rules, "--against", tmp_path / "none", "--recording", path)
    sweep = cli("apply", rules, "--dry-run", "--recording", path, "-o", "json",
                "--set", "queue.trigger.for=0s")
    assert "***1" in sweep.out, sweep.err
    for text in (shown.out, as_json, page.read_text(), plan.out, sweep.out):
        assert "secret" not in text


@pytest.mark.parametrize("option", ["--html", "--set"])
def test_a_report_needs_a_recording(cli: Any, rules: Path, option: str) -> None:
    shown = cli("apply", rules, "--dry-run", option, "x")
    assert shown.code == 2
    assert f"`{option}` needs" in shown.err


@pytest.mark.parametrize(("option", "missing"), [
    ("--html", "--dry-run --recording FILE"), ("--set", "--dry-run --recording FILE"),
    ("--recording", "--dry-run"),
])
def test_what_needs_a_dry_run_never_applies(
    cli: Any, rules: Path, option: str, missing: str
) -> None:
    shown = cli("apply", rules, option, "x")
    assert (shown.code, shown.out) == (2, "")
    assert f"`{option}` evaluates only: add `{missing}`" in shown.err
