"""Starting vLLM: the command, the environment, the files, and every refusal in one line."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from resilience.cores.client import HttpCore, read_token
from resilience.cores.control import LOOPBACK, Access, access_from
from resilience.cores.process import FORWARDED, last_words, spawn, write_settings
from resilience.cores.vllm import launch
from resilience.cores.vllm.arguments import parse_arguments
from resilience.cores.vllm.launch import command_line, environment, start
from resilience.errors import CoreUnreachableError, UsageError
from resilience.gate.config import GateConfig
from resilience.model import EngineConfig, TierSource


def test_the_command_names_every_extension_point() -> None:
    arguments = parse_arguments(["org/model", "--port", "8123", "--max-num-seqs=4"])
    command = command_line(arguments, "python")
    assert command[:3] == ["python", "-m", "vllm.entrypoints.launchers.api_server.entry"]
    assert command[3:8] == ["--model", "org/model", "--port", "8123", "--max-num-seqs=4"]
    assert "resilience.cores.vllm.place.GateBehind" in command
    assert "resilience.cores.vllm.scheduler.make_scheduler" in command
    assert command[command.index("--scheduling-policy") + 1] == "priority"


def test_a_users_own_scheduling_policy_stays() -> None:
    arguments = parse_arguments(["org/model", "--scheduling-policy", "fcfs"])
    assert command_line(arguments, "python").count("--scheduling-policy") == 1


def test_a_users_own_scheduler_stays() -> None:
    arguments = parse_arguments(["org/model", "--scheduler_cls=mine.Scheduler"])
    command = command_line(arguments, "python")
    assert "--scheduler-cls" not in command and "--scheduler_cls=mine.Scheduler" in command


@pytest.mark.parametrize(
    ("argv", "model", "url"),
    [
        (["m"], "m", "http://127.0.0.1:8000"),
        (["serve", "m", "--port=9"], "m", "http://127.0.0.1:9"),
        (["--model", "m", "--host", "0.0.0.0"], "m", "http://127.0.0.1:8000"),
        (["--host", "10.0.0.1", "--model=m"], "m", "http://10.0.0.1:8000"),
        (["m", "--host", "::"], "m", "http://[::1]:8000"),
        (["m", "--port", "1", "--port", "2"], "m", "http://127.0.0.1:2"),
    ],
)
def test_model_and_address_are_read(argv: list[str], model: str, url: str) -> None:
    arguments = parse_arguments(argv)
    assert (arguments.model, arguments.url) == (model, url)
    assert not any(word.startswith("--model") for word in arguments.rest)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no model given"), (["--port", "1"], "no model given"),
        (["/no/such/model"], "model path `/no/such/model` does not exist"),
        (["m", "--port", "x"], "`x` is not a port"), (["m", "--port"], "`` is not a port"),
        (["m", "--port", "70000"], "`70000` is not a port"),
        (["m", "--uds", "/tmp/s"], "`--uds` does not work"),
        (["m", "--ssl_keyfile=k"], "`--ssl-keyfile` does not work"),
        (["m", "--headless"], "`--headless` does not work"),
        (["m", "--api-server-count", "2"], "the gate counts in one process"),
        (["m", "-asc=2"], "`--api-server-count 2` does not work"),
        (["m", "--api_server_count=0"], "`--api-server-count 0` does not work"),
        (["m", "--api-server", "2"], "is an abbreviation; write `--api-server-count`"),
        (["m", "--por", "2"], "`--por` is an abbreviation; write `--port`"),
        (["m", "--config", "vllm.yaml"], "cannot be read here; write them after `--`"),
        (["m", "--distributed-executor-backend", "ray"], "backend ray` .* processes of the server"),
        (["m", "--distributed-executor-backend=external_launcher"], "`--distributed-executor-"),
        (["m", "-dp", "2", "-dpb", "ray"], "`--data-parallel-backend ray` does not work"),
        (["m", "--nnodes", "2"], "start one of each on the others"),
        (["m", "-dp", "2", "-dpr", "1"], "`--data-parallel-start-rank` does not work"),
        (["m", "--data-parallel-external-lb"], "`--data-parallel-external-lb` does not work"),
        (["m", "--data_parallel_hybrid_lb"], "`--data-parallel-hybrid-lb` does not work"),
        (["m", "--enable-elastic-ep"], "`--enable-elastic-ep` does not work"),
    ],
)
def test_what_cannot_work_is_refused(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        parse_arguments(argv)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [
        ["-dp", "2"], ["--data-parallel-size=2"], ["-tp", "2"], ["--api-server-count", "1"],
        ["--distributed-executor-backend", "mp"], ["--distributed_executor_backend=uni"],
        ["--nnodes", "1"], ["--ssl-cert-reqs", "0"], ["--data-parallel-size", "2", "-dpb", "mp"],
    ],
)
def test_what_works_is_passed_on_as_it_was_given(words: list[str]) -> None:
    assert parse_arguments(["m", *words]).rest == tuple(words)


def test_a_rank_in_the_environment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_check_installed", lambda: None)
    with pytest.raises(UsageError, match=r"VLLM_DP_SIZE is `2`.*--data-parallel-size"):
        start(["m"], EngineConfig(), tmp_path, env={"VLLM_DP_SIZE": "2"})


def test_a_folder_that_holds_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no config.json"):
        parse_arguments([str(tmp_path)])


def test_plugins_that_loaded_before_still_load() -> None:
    settings = Path("core.json")
    named = environment({"VLLM_PLUGINS": "mine,resilience"}, settings)["VLLM_PLUGINS"]
    assert named == "mine,resilience,resilience_http"
    allowed = environment({}, settings)["VLLM_PLUGINS"].split(",")
    assert allowed[-1] == "resilience_http" and allowed.count("resilience") == 1
    assert environment({"A": "b"}, settings)["A"] == "b"


@pytest.mark.parametrize(("base", "seen"), [({}, ""), ({FORWARDED: "10.0.0.1"}, "10.0.0.1")])
def test_nobodys_word_on_its_address_counts_unless_it_is_said_whose(
    tmp_path: Path, base: dict[str, str], seen: str
) -> None:
    told = tmp_path / "told"
    program = f"import os; open({str(told)!r}, 'w').write(os.environ[{FORWARDED!r}])"
    process = spawn([sys.executable, "-c", program], "", "token", tmp_path, base)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process.stop(60.0) == 0
    assert told.read_text() == seen


def test_settings_and_token_are_private(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first, settings = write_settings(EngineConfig(), state)
    second, _ = write_settings(EngineConfig(), state)
    assert first != second and read_token(state / "core.token") == second
    (tmp_path / "two").write_text(f"{first}\n{second}\n")
    with pytest.raises(UsageError, match="holds more than one token") as caught:
        read_token(tmp_path / "two")
    assert first not in str(caught.value)
    for name in ("core.token", "core.json"):
        assert stat.S_IMODE((state / name).stat().st_mode) == 0o600
    body = json.loads(settings.read_text(encoding="utf-8"))
    assert GateConfig.from_json(body["gate"]) == GateConfig.from_engine(EngineConfig())
    assert second not in settings.read_text(encoding="utf-8")
    assert access_from(body) == Access(second, LOOPBACK)


def test_other_machines_drive_the_core_only_when_it_is_said(tmp_path: Path) -> None:
    token, settings = write_settings(EngineConfig(), tmp_path, ("10.0.0.0/8",))
    body = json.loads(settings.read_text(encoding="utf-8"))
    assert access_from(body) == Access(token, ("10.0.0.0/8",))
    with pytest.raises(UsageError, match="`ten` is not a network"):
        write_settings(EngineConfig(), tmp_path, ("ten",))


@pytest.mark.parametrize("token", ["short", "é" * 40, ""])
def test_a_server_without_a_good_token_does_not_start(tmp_path: Path, token: str) -> None:
    (tmp_path / "t").write_text(token, encoding="utf-8")
    with pytest.raises(ValueError, match="token"):
        access_from({"token_file": str(tmp_path / "t")})
    with pytest.raises(ValueError, match="names no token file"):
        access_from({})


def test_a_bad_gate_configuration_starts_nothing(tmp_path: Path) -> None:
    config = EngineConfig(tier_source=TierSource(default="gold"))
    with pytest.raises(UsageError, match="default tier `gold` is none of"):
        write_settings(config, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_state_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    taken = tmp_path / "state"
    taken.write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot write to the state folder"):
        write_settings(EngineConfig(), taken)


def test_a_taken_port_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_check_installed", lambda: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port `{port}` .* choose another with `--port`"):
            start(
                ["m", "--host", "127.0.0.1", "--port", str(port)], EngineConfig(), tmp_path / "s"
            )
    assert not (tmp_path / "s").exists()


def test_without_vllm_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="install `resilience-engine"):
        start(["m"], EngineConfig(), tmp_path)


LOG = """\
(APIServer pid=1) INFO 11-29 19:37:38 [api_utils.py:347] starting
(EngineCore pid=2) ERROR 11-29 19:37:38 [core.py:1512] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-29 19:37:38 [core.py:1512] ValueError: no room for the cache
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: leaked
"""


WORKER = """\
(VllmWorker-0 pid=3) ERROR 11-30 18:23:55 [executor.py:953] ValueError: less memory than desired
(EngineCore pid=2) ERROR 11-30 18:23:57 [core.py:1510] Exception: see root cause. See stack trace
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
"""
KILLED = """\
(EngineCore pid=2) ERROR 11-30 18:32:03 [a.py:315] Worker proc W-0 died unexpectedly (exit code: -9)
(APIServer pid=1) ERROR 11-30 18:32:03 [b.py:500] v1.EngineDeadError: it ended. See stack trace
RuntimeError: cancelled
"""
CORE_KILLED = """\
(APIServer pid=5) WARNING 11-30 18:58:44 [c.py:817] MPClient: engine core exited unexpectedly; bye
(APIServer pid=5) ERROR 11-30 18:58:44 [a.py:906] v1.EngineDeadError: it ended. See stack trace
See https://nanobind.example.org
"""
FIELD = """\
(APIServer pid=1) pydantic_core.ValidationError: 2 validation errors for SchedulerConfig
(APIServer pid=1) max_num_seqs
(APIServer pid=1)   Input should be at least 1 [type=greater_than_equal, input_value=0]
(APIServer pid=1)     For further information visit https://errors.example.org
"""
NO_FIELD = """\
pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, the length is too great [type=value_error, input_value=1]
    For further information visit https://errors.example.org
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LOG, "ValueError: no room for the cache"),
        (WORKER, "ValueError: less memory than desired"),
        (KILLED, "Worker proc W-0 died unexpectedly (exit code: -9)"),
        (CORE_KILLED, "MPClient: engine core exited unexpectedly; bye"),
        (FIELD, "pydantic_core.ValidationError: 2 validation errors for SchedulerConfig: "
                "max_num_seqs: Input should be at least 1"),
        (NO_FIELD, "pydantic_core.ValidationError: 1 validation error for ModelConfig: "
                   "Value error, the length is too great"),
        ("usage: x\nentry.py: error: unrecognized arguments: --no-such\n",
         "entry.py: error: unrecognized arguments: --no-such"),
        ("one\ntwo\n\n", "two"), ("", "the log is empty"),
    ],
)
def test_the_last_words_of_a_server_are_its_real_error(
    tmp_path: Path, text: str, words: str
) -> None:
    log = tmp_path / "core.log"
    log.write_text(text, encoding="utf-8")
    assert last_words(log) == words


def test_an_endless_last_line_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "core.log"
    log.write_bytes(b"\xff" * 200_000)
    assert len(last_words(log)) == 300
    assert last_words(tmp_path / "none") == "there is no log"


def test_a_core_that_is_not_there_is_unreachable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with HttpCore(url, "t" * 32) as core:
            with pytest.raises(CoreUnreachableError, match="cannot reach the core at"):
                core.actual(deadline_ms=1_000)
            assert not core.is_healthy(deadline_ms=1_000)


def test_a_core_that_never_answers_costs_no_more_than_the_deadline() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen(1)
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        late = pytest.raises(CoreUnreachableError, match="no answer .* in 50 ms")
        with HttpCore(url, "t" * 32) as core, late:
            core.actual(deadline_ms=50)
