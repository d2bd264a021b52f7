"""Workers ahead of the calls: a few spares per zygote, each used once."""

from __future__ import annotations

import threading
from collections import deque

from resilience.errors import SandboxError
from resilience.sandbox.process import Worker, Zygote


class Pool:
    """Spares of one zygote. Thread-safe."""

    def __init__(self, zygote: Zygote, size: int) -> None:
        self.zygote = zygote
        self._size = size
        self._lock = threading.Lock()
        self._spares: deque[Worker] = deque()
        self._closed = False

    def take(self) -> Worker:
        """Return a spare, a ready one first, or a new worker; raises SandboxError."""
        while True:
            worker = self._pop()
            if worker is None:
                return self.zygote.spawn(ahead=False)
            if not worker.wait(0):
                return worker
            worker.end()  # it died while it waited

    def _pop(self) -> Worker | None:
        with self._lock:
            for worker in self._spares:
                if worker.ready():
                    self._spares.remove(worker)
                    return worker
            return self._spares.popleft() if self._spares else None

    def refill(self) -> None:
        """Spawn up to the size; gives up silently when the zygote fails (calls say so)."""
        while True:
            with self._lock:
                if self._closed or len(self._spares) >= self._size:
                    return
            try:
                worker = self.zygote.spawn()
            except SandboxError:
                return
            with self._lock:
                if not self._closed:
                    self._spares.append(worker)
                    continue
            worker.end()

    def ready(self) -> int:
        """Return how many spares are ready."""
        with self._lock:
            return sum(worker.ready() for worker in self._spares)

    def close(self) -> None:
        """End the spares and retire the zygote; calls in flight keep their workers."""
        with self._lock:
            self._closed = True
            spares, self._spares = list(self._spares), deque()
        for worker in spares:
            worker.end()
        self.zygote.retire()
