"""A real Alertmanager takes what `notify` sends, repeats it no second time, and sees its end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from resilience.app.outbox import Alert
from resilience.app.senders import HttpSender, SendError
from resilience.model import Receiver
from tests.live import metric_servers as kit
from tools.ports import free_port

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
READY_S = 120.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("alertmanager")
    (home / "config.yml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    address = f"127.0.0.1:{free_port()}"
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [kit.program("prometheus-alertmanager"), f"--config.file={home / 'config.yml'}",
             f"--storage.path={home / 'data'}", f"--web.listen-address={address}",
             "--cluster.listen-address="], stdout=log, stderr=subprocess.STDOUT,
        )
    try:
        _wait_ready(process, f"http://{address}", home / "log")
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(20)


def _wait_ready(process: Any, url: str, log: Path) -> None:
    ends_s = time.monotonic() + READY_S
    while time.monotonic() < ends_s:
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(f"{url}/-/ready", trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise AssertionError(log.read_text())


def known(url: str, name: str) -> list[Any]:
    answer = httpx.get(
        f"{url}/api/v2/alerts", params={"filter": f'alertname="{name}"'}, timeout=60,
        trust_env=False)
    found: list[Any] = answer.json()
    return found


def alert(name: str, ends_ms: int | None = None, starts_ms: int | None = None) -> Alert:
    now_ms = time.time_ns() // 1_000_000
    labels = (("alertname", name), ("model_name", "m"), ("severity", "page"))
    return Alert(name, labels, (("summary", "20 wait"),), starts_ms or now_ms, 30_000,
                 ends_ms=ends_ms)


def test_firing_is_known_once_however_often_it_is_told_and_resolved_ends_it(
    url: str, eventually: Callable[..., None]
) -> None:
    sender = HttpSender(Receiver("oncall", "alertmanager", url=url, timeout_ms=60_000))
    fired = alert("queue")
    for _ in range(3):
        sender.send([fired], time.time_ns() // 1_000_000)
    eventually(lambda: known(url, "queue"))
    (seen,) = known(url, "queue")
    assert seen["labels"] == {"alertname": "queue", "model_name": "m", "severity": "page"}
    assert seen["annotations"] == {"summary": "20 wait"}
    assert seen["status"]["state"] == "active"
    now_ms = time.time_ns() // 1_000_000
    sender.send([alert("queue", ends_ms=now_ms, starts_ms=fired.starts_ms)], now_ms)
    eventually(lambda: not known(url, "queue"))
    sender.close()


def test_an_alert_of_an_engine_that_died_ends_with_its_lease(
    url: str, eventually: Callable[..., None]
) -> None:
    sender = HttpSender(Receiver("oncall", "alertmanager", url=url, timeout_ms=60_000))

    def told_a_while_ago() -> list[Any]:
        """Let it be known for two seconds more, and look; later than that it is told again."""
        sender.send([alert("dead")], time.time_ns() // 1_000_000 - 28_000)
        return known(url, "dead")

    eventually(told_a_while_ago)
    eventually(lambda: not known(url, "dead"))
    sender.close()


def test_what_alertmanager_refuses_is_final(url: str) -> None:
    sender = HttpSender(Receiver("oncall", "alertmanager", url=url, timeout_ms=60_000))
    now_ms = time.time_ns() // 1_000_000
    bad = Alert("bad", (("", "x"),), (), now_ms, 30_000)    # no version takes a label without name
    with pytest.raises(SendError, match="HTTP 400") as refused:
        sender.send([bad], now_ms)
    assert refused.value.final
    sender.close()
