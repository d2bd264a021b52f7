"""The zygote: loads UDF files, locks itself, then only forks workers and reaps them.

It runs no UDF code, and contexts and results do not pass through it: they go through the pipes of
each worker, so that a later worker finds nothing of an earlier call in the memory it inherits.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from resilience.sandbox import kernel, worker
from resilience.sandbox.bpf import WRITE_FD
from resilience.sandbox.denials import Denial
from resilience.sandbox.lock import Lock
from resilience.sandbox.program import Program, load
from resilience.sandbox.wire import frame, write_all
from resilience.sandbox.worker import Runnable, runnable

LOAD_TIMEOUT_MS = 5_000
DENIALS_MAX = 5
STATUSES_MAX = 256
WORKERS_MAX = 64
TOUCHED_MAX = 1_000  # of each file

Loader = Callable[[str, str], "tuple[Runnable | None, list[list[Any]], list[Denial]]"]


def load_file(file: str, text: str) -> tuple[Runnable | None, list[list[Any]], list[Denial]]:
    """Return (what runs, its functions as rows, its denials) for one UDF file."""
    program, denials = load(file, text)
    if program is None:
        return None, [], denials
    return runnable(program), _rows(program), denials


def _rows(program: Program) -> list[list[Any]]:
    return [[f.name, f.line, f.column, f.callable] for f in program.functions]


class Zygote:
    """The state of the process after start."""

    def __init__(self, control: socket.socket, engine: int, lock: Lock) -> None:
        self._control = control
        self._engine = engine
        self._lock = lock
        self._files: dict[str, Runnable] = {}
        self._desk = worker.Desk()
        self._touched: list[object] = []
        self._children: dict[int, tuple[int, int]] = {}  # pidfd -> (pid, id)
        self._statuses: OrderedDict[int, int] = OrderedDict()

    # --- loading ---

    def load(self, sources: Mapping[str, str], loader: Loader) -> dict[str, Any]:
        """Load every file, each first in a child that may crash or hang in its place."""
        report: dict[str, Any] = {}
        for file, text in sources.items():
            denials = self._try_load(file, text, loader)
            rows: list[list[Any]] = []
            if not any(row[5] for row in denials):
                run, rows, _ = loader(file, text)
                if run is not None:
                    self._files[file] = run
                    self._touched += list(worker.reach(run))[:TOUCHED_MAX]
            report[file] = {"functions": rows, "denials": [row[:5] for row in denials]}
        return report

    def _try_load(self, file: str, text: str, loader: Loader) -> list[list[Any]]:
        """Return the denials of a file as rows, found in a locked child of its own.

        A row is line, column, code, message, suggestion, and whether it refuses the file.
        """
        read, write = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._load_in_child(parent, read, write, lambda: loader(file, text)[2])
        os.close(write)
        answer = _read_until(read, time.monotonic() + LOAD_TIMEOUT_MS / 1000)
        os.close(read)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        try:
            return [[int(row[0]), int(row[1]), *row[2:5], row[5] is not False]
                    for row in json.loads(answer)]
        except (ValueError, TypeError, IndexError):
            return [[1, 1, "load", "the file crashes or stalls the compiler", None, True]]

    def _load_in_child(
        self, parent: int, read: int, write: int, denials: Callable[[], list[Denial]]
    ) -> None:
        try:
            worker.arrange_descriptors(read, write)
            self._lock.worker(parent)
            found = sorted(denials(), key=lambda d: not d.fatal)  # what refuses the file first
            rows = [[d.line, d.column, d.code, d.message, d.suggestion, d.fatal]
                    for d in found[:DENIALS_MAX]]
            write_all(WRITE_FD, json.dumps(rows).encode())
        finally:
            os._exit(0)

    def prove(self) -> None:
        """Have a locked child do what the filter forbids, and believe the layer if that kills it.

        The child also tells which layers it engaged itself, by its exit status otherwise unused.
        """
        read, write = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                worker.arrange_descriptors(read, write)
                self._lock.worker(parent)
                write_all(WRITE_FD, b"1" if self._lock.engaged["rlimits"] else b"0")
                socket.socket().close()
            finally:
                os._exit(0)
        os.close(write)
        limits = _read_until(read, time.monotonic() + LOAD_TIMEOUT_MS / 1000)
        os.close(read)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._lock.engaged["rlimits"] = limits == b"1"
        self._lock.engaged["seccomp"] = status == -signal.SIGSYS

    # --- serving ---

    def serve(self) -> None:
        """Answer the engine until it is gone."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._engine, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            for fd in ready:
                if fd in self._children:
                    poll.unregister(fd)
                    self._reap(fd)
            if self._engine in ready:
                return
            if self._control.fileno() in ready and not self._answer(poll):
                return

    def _answer(self, poll: select.poll) -> bool:
        data, fds, _, _ = socket.recv_fds(self._control, 4096, 2)
        if not data:
            return False
        request = json.loads(data)
        if request["op"] == "spawn":
            self._spawn(request["id"], request["ahead"], fds, poll)
        else:
            self._control.send(json.dumps({"status": self._statuses.get(request["id"])}).encode())
        return True

    def _spawn(self, number: int, ahead: bool, fds: list[int], poll: select.poll) -> None:
        if len(fds) != 2 or len(self._children) >= WORKERS_MAX:
            self._control.send(b'{"error": "too many workers"}')
            return _close(fds)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            worker.serve(
                fds[0], fds[1], parent, self._lock, self._files, self._desk, ahead,
                self._touched)
        _close(fds)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = (pid, number)
        poll.register(pidfd, select.POLLIN)
        socket.send_fds(self._control, [json.dumps({"pid": pid}).encode()], [pidfd])

    def _reap(self, pidfd: int) -> None:
        pid, number = self._children.pop(pidfd)
        os.close(pidfd)
        self._statuses[number] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if len(self._statuses) > STATUSES_MAX:
            self._statuses.popitem(last=False)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _read_until(fd: int, deadline: float) -> bytes:
    """Return what comes before the end of the stream or the deadline, at most 64 KiB."""
    parts: list[bytes] = []
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while sum(map(len, parts)) < 1 << 16:
        left_ms = (deadline - time.monotonic()) * 1000
        if left_ms <= 0 or not poll.poll(left_ms):
            return b""
        part = os.read(fd, 1 << 16)
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def main(control_fd: int, bundle_fd: int, hello_fd: int, engine: int, lock: Lock,
         loader: Loader = load_file) -> None:
    """Lock, load, say hello, serve, in the process that becomes the zygote."""
    with open(bundle_fd, encoding="utf-8") as bundle:
        sources: dict[str, str] = json.load(bundle)
    control = socket.socket(fileno=control_fd)  # asks the kernel what it is: before the lock
    lock.zygote()
    if lock.engaged["namespaces"]:  # after the change of user, which forgets it
        kernel.die_with_parent(os.getppid())
    zygote = Zygote(control, engine, lock)
    zygote.prove()
    report = zygote.load(sources, loader)
    sources.clear()
    gc.collect()
    gc.freeze()
    gc.disable()
    write_all(hello_fd, frame({"layers": lock.engaged, "files": report}))
    os.close(hello_fd)
    zygote.serve()
