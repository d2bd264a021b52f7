"""Reference servers (Prometheus, VictoriaMetrics), and a history of two blocks to ask them for.

The servers are found in the folder $RESILIENCE_REFERENCE_SERVERS or on the PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tools.ports import free_port

BLOCK_MS = 7_200_000
STEP_MS = 15_000
READY_S = 60.0


def program(name: str) -> str:
    """Return the path of a reference server that runs here, or skip."""
    folder = os.environ.get("RESILIENCE_REFERENCE_SERVERS")
    path = os.pathsep.join([f"{folder}/bin", folder, os.environ["PATH"]]) if folder else None
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"no `{name}`: set RESILIENCE_REFERENCE_SERVERS to a folder that holds it")
    tried = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:  # packages of a newer system
        pytest.skip(f"`{name}` does not run here: {tried.stderr.strip()}")
    return found


class Running:
    """A server process that answers HTTP; killed when the test is done."""

    def __init__(self, arguments: list[str], url: str, ready: str, log: Path) -> None:
        self.url = url
        with log.open("wb") as sink:
            self._process = subprocess.Popen(arguments, stdout=sink, stderr=sink)
        self._wait(ready, log)

    def _wait(self, ready: str, log: Path) -> None:
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                if httpx.get(self.url + ready, timeout=2, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        self.stop()
        pytest.fail(f"the server did not start: {log.read_text()[-2000:]}")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def prometheus(folder: Path, config: str = "", *options: str) -> Running:
    port = free_port()
    file = folder / "prometheus.yml"
    file.write_text(config or "global: {scrape_interval: 1h}\n")
    arguments = [
        program("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=10y",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-admin-api",
        *options,
    ]
    return Running(arguments, f"http://127.0.0.1:{port}", "/-/ready", folder / "log")


@dataclass(frozen=True)
class Data:
    """One text with timestamps over two blocks, and the same as a Prometheus data folder."""

    text: Path
    blocks: Path
    start_ms: int
    end_ms: int


def pairs(values: Any, seconds: list[str]) -> Iterator[tuple[float, str]]:
    return zip(values, seconds, strict=True)


def exposition(start_ms: int, count: int) -> str:
    rng = np.random.default_rng(7)
    lines: list[str] = []
    for instance, offset in (("a:1", 1_234), ("b:1", 9_871)):
        times = start_ms + offset + np.arange(count) * STEP_MS + rng.integers(-20, 20, count)
        seconds = [f"{t / 1000:.3f}" for t in times]
        total = np.cumsum(rng.poisson(30, count)).astype(float)
        total[count // 2 :] -= total[count // 2]
        gauge = rng.random(count)
        gauge[count // 3] = np.nan
        for model, share in (("a", 1.0), ("b", 0.5)):
            own = f'instance="{instance}",job="vllm",model="{model}"'
            lines += [f"requests_total{{{own}}} {v * share} {t}" for v, t in pairs(total, seconds)]
            lines += [f"kv{{{own}}} {v * share} {t}" for v, t in pairs(gauge, seconds)]
            for le, part in (("0.1", 0.2), ("1", 0.7), ("+Inf", 1.0)):
                series = f'latency_bucket{{{own},le="{le}"}}'
                lines += [f"{series} {v * part} {t}" for v, t in pairs(total, seconds)]
    return "\n".join([*lines, "# EOF", ""])


def history(folder: Path) -> Data:
    """Make the text and its blocks in `folder`; they end where the last whole block does."""
    start_ms = (int(time.time() * 1000) // BLOCK_MS - 2) * BLOCK_MS
    count = 2 * BLOCK_MS // STEP_MS - 10
    text = folder / "all.om"
    text.write_text(exposition(start_ms, count))
    subprocess.run(
        [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", text, folder / "data"],
        check=True,
        capture_output=True,
    )
    return Data(text, folder / "data", start_ms, start_ms + count * STEP_MS)
