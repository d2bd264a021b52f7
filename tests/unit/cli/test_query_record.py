"""`query` and `record` on the command line: what they print, and what they refuse."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from resilience.cli.query import show
from resilience.cli.when import step_ms, time_ms
from resilience.errors import SourceError, UsageError
from resilience.sources.recording import read

TEXT = """\
# TYPE up gauge
up{job="a"} 1 1764430000
up{job="a"} 0 1764430010
up{job="b"} 1 1764430000
up{job="b"} NaN 1764430010
# EOF
"""

RULES = """\
apiVersion: resilience/v1
kind: Policy
metadata: {name: down}
spec:
  interval: 15s
  on_missing_metric: warn
  trigger: {expr: 'up == 0 or other > 1', on_no_data: hold}
  actions: [{type: throttle, tier: best-effort, max_concurrency: 8}]
"""

FEATURE = "--enable-feature=promql-experimental-functions"


@pytest.fixture
def recording(tmp_path: Path, cli: Any) -> Path:
    (tmp_path / "up.om").write_text(TEXT)
    made = cli("record", "import", tmp_path / "up.om", "--out", tmp_path / "r.parquet")
    assert made.code == 0, made.err
    assert "2 series, 4 samples, 10s from 2025-11-29 15:26:40Z" in made.out
    return tmp_path / "r.parquet"


# --- query -------------------------------------------------------------------------------------


def test_a_table_for_people(cli: Any, recording: Path) -> None:
    shown = cli("query", "up", "--recording", recording)
    rows = [line.split() for line in shown.out.splitlines()]
    assert rows == [["SERIES", "VALUE"], ['up{job="a"}', "0"], ['up{job="b"}', "NaN"]]


def test_json_is_the_api_s_data_object_and_nothing_else(cli: Any, recording: Path) -> None:
    shown = cli("query", "sum(up)", "--recording", recording, "--at", "1764430000", "-o", "json")
    assert shown.json() == {
        "resultType": "vector",
        "result": [{"metric": {}, "value": [1764430000, "2"]}],
    }
    times = ("--start", "1764430000", "--end", "1764430010", "--step", "10s")
    shown = cli("query", 'up{job="a"}', "--recording", recording, *times, "-o", "json")
    assert shown.json()["result"][0]["values"] == [[1764430000, "1"], [1764430010, "0"]]


def test_scalars_ranges_and_nothing(cli: Any, recording: Path) -> None:
    assert cli("query", "1 + 1", "--recording", recording).out == "2\n"
    shown = cli("query", "up", "--recording", recording, "--step", "5s")
    assert shown.out.splitlines()[0].split("  ")[0] == "TIME"
    assert len(shown.out.splitlines()) == 4
    empty = cli("query", 'up{job="none"}', "--recording", recording)
    assert (empty.code, empty.out, empty.err) == (0, "", "no series\n")


def test_many_series_are_summed_up_line_by_line(cli: Any, recording: Path) -> None:
    expr = "label_replace(up, 'n', '1', '', '')" + "".join(
        f" or label_replace(up, 'n', '{i}', '', '')" for i in range(2, 5)
    )
    shown = cli("query", expr, "--recording", recording, "--step", "10s").out.splitlines()
    assert shown[0].split() == ["SERIES", "POINTS", "FIRST", "LAST", "MIN", "MAX"]
    assert shown[1].split()[-5:] == ["2", "1", "0", "0", "1"]


def test_a_missing_metric_is_reported_never_read_as_quiet(cli: Any, recording: Path) -> None:
    shown = cli("query", "up and on () other", "--recording", recording)
    assert "warning: the recording has no metric `other`" in shown.err
    mistyped = cli("query", "upp", "--recording", recording)
    assert "no metric `upp`, did you mean `up`\n" in mistyped.err


def test_explain_prints_the_plan(cli: Any, recording: Path) -> None:
    shown = cli("query", "sum(up) + sum(up)", "--recording", recording, "--explain")
    assert shown.out.splitlines()[0].split() == ["PLAN", "SERIES", "MS"]
    assert "shared" in shown.out
    assert cli("query", "up[1m]", "--recording", recording, "--explain").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["up +"], 1, "1:5: "),
        (["foo(up)"], 1, "foo"),
        (["up + on () up", "--recording", "R"], 1, "many-to-many"),
        (["up", "--recording", "none"], 1, "no recording `none`"),
        (["up", "--recording", "/dev/null"], 1, "`/dev/null` is not a recording: no regular file"),
        (["up", "--recording", "R", "--at", "1700000000000"], 2, "write seconds, not milliseconds"),
        (["up", "--recording", "R", "--at", "9" * 400], 2, "for --at lies after the year 9999"),
        (["up", "--recording", "R", "--at", "²"], 2, "`²` is not a time for --at"),
        (["up", "--recording", "R", "--step", "²"], 2, "--step: `²` is not a duration"),
        (["up", "--recording", "R", "--step", "9" * 400], 2, "is too long"),
        (["up", "--recording", "R", "--at", "yesterday"], 2, "`yesterday` is not a time for --at"),
        (["up", "--recording", "R", "--step", "0"], 2, "--step must be longer"),
        (["up", "--recording", "R", "--step", "x"], 2, "--step"),
        (["up", "--recording", "R", "--start", "9", "--end", "1"], 2, "--end lies before"),
        (["up", "--recording", "R", "--at", "1", "--step", "1s"], 2, "`--at` is for one time"),
        (["up", "--recording", "R", "--prometheus", "http://x"], 2, "cannot both"),
        (["up", "--explain"], 2, "--recording FILE"),
        (["up", "--prometheus", "http://x", FEATURE], 2, "`--enable-feature` is for a recording"),
        (["up", "--config", "none.yaml", FEATURE], 2, "`--enable-feature` is for a recording"),
        (["up", "--prometheus", "nowhere"], 2, "http://"),
        (["up", "--prometheus", "http://127.0.0.1:1"], 1, "cannot reach"),
        (["up"], 1, "no engine listens"),
        (["up[1m]", "--recording", "R", "--step", "1s"], 1, "range"),
    ],
)
def test_what_query_refuses(
    cli: Any, recording: Path, arguments: list[str], code: int, reason: str
) -> None:
    shown = cli("query", *(str(recording) if a == "R" else a for a in arguments))
    assert (shown.code, shown.out) == (code, "")
    assert reason in shown.err
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize("how", [(), ("--step", "5s"), ("--explain",)])
def test_what_cannot_be_evaluated_is_told_with_its_place(
    cli: Any, recording: Path, how: tuple[str, ...]
) -> None:
    shown = cli("query", "sum(up) +\n  sum(up * on () up)", "--recording", recording, *how)
    assert (shown.code, shown.out) == (1, "")
    assert shown.err.startswith("error: 2:10: found duplicate series for the match group {}")


def test_a_dry_run_tells_the_place_in_the_file(cli: Any, recording: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "p.yaml").write_text(RULES.replace("up == 0 or other > 1", "up * on () up > 0"))
    shown = cli("apply", rules, "--dry-run", "--recording", recording, "-o", "json")
    summary = json.loads(shown.out.splitlines()[-1])["summary"]
    assert summary["failures"]["down"].startswith("p.yaml:7:23: found duplicate series")


def test_a_policy_test_tells_the_place_in_the_file(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(RULES.replace("up == 0 or other > 1", "up * on () up > 0"))
    (tmp_path / "p.test.yaml").write_text(
        "tests:\n  - name: fires\n    input_series:\n"
        "      - {series: 'up{a=\"1\"}', values: '1x10'}\n"
        "      - {series: 'up{a=\"2\"}', values: '1x10'}\n"
        "    expect:\n      - {at: 1m, policy: down, state: firing}\n"
    )
    shown = cli("test", tmp_path)
    assert shown.code == 4
    assert "the trigger has no answer: p.yaml:7:23: found duplicate series" in shown.out


def test_the_engine_document_names_the_server(cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    spec = 'spec: {prometheus: {url: "http://127.0.0.1:1"}}'
    file.write_text(f"apiVersion: resilience/v1\nkind: Engine\nmetadata: {{name: e}}\n{spec}\n")
    assert "cannot reach `http://127.0.0.1:1`" in cli("query", "up", "--config", file).err
    other = cli("query", "up", "--config", file, "--prometheus", "http://127.0.0.1:2")
    assert "cannot reach `http://127.0.0.1:2`" in other.err


SMOOTHED = "double_exponential_smoothing(up[1m], 0.5, 0.5)"


def test_experimental_functions_can_be_switched_on(
    cli: Any, recording: Path, tmp_path: Path
) -> None:
    off = cli("query", SMOOTHED, "--recording", recording)
    assert (off.code, FEATURE in off.err) == (1, True)
    assert cli("query", SMOOTHED, "--recording", recording, FEATURE).code == 0
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "p.yaml").write_text(RULES.replace("up == 0 or other > 1", SMOOTHED + " < 1"))
    dry = ("apply", rules, "--dry-run", "--recording", recording)
    for arguments in (("check", rules), dry):
        refused = cli(*arguments)
        assert (refused.code, FEATURE in refused.out + refused.err) == (3, True)
        assert cli(*arguments, FEATURE).code == 0
    assert "takes `enable_features` from its" in cli("apply", rules, FEATURE).err
    (rules / "engine.yaml").write_text(
        "apiVersion: resilience/v1\nkind: Engine\nmetadata: {name: e}\n"
        "spec: {enable_features: [promql-experimental-functions]}\n"
    )
    assert cli("check", rules).code == 0
    assert cli(*dry).code == 0


def test_the_time_out_of_the_engine_document_holds(cli: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:    # takes connections, never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        file = tmp_path / "engine.yaml"
        spec = f'spec: {{prometheus: {{url: "{url}", timeout: 100ms}}}}'
        file.write_text(
            f"apiVersion: resilience/v1\nkind: Engine\nmetadata: {{name: e}}\n{spec}\n"
        )
        for how in ((), ("--step", "5s")):
            shown = cli("query", "up", "--config", file, *how)
            assert (shown.code, shown.out) == (1, "")
            assert "within 100 ms" in shown.err


def test_query_on_a_running_engine(cli: Any, fired: Any) -> None:
    shown = cli("query", "vllm:num_requests_waiting", "-o", "json", *_at(fired))
    (one,) = shown.json()["result"]
    assert one["metric"]["__name__"] == "vllm:num_requests_waiting"
    assert cli("query", "1", "-o", "json").json()["resultType"] == "scalar"
    off = cli("query", SMOOTHED)
    assert (off.code, FEATURE in off.err) == (1, True)
    assert cli("query", SMOOTHED, FEATURE).code == 0
    wrong = cli("query", "1 +\n  sum(topk(NaN, vllm:num_requests_waiting))", *_at(fired))
    assert (wrong.code, wrong.err) == (1, "error: 2:7: Parameter value is NaN\n")
    now_s = fired.clock.wall_ms / 1000
    times = ("--start", str(now_s - 10), "--end", str(now_s), "--step", "5s")
    shown = cli("query", "vllm:num_requests_waiting", "-o", "json", *times)
    assert shown.json()["resultType"] == "matrix"
    assert "use a longer `--step`" in cli("query", "1", "--start", "0", "--step", "1s").err


@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        ("vllm:num_requests_waiting", ["0", "20", "20", "20"]),
        ("vllm:num_requests_waiting @ end()", ["20", "20", "20", "20"]),
        ("vllm:num_requests_waiting @ start()", ["0", "0", "0", "0"]),
        ("max_over_time((vllm:num_requests_waiting @ end())[2s:1s])", ["20", "20", "20", "20"]),
        ("sum_over_time(vllm:num_requests_waiting[1s] @ end() offset 1s)", ["20"] * 4),
        ("-(vllm:num_requests_waiting @ end())", ["-20"] * 4),
    ],
)
def test_a_range_on_a_running_engine_has_one_start_and_end(
    cli: Any, fired: Any, expr: str, wanted: list[str]
) -> None:
    end_s = fired.clock.wall_ms // 1000
    times = ("--start", str(end_s - 3), "--end", str(end_s), "--step", "1s")
    shown = cli("query", "-o", "json", *times, "--", expr)
    assert shown.code == 0, shown.err
    (one,) = shown.json()["result"]
    assert [value for _, value in one["values"]] == wanted


@pytest.mark.parametrize("expr", ["vllm:num_requests_waiting[1m]", "'text'"])
def test_a_range_on_a_running_engine_needs_a_value_at_each_step(
    cli: Any, fired: Any, expr: str
) -> None:
    shown = cli("query", expr, "--step", "1s")
    assert (shown.code, shown.out) == (1, "")
    assert shown.err == "error: 1:1: a range query needs an instant vector or a scalar\n"


def _at(fired: Any) -> tuple[str, str]:
    return ("--at", str(fired.clock.wall_ms / 1000))


# --- record ------------------------------------------------------------------------------------


def test_record_from_a_running_engine(cli: Any, fired: Any, tmp_path: Path) -> None:
    out = tmp_path / "live.parquet"
    shown = cli("record", "--for", "10ms", "--out", out, "-o", "json")
    assert shown.code == 0, shown.err
    assert shown.json()["path"] == str(out)
    assert {e["type"] for e in read(out).events} >= {"state", "bundle"}
    again = cli("record", "--for", "10ms", "--out", out)
    assert (again.code, "exists already" in again.err) == (2, True)


def test_import_for_rules_keeps_and_reports_what_they_need(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "up.om").write_text(TEXT.replace("# EOF", "noise 1 1764430000\n# EOF"))
    (tmp_path / "down.yaml").write_text(RULES)
    shown = cli(
        "record", "import", tmp_path / "up.om", "--out", tmp_path / "r.parquet",
        "--rules", tmp_path / "down.yaml", "-o", "json",
    )  # fmt: skip
    assert shown.json()["series"] == 2
    assert shown.json()["missing"] == ["other"]
    assert "no samples of `other`" in shown.err


def test_a_resampled_import_says_so_loudly(cli: Any, tmp_path: Path) -> None:
    values = [[0, "1"], [15, "2"], [30, "3"]]
    result = [{"metric": {"__name__": "up"}, "values": values}]
    body = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    (tmp_path / "a.json").write_text(json.dumps(body))
    shown = cli("record", "import", tmp_path / "a.json", "--out", tmp_path / "r.parquet")
    assert "warning: resampled" in shown.err
    assert "resampled" in cli("query", "up", "--recording", tmp_path / "r.parquet").err
    raw = cli("record", "import", tmp_path / "a.json", "--out", tmp_path / "s.parquet", "--raw")
    assert "resampled" not in raw.err


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        ([], 1, "no engine listens"),
        (["--for", "soon"], 2, "--for"),
        (["--for", "0s"], 2, "`--for` is longer than 0"),
        (["--prometheus", "http://127.0.0.1:1"], 2, "needs RULES"),
        (["none", "--prometheus", "http://127.0.0.1:1"], 2, "none"),
        (["RULES"], 2, "name the server"),
        (["RULES", "--prometheus", "http://127.0.0.1:1"], 1, "cannot reach"),
        (["RULES", "--prometheus", "http://127.0.0.1:1", "--start", "x"], 2, "not a time"),
        (["RULES", "--prometheus", "http://127.0.0.1:1", "--start", "now"], 2, "end after"),
        (["import", "none", "--out", "r.parquet"], 1, "cannot read `none`"),
        (["import", "none"], 2, "--out"),
    ],
)
def test_what_record_refuses(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int,
    reason: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "down.yaml").write_text(RULES)
    shown = cli("record", *("down.yaml" if a == "RULES" else a for a in arguments))
    assert (shown.code, shown.out) == (code, "")
    assert reason in shown.err
    assert not list(tmp_path.glob("*.parquet"))


# --- times -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", 5_000_000),
        ("-1h", 1_400_000),
        ("1764430000.5", 1_764_430_000_500),
        ("2025-11-29T15:26:40Z", 1_764_430_000_000),
        ("2025-11-29T16:26:40+01:00", 1_764_430_000_000),
        ("2025-11-29 15:26:40", 1_764_430_000_000),
    ],
)
def test_times_that_people_write(text: str, expected: int) -> None:
    assert time_ms(text, "--at", 5_000_000) == expected


@pytest.mark.parametrize("text", ["", "-5", "1h", "2025-13-01", "1e9", "NaN", "-"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--at"):
        time_ms(text, "--at", 0)


def test_steps() -> None:
    assert (step_ms("30s"), step_ms("0.5"), step_ms("15")) == (30_000, 500, 15_000)


@pytest.mark.parametrize(
    ("kind", "one"),
    [
        ("vector", {"metric": {}, "histogram": [1.0, {"count": "1"}]}),
        ("matrix", {"metric": {}, "histograms": [[1.0, {"count": "1"}]]}),
        ("matrix", {"metric": {}, "values": [[0.0, "1"]], "histograms": [[1.0, {}]]}),
    ],
)
def test_a_table_names_the_native_histograms_that_it_cannot_show(kind: str, one: Any) -> None:
    with pytest.raises(SourceError, match="native histograms"):
        show({"resultType": kind, "result": [one]}, "text")
