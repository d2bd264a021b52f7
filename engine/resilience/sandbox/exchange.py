"""One call on one worker as a state machine that never blocks: READY, send, read, judge."""

from __future__ import annotations

import os
import select
import signal
import time

from resilience.sandbox.answer import Answer, Rules, read_answer
from resilience.sandbox.limits import REPLY_BYTES_MAX
from resilience.sandbox.process import Worker
from resilience.sandbox.wire import HEADER_BYTES, READY, body_length

PATIENCE_S = 0.003  # a worker that sends more than a pipe holds waits for so long
# For a worker that closed its pipe to be gone, so that its exit status is its own; within its call.
GRACE_S = 10.0


class Exchange:
    """`answer` is set once the call is over. The caller polls the descriptors of `wanted()`."""

    __slots__ = (
        "_buffer", "_closed", "_payload", "_rules", "answer", "deadline", "fault",
        "patient_until", "worker",
    )

    def __init__(self, worker: Worker, payload: bytes, rules: Rules, deadline: float) -> None:
        self.worker = worker
        self.deadline = deadline
        self.answer: Answer | None = None
        self.fault = False  # the sandbox failed, not the UDF
        self._payload = memoryview(payload)
        self._buffer = bytearray()
        self._rules = rules
        self.patient_until = time.monotonic() + PATIENCE_S if worker.started else 0.0
        self._closed = False  # the stream ended without a frame: wait for the process to end
        if worker.started:
            self.send()

    def wanted(self, now: float) -> list[tuple[int, int]]:
        """Return (descriptor, poll events) pairs to wait for."""
        if self._closed:
            return [(self.worker.pidfd, select.POLLIN)]
        # An honest worker answers and hangs up: one wake-up for both, for as long as it is young.
        events = 0 if self.patient(now) else select.POLLIN
        pairs = [(self.worker.reply_fd, events)]
        if self._payload and self.worker.started:
            pairs.append((self.worker.request_fd, select.POLLOUT))
        return pairs

    def patient(self, now: float) -> bool:
        """Return whether to wait for the end of the stream, and not for its first bytes."""
        return self.worker.started and not self._closed and now < self.patient_until

    def happened(self, fd: int) -> None:
        """Take the event of one of the `wanted` descriptors."""
        if self.answer is not None:
            return
        if fd == self.worker.pidfd:
            self.answer = self._judge_end()
        elif fd == self.worker.reply_fd:
            self._receive()
        else:
            self.send()

    def send(self) -> None:
        """Send what the pipe takes now."""
        try:
            while self._payload:
                self._payload = self._payload[os.write(self.worker.request_fd, self._payload):]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._payload = memoryview(b"")  # it has ended: reading tells how

    def _receive(self) -> None:
        """Read what has arrived; the first byte too many ends the call."""
        while self.answer is None and not self._closed:
            try:
                data = os.read(self.worker.reply_fd, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return self._end_of_stream()
            if not self.worker.started:
                data = self._greeting(data)
            self._buffer += data
            self._check_buffer()

    def time_out(self) -> None:
        """End the call at its deadline."""
        self.fault = not self.worker.started
        if self._closed:
            detail = "the worker closed its pipe without an answer"
            self.answer = Answer("CRASH", None, detail)
            return
        detail = "no worker became ready" if self.fault else "the UDF ran out of time"
        self.answer = Answer("TIMEOUT", None, detail)

    def _greeting(self, data: bytes) -> bytes:
        if data[:1] != READY:
            self.answer = Answer("BAD_RESULT", None, "the worker answered before it was asked")
        self.worker.started = True
        self.send()
        return data[1:]

    def _check_buffer(self) -> None:
        if len(self._buffer) < HEADER_BYTES or self.answer is not None:
            return
        length = body_length(bytes(self._buffer[:HEADER_BYTES]))
        if length > REPLY_BYTES_MAX:
            self.answer = Answer("OUTPUT_LIMIT", None, "the worker's frame is too large")
        elif len(self._buffer) > HEADER_BYTES + length:
            self.answer = Answer("BAD_RESULT", None, "the worker sent more than one frame")

    def _end_of_stream(self) -> None:
        if len(self._buffer) >= HEADER_BYTES:
            length = body_length(bytes(self._buffer[:HEADER_BYTES]))
            if len(self._buffer) == HEADER_BYTES + length:
                self.answer = read_answer(bytes(self._buffer[HEADER_BYTES:]), self._rules)
                return
        self._closed = True
        self._payload = memoryview(b"")
        self.deadline = min(self.deadline, time.monotonic() + GRACE_S)

    def _judge_end(self) -> Answer:
        """Return why there is no frame, from the way the process ended."""
        self.fault = not self.worker.started
        status = self.worker.zygote.status(self.worker)
        if status == -signal.SIGSYS:
            return Answer("SECCOMP_KILL", None, "the worker made a system call that is not allowed")
        if status is not None and status < 0:
            return Answer("CRASH", None, f"the worker was ended by signal {-status}")
        return Answer("CRASH", None, "the worker ended without an answer")
