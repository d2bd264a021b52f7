"""The way of a newcomer, in an empty folder, with the built wheel and nothing of the checkout.

init, edit, check, test, dry run on the recording that `init` wrote, the report in a browser; then
serve on a small model, apply, explain, rollback. The edit is the page docs/first-policy.md.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.live.serving import Load
from tools.browser import VARIABLE, find
from tools.ports import free_port
from tools.prepare_model import CACHE, NAME

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "first-policy.md"
READY_S, FIRED_S, GONE_S = 600.0, 300.0, 120.0
SEATS, CLIENTS = 2, 8


class Installed(Protocol):
    """The fixture of conftest.py."""

    bin: Path
    elsewhere: Path

    def run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="module")
def folder(installed: Installed) -> Path:
    """What `init` wrote, with the first policy of the documentation beside it."""
    begun = installed.run("resilience", "init", "mine")
    assert begun.returncode == 0, begun.stderr
    mine = installed.elsewhere / "mine"
    policy, test = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    (mine / "rules" / "first.yaml").write_text(policy)
    (mine / "rules" / "first.test.yaml").write_text(test)
    return mine


def test_check_test_and_dry_run(installed: Installed, folder: Path) -> None:
    checked = installed.run("resilience", "check", "rules/", "--strict", cwd=folder)
    assert (checked.returncode, checked.stdout) == (0, "")
    tested = installed.run("resilience", "test", "rules/", "--coverage", cwd=folder)
    assert tested.returncode == 0, tested.stdout
    assert "3 passed, 0 failed" in tested.stderr
    dry = installed.run(*_dry_run(), cwd=folder)
    assert dry.returncode == 0, dry.stderr
    firings = dict(re.findall(r"^([\w-]+) +(\d+) +\d", dry.stdout, re.M))
    assert firings == {"first": "1", "queue-limit": "1"}
    assert (folder / "report.html").stat().st_size < 1_000_000


def test_a_mistake_is_told_with_its_place(installed: Installed, folder: Path) -> None:
    path = folder / "rules" / "first.yaml"
    right = path.read_text()
    path.write_text(right.replace("on_no_data: hold", "on_no_dota: hold"))
    try:
        told = installed.run("resilience", "check", "rules/", cwd=folder)
    finally:
        path.write_text(right)
    assert told.returncode == 3
    assert "rules/first.yaml:14:5: error" in told.stdout
    assert "did you mean `on_no_data`?" in told.stdout


def _dry_run() -> tuple[str, ...]:
    return ("resilience", "apply", "rules/", "--dry-run", "--recording",
            "recordings/queue.parquet", "--html", "report.html")


def test_the_report_in_a_browser(installed: Installed, folder: Path) -> None:
    where = find()
    if where is None:
        pytest.skip(f"no Chromium: install one (python -m tools.browser) or name it in {VARIABLE}")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    assert installed.run(*_dry_run(), cwd=folder).returncode == 0
    arguments = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    said: list[str] = []
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(where), args=arguments)
        page = browser.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto((folder / "report.html").as_uri())
        plots = [plot.get_attribute("aria-label") for plot in page.get_by_role("img").all()]
        browser.close()
    assert said == []
    assert [plot.partition(", active")[0] for plot in plots] == [
        "Plot of first over time: 1 firing", "Plot of queue-limit over time: 1 firing",
    ]


# --- on a server ---------------------------------------------------------------------------------


class Serving:
    """`resilience serve` on a small model, and commands for it, all of them from the wheel."""

    def __init__(self, installed: Installed, folder: Path, home: Path) -> None:
        self._bin, self._folder, self._home = installed.bin, folder, home
        self.port = free_port()
        with (home / "serve.log").open("w") as log:
            self.process = subprocess.Popen(
                [self._bin / "resilience", "serve", "rules/", "--state", home / "state", "--",
                 str(CACHE / NAME), "--host", "127.0.0.1", "--port", str(self.port),
                 "--served-model-name", "tiny", "--max-model-len", "2048", "--max-num-seqs",
                 str(SEATS), "--enforce-eager"],
                cwd=folder, env=self._environment(), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def _environment(self) -> dict[str, str]:
        """vLLM is that of the checkout's environment; everything else goes before it."""
        vllm = importlib.util.find_spec("vllm")
        assert vllm is not None and vllm.origin is not None
        own = next(self._bin.parent.glob("lib/python*/site-packages"))
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RESILIENCE"))}
        return keep | {
            "HOME": str(self._home), "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": f"{own}:{Path(vllm.origin).parents[1]}",
        }

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._bin / "resilience", *words, "--state", self._home / "state"], text=True,
            cwd=self._folder, env=self._environment(), capture_output=True, timeout=300,
            check=False,
        )

    def read(self, what: str) -> Any:
        answer = self.ask("get", what, "-o", "json")
        return json.loads(answer.stdout)[what] if answer.returncode == 0 else []

    def until(self, fits: Callable[[], Any], limit_s: float) -> Any:
        """Return the first true answer; a look takes a process, so it needs no pause."""
        ends_s = time.monotonic() + limit_s
        while time.monotonic() < ends_s and self.process.poll() is None:
            found = fits()
            if found:
                return found
        raise AssertionError((self._home / "serve.log").read_text()[-3000:])

    @contextmanager
    def load(self) -> Generator[None]:
        """Ask for more long answers than the server has seats, as long as this lasts."""
        load = Load(f"http://127.0.0.1:{self.port}", CLIENTS, model="tiny", tokens=2_000, begun=1)
        try:
            yield
        finally:
            load.end()


@pytest.fixture
def serving(
    installed: Installed, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    pytest.importorskip("vllm", reason="the path on a server needs vLLM", exc_type=ImportError)
    if not (CACHE / NAME / "config.json").is_file():
        pytest.skip("the path on a server needs the demo's model: python -m tools.prepare_model")
    started = Serving(installed, folder, tmp_path_factory.mktemp("serve"))
    try:
        yield started
    finally:
        started.process.send_signal(signal.SIGTERM)
        try:
            started.process.wait(120)
        except subprocess.TimeoutExpired:
            started.process.kill()


@pytest.mark.live
def test_serve_apply_explain_rollback(serving: Serving, folder: Path) -> None:
    serving.until(lambda: serving.read("policies"), READY_S)
    policy = folder / "rules" / "queue-limit.yaml"
    text = policy.read_text()
    policy.write_text(text.replace("mode: shadow ", "mode: enforce").replace("> 20", "> 3"))
    planned = serving.ask("plan", "rules/")
    assert "~     spec.mode: shadow -> enforce" in planned.stdout, planned.stderr
    applied = serving.ask("apply", "rules/")
    assert applied.returncode == 0, applied.stderr
    with serving.load():
        (claim,) = serving.until(lambda: serving.read("claims"), FIRED_S)
        assert (claim["policy"], claim["knob"]) == ("queue-limit", "throttle.max_concurrency")
        fired = next(d for d in serving.read("decisions") if d["to"] == "firing")
        explained = serving.ask("explain", fired["id"])
        assert explained.returncode == 0, explained.stderr
        assert "vllm:num_requests_waiting" in explained.stdout
        back = serving.ask("rollback")
        assert back.returncode == 0, back.stderr
        serving.until(lambda: not serving.read("claims"), GONE_S)
    history = serving.ask("history")
    assert "rollback" in history.stdout, history.stderr
    serving.process.send_signal(signal.SIGINT)
    assert serving.process.wait(120) in (0, 130)
