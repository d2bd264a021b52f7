"""UDFs in a live engine: checked, refused, swapped, counted, quarantined."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from resilience.app.bundles import Sources, check_sources, split_roots
from resilience.app.udfs import Udfs, check_udfs, open_runner
from resilience.cli.check import command
from resilience.errors import FindingsError, SandboxError
from resilience.model import Bundle, UdfCall

kit = sys.modules["app_rig"]
sources = kit.sources
Rig = Any

CALL = b"{type: udf_call, function: halve, timeout: 3s, metrics: {}}"
GOOD = "def halve(ctx):\n    return {'actions': []}\n"
WRONG = "def halve(ctx):\n    return {'actions': [{'type': 'throttle', 'tier': 'nobody'}]}\n"
DENIED = "import os\n\ndef halve(ctx):\n    return {'actions': [], 'note': '{}'.format(1)}\n"


def with_udf(text: str) -> Sources:
    yaml = tuple(
        (p, b.replace(b"{type: throttle, tier: best-effort, max_concurrency: 4, lease: 30s}", CALL))
        for p, b in sources().files
    )
    return Sources(yaml, ((("udfs/halve.py", text),),))


def bundle_of(text: str) -> Bundle:
    return check_sources(with_udf(text)).bundle


def ask(udfs: Udfs, function: str = "halve") -> str:
    """Return how a call ends that has all the time that a busy machine may need."""
    call = UdfCall("p", "i", "0", function, 60_000, {"value": 1})
    return udfs.run([call], deadline_ms=120_000)[0].outcome


def test_check_reads_the_udf_files_that_policies_use(tmp_path: Path) -> None:
    (tmp_path / "udfs").mkdir()
    for path, body in with_udf("").files:
        (tmp_path / path).write_bytes(body)
    file = tmp_path / "udfs" / "halve.py"
    (tmp_path / "udfs" / "unused.py").write_text("import os\n")

    def check(text: str) -> tuple[int, list[str]]:
        file.write_text(text)
        done = CliRunner().invoke(command, [str(tmp_path)], standalone_mode=False)
        return done.return_value, [x for x in done.stdout.splitlines() if "udfs/" in x]

    assert check(GOOD) == (0, [])
    code, lines = check(DENIED)
    assert code == 3 and len(lines) == 2
    assert lines[0].startswith(f"{file}:1:1: error: the module `os`")
    assert lines[1].startswith(f"{file}:4:36: error: `format`") and "f-string" in lines[1]
    code, lines = check("def halve(ctx)\n    return {}\n")
    assert code == 3 and lines[0].startswith(f"{file}:1:15: error: not valid Python")
    code, lines = check("def halve(a, b):\n    return {}\n")
    assert code == 3 and "must take one argument; write `def halve(ctx):`" in lines[0]


def test_apply_refuses_what_the_sandbox_refuses_and_changes_nothing(rig: Rig) -> None:
    before = rig.ask("GET", "bundle")["revision"]
    for dry_run in (True, False):
        with pytest.raises(FindingsError) as refused:
            rig.operations.apply(with_udf(DENIED), dry_run=dry_run)
        assert [(f.file, f.line, f.code) for f in refused.value.findings] == [
            ("udfs/halve.py", 1, "udf-import"), ("udfs/halve.py", 4, "udf-attribute")]
    assert rig.ask("GET", "bundle")["revision"] == before


def test_a_missing_required_layer_refuses_the_bundle() -> None:
    bundle = bundle_of(GOOD)
    strict = replace(bundle, config=replace(bundle.config, sandbox_require=("no such layer",)))
    with pytest.raises(SandboxError, match="UDFs are refused: the sandbox lacks `no such layer`"):
        open_runner(strict)
    weak = replace(strict, config=replace(strict.config, sandbox_allow_weak=True))
    runner = open_runner(weak)
    assert runner is not None
    runner.close()


def test_quarantine_survives_an_apply_of_other_files_and_is_shown(rig: Rig) -> None:
    rig.second(0)
    rig.ask("PUT", "bundle", with_udf(WRONG).to_json())
    udfs = rig.runtime.parts.udfs
    assert [ask(udfs) for _ in range(4)] == ["BAD_RESULT"] * 3 + ["QUARANTINED"]
    (shown,) = rig.ask("GET", "udfs")["udfs"]
    assert shown["quarantined"] == "failed 3 times in a row, last with BAD_RESULT"
    metrics = rig.runtime.metrics.exposition().decode()
    assert 'resilience_udf_quarantined{function="halve"} 1.0' in metrics
    assert 'resilience_udf_calls_total{function="halve",outcome="BAD_RESULT"} 3.0' in metrics
    assert 'resilience_sandbox_layer{layer="seccomp"} 1.0' in metrics
    changed = with_udf(WRONG)
    rig.operations.apply(replace(changed, files=tuple(
        (p, b.replace(b"timeout: 3s", b"timeout: 2s")) for p, b in changed.files)))
    assert ask(udfs) == "QUARANTINED"
    rig.operations.apply(with_udf(GOOD))
    assert (ask(udfs), dict(udfs.quarantined())) == ("ok", {})


def test_no_call_is_lost_while_bundles_are_swapped() -> None:
    udfs = Udfs()
    udfs.adopt(bundle_of(GOOD))
    seen: list[str] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            seen.append(ask(udfs))

    thread = threading.Thread(target=call)
    thread.start()
    for n in range(4):
        udfs.adopt(bundle_of(f"# {n}\n{GOOD}"))
    stop.set()
    thread.join()
    udfs.close()
    assert set(seen) == {"ok"}
    assert ask(udfs) == "CRASH"


def test_a_call_on_a_closed_sandbox_ends_at_once() -> None:
    runner = open_runner(bundle_of(GOOD))
    assert runner is not None
    runner.close()
    call = UdfCall("p", "i", "0", "halve", 3_000, {})
    assert runner.run([call], deadline_ms=5_000)[0].outcome == "CRASH"


def test_missing_layers_are_said_once() -> None:
    said: list[str] = []
    udfs = Udfs(said.append)
    udfs.adopt(bundle_of(GOOD))
    missing = [layer.name for layer in udfs.layers() if not layer.engaged]
    udfs.adopt(bundle_of(f"# again\n{GOOD}"))
    udfs.close()
    assert [line.split("`")[1] for line in said] == missing


def test_a_helper_of_one_root_may_have_the_name_of_a_function_of_another() -> None:
    own = "def helper(ctx):\n    return 1\n\ndef other(ctx):\n    return {'actions': []}\n"
    roots = (
        {"udfs/halve.py": GOOD}, {f"udfs.{n}/x.py": own.replace("other", f"other{n}")
                                  for n in (2, 10)},
    )
    bundle = [*roots[0].items(), *roots[1].items(), ("shipped/halve.py", GOOD + "# theirs")]
    assert [[p for p, _ in root] for root in split_roots(bundle)] == [
        ["udfs/halve.py"], ["udfs.2/x.py"], ["udfs.10/x.py"], ["shipped/halve.py"]]
    rebuilt = Sources(with_udf("").files, split_roots(bundle))
    assert check_sources(rebuilt).bundle.udfs == (("udfs/halve.py", GOOD),)
    assert check_udfs(check_sources(rebuilt).bundle.policies, [dict(bundle)]) == []
