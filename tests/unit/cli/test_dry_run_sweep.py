"""A dry run with other values: a table or JSON, one row for each combination."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.dry_run_rig import write_recording


def test_a_sweep_is_a_table_with_the_rules_as_written_first(over: Any) -> None:
    shown = over("--set", "queue.trigger.for=0s,2s,10s")
    assert shown.code == 0
    header, *rows = [line.split("  ") for line in shown.out.splitlines()]
    assert header[0] == "queue.trigger.for"
    assert [row[0] for row in rows] == ["(as written)", "0s", "2s", "10s"]
    assert [next(c for c in row[1:] if c.strip()).strip() for row in rows] == ["2", "2", "1", "0"]


def test_several_sets_are_a_grid_in_json(over: Any) -> None:
    shown = over("--set", "policy.trigger.for=0s,2s", "--set", "queue.limits.cooldown=0s,1h",
                 "-o", "json")
    body = shown.json()
    assert body["version"] == 1
    firings = {
        tuple(row["set"].values()): row["policies"]["queue"]["firings"]
        for row in body["combinations"]
    }
    assert firings == {
        (): 2, ("0s", "0s"): 2, ("0s", "1h"): 1, ("2s", "0s"): 1, ("2s", "1h"): 1,
    }


def test_off_is_a_mode_to_try_and_nothing_to_run(over: Any, rules: Path) -> None:
    shown = over("--set", "queue.mode=enforce,'off'", "-o", "json")
    assert [r["policies"]["queue"]["firings"] for r in shown.json()["combinations"]] == [2, 2, 0]
    path = rules / "queue.yaml"
    path.write_text(path.read_text().replace("spec:\n", "spec:\n  mode: 'off'\n", 1))
    shown = over()
    assert (shown.code, shown.out) == (2, "") and "every policy is `mode: off`" in shown.err


def test_an_expression_may_be_tried(over: Any) -> None:
    metric = "vllm:num_requests_waiting"
    shown = over("--set", f"queue.spec.trigger.expr='{metric} > 25',{metric} > 99", "-o", "json")
    assert [r["policies"]["queue"]["firings"] for r in shown.json()["combinations"]] == [2, 1, 0]


def test_what_came_in_is_counted_over_the_time_of_each_row(
    cli: Any, rules: Path, tmp_path: Path
) -> None:
    """Rows with longer intervals begin and end at other ticks."""
    load = write_recording(tmp_path / "load.parquet", {
        "vllm:num_requests_waiting": [20] * 46, "vllm:num_requests_running": [2] * 46,
        "vllm:request_success_total": [3 * n * n for n in range(46)],
    })

    def rows(*intervals: str) -> list[Any]:
        shown = cli("apply", rules, "--dry-run", "--recording", load, "--set",
                    f"queue.interval={','.join(intervals)}", "-o", "json")
        return [r["policies"]["queue"]["would_have_shed"] for r in shown.json()["combinations"]]

    together = rows("7s", "10s")
    for interval, row in zip(("7s", "10s"), together[1:], strict=True):
        policy = rules / "queue.yaml"
        before = policy.read_text()
        policy.write_text(before.replace("interval: 1s", f"interval: {interval}"))
        assert rows(interval)[0] == row, interval
        policy.write_text(before)
    assert len({row[0]["arrived"] for row in together}) > 1


@pytest.mark.parametrize(("text", "part"), [
    ("queue.trigger.fro=1s", "did you mean `for`?"),
    ("queue.triger.for=1s", "did you mean `trigger`?"),
    ("queu.trigger.for=1s", "did you mean `queue`"),
    ("queue.trigger.for=30", "write the unit"),
    ("queue.trigger.for=", "has no value"),
    ("queue.trigger.for", "has no value"),
    ("queue=1", "has no place"),
    ("queue.actions[3].max_concurrency=1", "there is no item 3 in a list of 1"),
    ("queue.actions.max_concurrency=1", "write its number"),
    ("queue.actions.²=1", "write its number"),
    (f"queue.actions.{'1' * 4_301}=1", "write its number"),
    ("queue.actions.3.max_concurrency=1", "there is no item 3 in a list of 1"),
    ("queue.interval.x=1", "nothing stands below"),
    ("queue.actions[0].max_concurrency=-1", "max_concurrency"),
    ("queue.trigger.for=" + ",".join(f"{n}s" for n in range(1, 103)), "more than 100"),
    ("queue.trigger.on_no_data=yes", "quote it"),
    ("queue..for=1s", "`.for` is no place"),
    ("queue.trigger.for.=1s", "is no place"),
    ("queue.actions[x].max_concurrency=1", "is no place"),
])
def test_a_place_or_value_that_cannot_be_is_one_line(over: Any, text: str, part: str) -> None:
    shown = over("--set", text)
    assert (shown.code, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert part in shown.err


@pytest.mark.parametrize("options", [
    ("--set", "queue.trigger.for=1s", "--html", "x.html"),
    ("--set", "queue.trigger.for=1s", "--set", "policy.trigger.for=2s"),
])
def test_options_that_do_not_go_together(over: Any, options: tuple[str, ...]) -> None:
    assert over(*options).code == 2


def test_a_function_that_failed_is_said_beside_the_table(over: Any, rules: Path) -> None:
    """Its figures lack what it would have proposed, and would be believed."""
    policy, folder = rules / "queue.yaml", rules / "udfs"
    folder.mkdir()
    policy.write_text(policy.read_text().rstrip() + "\n    - {type: udf_call, function: mine}\n")
    (folder / "mine.py").write_text("def mine(ctx):\n    return {'actions': []}\n")
    assert "mine" not in over("--set", "queue.trigger.for=0s,2s").err
    (folder / "mine.py").write_text("def mine(ctx):\n    return {'nope': 1}\n")
    shown = over("--set", "queue.trigger.for=0s,1h")
    assert "function `mine` failed (BAD_RESULT, QUARANTINED) in 2 of 3 rows" in shown.err
    rows = over("--set", "queue.trigger.for=0s,1h", "-o", "json").json()["combinations"]
    assert [bool(row["policies"]["queue"]["udf"]) for row in rows] == [True, True, False]
