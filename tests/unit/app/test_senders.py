"""One try of a notification against receivers that answer badly, slowly, or without an end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Literal

import pytest

from resilience.app.outbox import Alert
from resilience.app.senders import HttpSender, SendError
from resilience.model import Receiver

T = 1_800_000_000_000
ALERT = Alert("queue", (("alertname", "queue"),), (), T, 30_000)
WELL = b"HTTP/1.1 200 OK\r\n"
EMPTY = b"content-length: 0\r\n\r\n"
PIECE = b"x" * 4_096


class Bad:
    """A receiver that answers each connection with `first`, then with `more` until the other side
    has had enough or the test is over; then it closes."""

    def __init__(self) -> None:
        self.first, self.more = b"", b""
        self.pace_s = 0.0
        self.asked = 0
        self.left = threading.Event()      # the other side went by itself
        self._over = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                if self._over.is_set():
                    return
                self.asked += 1
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(60)
        try:
            connection.recv(65_536)
            connection.sendall(self.first)
            while self.more and not self._over.wait(self.pace_s):
                connection.sendall(self.more)
        except OSError:
            self.left.set()

    def close(self) -> None:
        self._over.set()
        with socket.create_connection(self._socket.getsockname()):
            self._thread.join(120)
        self._socket.close()


@pytest.fixture
def bad() -> Iterator[Bad]:
    receiver = Bad()
    yield receiver
    receiver.close()


Send = Callable[..., None]
Kind = Literal["webhook", "alertmanager"]


@pytest.fixture
def send(bad: Bad) -> Iterator[Send]:
    """Try once, as the given type of receiver and in the given time."""
    made: list[HttpSender] = []

    def once(type: Kind = "webhook", timeout_ms: int = 10_000) -> None:
        made.append(HttpSender(Receiver("oncall", type, url=bad.url, timeout_ms=timeout_ms)))
        made[-1].send([ALERT], T)

    yield once
    for sender in made:
        sender.close()


@pytest.mark.parametrize("type", ["webhook", "alertmanager"])
@pytest.mark.parametrize(("first", "why", "final"), [
    (b"", "cannot be reached", False),
    (b"SSH-2.0-OpenSSH_9.6\r\n", "cannot be reached", False),
    (b"HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\n" + EMPTY, "HTTP 302", True),
    (b"HTTP/1.1 401 Unauthorized\r\n" + EMPTY, "HTTP 401", True),
    (b"HTTP/1.1 408 Request Timeout\r\n" + EMPTY, "HTTP 408", False),
    (b"HTTP/1.1 429 Too Many Requests\r\n" + EMPTY, "HTTP 429", False),
    (b"HTTP/1.1 503 Service Unavailable\r\n" + EMPTY, "HTTP 503", False),
])
def test_an_answer_that_is_none_fails_in_one_line(
    bad: Bad, send: Send, first: bytes, why: str, final: bool, type: str
) -> None:
    bad.first = first
    with pytest.raises(SendError, match=why) as failed:
        send(type)
    assert (failed.value.final, bad.asked) == (final, 1)
    assert bad.url not in str(failed.value)


@pytest.mark.parametrize(("first", "more", "pace_s"), [
    (b"", b"H", 0.05),                                   # a status that never comes
    (WELL + b"a: ", b"b", 0.05),                         # headers without an end
])
def test_a_receiver_that_drips_is_left_when_the_time_is_over(
    bad: Bad, send: Send, first: bytes, more: bytes, pace_s: float
) -> None:
    bad.first, bad.more, bad.pace_s = first, more, pace_s
    with pytest.raises(SendError):
        send(timeout_ms=500)
    assert bad.left.wait(60), "it was listened to for ever"


@pytest.mark.parametrize(("more", "pace_s"), [(b"x", 0.05), (PIECE, 0.0)])
def test_what_follows_the_status_is_not_listened_to_for_ever(
    bad: Bad, send: Send, more: bytes, pace_s: float
) -> None:
    bad.first, bad.more, bad.pace_s = WELL + b"\r\n", more, pace_s
    send(timeout_ms=5_000)              # it said that it took the alert
    assert bad.left.wait(60), "it was listened to for ever"
