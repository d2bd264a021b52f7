"""Notifications against real HTTP servers on the loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from resilience.app.bundles import Sources, check_sources
from resilience.app.journal import MemoryJournal
from resilience.app.notifier import Notifier
from resilience.app.outbox import Alert
from resilience.errors import FindingsError
from resilience.model import EngineConfig, JournalEntry, Receiver

T = 1_800_000_000_000
POLICY = """
apiVersion: resilience/v1
kind: Policy
metadata:
  name: queue
  labels: {team: serving}
  annotations: {summary: "{{ $value }} wait on {{ $labels.model_name }}", runbook_url: docs/r.md}
spec:
  interval: 1s
  trigger:
    expr: max by (model_name) (vllm:num_requests_waiting) > 10
    on_no_data: hold
    resolve: {expr: max by (model_name) (vllm:num_requests_waiting) < 2}
  actions:
    - {type: notify, to: oncall, severity: page, lease: 30s}
"""
ENGINE = """
---
apiVersion: resilience/v1
kind: Engine
metadata: {name: engine}
spec:
  receivers: [RECEIVER]
"""


class Server:
    """A receiver: keeps what it gets, and answers with the scripted statuses, then 200."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], Any]] = []
        self.statuses: list[int] = []
        self.arrived = threading.Condition()
        self.hang = threading.Event()
        self.hang.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # noqa: N802
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.hang.wait(60)
                with outer.arrived:
                    outer.got.append((self.path, dict(self.headers.items()), body))
                    status = outer.statuses.pop(0) if outer.statuses else 200
                    outer.arrived.notify_all()
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def wait(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.got) >= count, 60)

    def close(self) -> None:
        self.hang.set()
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


class Lines:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def append_line(self, name: str, line: str) -> None:
        assert name == "notifications.jsonl"
        self.lines.append(line)


def sources(receiver: str, to: str = "oncall") -> Sources:
    text = POLICY.replace("to: oncall", f"to: {to}") + ENGINE.replace("RECEIVER", receiver)
    return Sources((("queue.yaml", text.encode()),))


class Notified:
    """The rig with a notifier whose tries are made by hand."""

    def __init__(self, rig: Any, made: Sources, journal: Any = None) -> None:
        self.rig, self.files = rig, Lines()
        parts = rig.runtime.parts
        self.notifier = parts.notifier = Notifier(
            EngineConfig(), journal or rig.journal, rig.clock, self.files, rig.said.append,
            threads=False,
        )
        rig.operations.apply(made, allow_missing=True)

    def second(self, waiting: float) -> None:
        self.rig.second(waiting)
        self.notifier.work()


def test_alertmanager_gets_firing_repeats_before_the_lease_ends_and_resolved(
    rig: Any, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    receiver = (f"{{name: oncall, type: alertmanager, url: '{server.url}/', labels: {{zone: a}}, "
                f"auth: {{bearer_token_file: {tmp_path / 'token'}}}}}")
    notified = Notified(rig, sources(receiver))
    for waiting in (0, 20, *[20] * 24, 0):
        notified.second(waiting)
    path, headers, (first,) = server.got[0]
    assert (path, headers["authorization"]) == ("/api/v2/alerts", "Bearer s3cret")
    assert first["labels"] == {"alertname": "queue", "severity": "page", "model_name": "m",
                               "team": "serving", "zone": "a"}
    assert first["annotations"] == {"summary": "20 wait on m", "runbook_url": "docs/r.md"}
    sent = [alert for _, _, (alert,) in server.got]
    assert [a["startsAt"] for a in sent] == [first["startsAt"]] * 4  # thrice firing, and the end
    assert first["endsAt"] > first["startsAt"]
    assert sent[-1]["endsAt"] < sent[-2]["endsAt"]
    shown_anywhere = [*notified.files.lines, *rig.said, str(rig.ask("GET", "status"))]
    assert "s3cret" not in "".join(shown_anywhere)
    (shown,) = [n for n in rig.ask("GET", "status")["notifications"] if n["receiver"] == "oncall"]
    assert (shown["sent"], shown["failed"], shown["queued"], shown["firing"]) == (4, 0, 0, 0)
    assert 'resilience_notifications_total{outcome="sent",receiver="oncall"} 4.0' in (
        rig.public("/metrics").body.decode())


def test_a_webhook_is_told_once_as_firing_and_once_as_resolved(rig: Any, server: Server) -> None:
    notified = Notified(rig, sources(f"{{name: oncall, type: webhook, url: '{server.url}/x?a=1'}}"))
    for waiting in (0, 20, *[20] * 60, 0, 0):
        notified.second(waiting)
    assert [(path, b["status"]) for path, _, b in server.got] == [
        ("/x?a=1", "firing"), ("/x?a=1", "resolved")]
    body = server.got[0][2]
    assert body["version"] == "4" and body["receiver"] == "oncall"
    (alert,) = body["alerts"]
    assert (alert["status"], alert["endsAt"]) == ("firing", "0001-01-01T00:00:00Z")
    assert body["commonLabels"] == alert["labels"]
    assert [json.loads(line)["status"] for line in notified.files.lines] == ["firing", "resolved"]


def test_a_restart_tells_nothing_twice_and_resolves_what_ended_meanwhile(
    rig: Any, server: Server
) -> None:
    made = sources(f"{{name: oncall, type: webhook, url: '{server.url}'}}")
    notified = Notified(rig, made)
    for waiting in (0, 20, 20):
        notified.second(waiting)
    config = check_sources(made).bundle.config
    again = Notifier(config, rig.journal, rig.clock, Lines(), rig.said.append, threads=False)
    rig.runtime.parts.notifier = again
    rig.second(20)
    again.work()
    assert len(server.got) == 1
    rig.second(0)
    third = Notifier(config, rig.journal, rig.clock, Lines(), rig.said.append, threads=False)
    rig.runtime.parts.notifier = third
    rig.second(0)
    third.work()
    assert [b["status"] for _, _, b in server.got] == ["firing", "resolved"]
    assert rig.journal.load("notice") == {}


def test_a_failing_receiver_is_tried_again_later_and_said_once(rig: Any, server: Server) -> None:
    server.statuses = [500, 503]
    notified = Notified(rig, sources(f"{{name: oncall, type: webhook, url: '{server.url}'}}"))
    for waiting in (0, *[20] * 9):
        notified.second(waiting)
    assert [b["status"] for _, _, b in server.got] == ["firing"] * 3
    assert [s for s in rig.said if "oncall" in s] == [
        "receiver `oncall`: HTTP 500", "receiver `oncall`: HTTP 503",
        "receiver `oncall` takes notifications again"]
    assert [json.loads(line)["error"] for line in notified.files.lines] == [
        "HTTP 500", "HTTP 503", None]


def test_a_refusal_is_final_and_counted(rig: Any, server: Server) -> None:
    server.statuses = [400] * 100
    notified = Notified(rig, sources(f"{{name: oncall, type: webhook, url: '{server.url}'}}"))
    for waiting in (0, *[20] * 30, 0, 0):
        notified.second(waiting)
    assert len(server.got) == 1
    (shown,) = [n for n in rig.ask("GET", "status")["notifications"] if n["receiver"] == "oncall"]
    assert (shown["sent"], shown["failed"], shown["error"]) == (0, 1, "HTTP 400")


@pytest.mark.parametrize(("receiver", "words"), [
    ("{name: oncall, type: webhook, url_file: /nonexistent/hook}", "file of the URL"),
    ("{name: oncall, type: webhook, url_env: NO_SUCH_VARIABLE_HERE}", "`NO_SUCH_VARIABLE_HERE`"),
    ("{name: oncall, type: webhook, url: 'http://127.0.0.1:9/'}", "cannot be reached"),
])
def test_what_is_missing_at_send_time_is_said_and_the_ticks_go_on(
    rig: Any, receiver: str, words: str
) -> None:
    notified = Notified(rig, sources(receiver))
    for waiting in (0, 20, 20):
        notified.second(waiting)
    assert any(words in text for text in rig.said)
    assert rig.ask("GET", "policies")["policies"][0]["state"] == "firing"


def test_a_receiver_that_hangs_delays_neither_ticks_nor_the_others(
    rig: Any, server: Server
) -> None:
    other = Server()
    two = (f"{{name: oncall, type: webhook, url: '{server.url}'}}, "
           f"{{name: second, type: webhook, url: '{other.url}'}}")
    both = Sources(tuple(
        (p, b.replace(b"lease: 30s}", b"lease: 30s}\n    - {type: notify, to: second}"))
        for p, b in sources(two).files
    ))
    server.hang.clear()
    parts = rig.runtime.parts
    parts.notifier = Notifier(
        check_sources(both).bundle.config, rig.journal, rig.clock, Lines(), rig.said.append
    )
    rig.operations.apply(both, allow_missing=True)
    for waiting in (0, 20, 20, 20):
        rig.second(waiting)                   # would not return if it waited for the receiver
    other.wait(1)
    assert not server.got
    server.hang.set()
    server.wait(1)
    parts.notifier.close()
    parts.notifier = None
    other.close()


def test_shadow_and_paused_policies_notify_nobody(rig: Any, server: Server) -> None:
    made = sources(f"{{name: oncall, type: webhook, url: '{server.url}'}}")
    shadow = Sources(tuple((p, b.replace(b"  interval: 1s", b"  interval: 1s\n  mode: shadow"))
                           for p, b in made.files))
    notified = Notified(rig, shadow)
    for waiting in (0, 20, 20):
        notified.second(waiting)
    assert server.got == []
    (fired,) = rig.ask("GET", "decisions?policy=queue&limit=1")["decisions"]
    assert fired["claims_after"][0]["knob"] == "notify.oncall"     # and a dry run shows the same


def test_the_log_is_a_receiver(rig: Any) -> None:
    notified = Notified(rig, sources("", to="log"))
    for waiting in (0, 20, 0):
        notified.second(waiting)
    told = [s for s in rig.said if s.startswith(("firing", "resolved"))]
    assert told == [
        f'{word}: {{alertname="queue", model_name="m", severity="page", team="serving"}} '
        "20 wait on m" for word in ("firing", "resolved")
    ]


@pytest.mark.parametrize(("receiver", "to", "words"), [
    ("{name: oncall, type: webhook, url: 'http://x'}", "oncal", "did you mean `oncall`"),
    ("{name: oncall, type: webhook}", "oncall", "needs one of `url`"),
    ("{name: oncall, type: webhook, url: 'http://x', url_env: X}", "oncall", "needs one of `url`"),
    ("{name: log, type: webhook, url: 'http://x'}", "log", "is built in"),
    ("{name: a, type: webhook, url: 'http://x'}, {name: a, type: webhook, url: 'http://x'}", "a",
     "defined twice"),
    ("{name: oncall, type: webhook, url: 'http://u:p@x'}", "oncall", "user or password"),
    ("{name: oncall, type: webhook, url: 'http://x', auth: {username: u}}", "oncall", "`username`"),
    ("{name: oncall, type: webhook, url: 'http://x', auth: {bearer_token_env: A, "
     "bearer_token_file: b}}", "oncall", "several ways"),
    ("{name: oncall, type: pager, url: 'http://x'}", "oncall", "pager"),
])
def test_a_wrong_receiver_is_found_by_check(receiver: str, to: str, words: str) -> None:
    with pytest.raises(FindingsError) as found:
        check_sources(sources(receiver, to=to))
    told = [str(f) for f in found.value.findings if f.severity == "error"]
    assert any(words in text for text in told), told
    assert all(text.startswith("queue.yaml:") for text in told)


def test_an_alert_survives_the_journal() -> None:
    journal = MemoryJournal()
    receiver = Receiver("oncall", "webhook", url="http://x")
    box = Alert("oncall/p/i/0", (("alertname", "a"),), (), T, 30_000)
    journal.append([JournalEntry("notice", box.key, box.to_json())])
    again = Notifier(EngineConfig(receivers=(receiver,)), journal, _Still(), Lines(), print)
    assert [v["firing"] for v in again.view() if v["receiver"] == "oncall"] == [1]
    assert Alert.from_json(box.to_json()) == box
    again.configure(EngineConfig(receivers=(Receiver("oncall", "webhook", url="http://y"),)))
    assert [v["firing"] for v in again.view() if v["receiver"] == "oncall"] == [1]
    again.configure(EngineConfig())
    assert journal.load("notice") == {}


class _Still:
    def now_ms(self) -> int:
        return T

    def monotonic_ms(self) -> int:
        return 0


class _Slow:
    """A sender whose try lasts until it is let go."""

    def __init__(self) -> None:
        self.trying, self.go_on, self.closed = (threading.Event() for _ in range(3))

    def send(self, alerts: Any, now_ms: int) -> None:
        self.trying.set()
        assert self.go_on.wait(60)

    def close(self) -> None:
        self.closed.set()


def test_a_receiver_that_goes_in_the_midst_of_a_try_is_let_go_afterwards(rig: Any) -> None:
    made = sources("{name: oncall, type: webhook, url: 'http://127.0.0.1:1'}")
    slow: dict[str, _Slow] = {}
    notifier = rig.runtime.parts.notifier = Notifier(
        EngineConfig(), rig.journal, rig.clock, Lines(), rig.said.append,
        sender=lambda receiver: slow.setdefault(receiver.name, _Slow()),
    )
    rig.operations.apply(made, allow_missing=True)
    for waiting in (0, 20, 20):
        rig.second(waiting)
    assert slow["oncall"].trying.wait(60)
    notifier.configure(EngineConfig())
    assert not slow["oncall"].closed.is_set()
    slow["oncall"].go_on.set()
    assert slow["oncall"].closed.wait(60)
    rig.runtime.parts.notifier = None
    slow["log"].go_on.set()
    notifier.close()
