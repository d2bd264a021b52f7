"""CPU seconds and peak memory of a process, from /proc."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.ports import free_port

_TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    """A server under measurement, at `url`."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, query_path: str) -> None:
        self.process = process
        self.url = url
        self.query_path = query_path

    def cpu_s(self) -> float:
        """Return the time its threads have run, to the nanosecond where the kernel counts so."""
        total = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError, IndexError):
                fields = Path(f"/proc/{self.process.pid}/stat").read_text()
                return sum(map(int, fields.rsplit(")", 1)[1].split()[11:13])) / _TICKS
        return total / 1e9

    def peak_mib(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
        return 0.0

    def get(self, path: str, **parameters: str) -> bytes:
        text = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}{path}?{text}", timeout=600) as answer:
            return bytes(answer.read())

    def range(self, expr: str, start_s: float, end_s: float, step_s: float) -> bytes:
        return self.get(
            self.query_path, query=expr, start=str(start_s), end=str(end_s), step=str(step_s),
            nocache="1",
        )


def free_address() -> str:
    """Return host and port that nobody listens on: another run may go on beside this one."""
    return f"127.0.0.1:{free_port()}"


@contextmanager
def serving(
    command: Sequence[str], url: str, ready: str, query_path: str = "/api/v1/query_range"
) -> Generator[Server]:
    """Run a server until the block ends."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        server = Server(process, url, query_path)
        _wait(url + ready, process)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"{url} did not become ready")
