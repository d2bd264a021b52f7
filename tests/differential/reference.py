"""A real Prometheus to compare with: starts one, feeds it by remote write, asks its API."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resilience.model import Labels
from resilience.promql.storage import Floats, Ints
from tools.ports import free_port

Series = tuple[Labels, Ints, Floats]
READY_S = 120


def find_binary() -> str | None:
    """Return a Prometheus 3.5 or later: $RESILIENCE_PROMETHEUS, else one on the path."""
    candidate = os.environ.get("RESILIENCE_PROMETHEUS") or shutil.which("prometheus")
    if not candidate or not Path(candidate).exists():
        return None
    found = version(candidate)
    return candidate if found is not None and found >= (3, 5) else None


def version(binary: str) -> tuple[int, ...] | None:
    answer = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    words = (answer.stdout + answer.stderr).split()
    if "version" not in words:
        return None
    text = words[words.index("version") + 1].split("+")[0]
    return tuple(int(x) for x in text.split(".")[:2])


class Reference:
    """A running server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expr: str, t_ms: int) -> Any:
        """Return the data object of an instant query, or the error text."""
        return self._ask("query", query=expr, time=f"{t_ms / 1000:.3f}")

    def query_range(self, expr: str, start_ms: int, end_ms: int, step_ms: int) -> Any:
        return self._ask(
            "query_range", query=expr, start=f"{start_ms / 1000:.3f}", end=f"{end_ms / 1000:.3f}",
            step=f"{step_ms / 1000:.3f}",
        )

    def _ask(self, path: str, **parameters: str) -> Any:
        body = urllib.parse.urlencode(parameters).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}", body, timeout=120) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                return str(json.load(error).get("error", error))

    def write(self, series: Iterable[Series]) -> None:
        """Send series by remote write; stale markers and odd values survive."""
        batch: list[bytes] = []
        size = 0
        for labels, times, values in series:
            batch.append(_field(1, _time_series(labels, times, values)))
            size += len(batch[-1])
            if size > 1 << 22:
                self._send(b"".join(batch))
                batch, size = [], 0
        if batch:
            self._send(b"".join(batch))

    def _send(self, body: bytes) -> None:
        request = urllib.request.Request(
            f"{self.url}/api/v1/write", _snappy(body), method="POST",
            headers={"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"},
        )
        with urllib.request.urlopen(request, timeout=120):
            pass


@contextmanager
def running(binary: str, folder: Path) -> Generator[Reference]:
    """Start a server with an empty database in `folder`; stop it at the end."""
    (folder / "prometheus.yml").write_text("global: {evaluation_interval: 1m}\n")
    port = free_port()
    command = [
        binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver",
        "--storage.tsdb.retention.time=100y", "--log.level=error",
        "--enable-feature=promql-experimental-functions",
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        reference = Reference(f"http://127.0.0.1:{port}")
        _wait_ready(reference.url, process)
        yield reference
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("Prometheus did not become ready")


# --- the two encodings that remote write needs ---


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _time_series(labels: Labels, times: Ints, values: Floats) -> bytes:
    out = bytearray()
    for name, value in labels:
        out += _field(1, _field(1, name.encode()) + _field(2, value.encode()))
    for t, v in zip(times.tolist(), values, strict=True):
        out += _field(2, b"\x09" + struct.pack("<d", v) + b"\x10" + _varint(t))
    return bytes(out)


def _snappy(body: bytes) -> bytes:
    """Frame `body` as literals only: valid, not smaller."""
    out = bytearray(_varint(len(body)))
    for i in range(0, len(body), 65536):
        piece = body[i : i + 65536]
        out += b"\xf4" + struct.pack("<H", len(piece) - 1) + piece
    return bytes(out)
