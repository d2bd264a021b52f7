"""vLLM alone, as its users start it: none of our plug-ins, no gate, no engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from demo.engine import READ_S, READY_S, STOP_S, DemoError
from resilience.cores.vllm.launch import MODULE


class BareServer:
    """A `vllm serve` in a process group of its own; as a context manager it ends at the end."""

    def __init__(
        self, arguments: Sequence[str], port: int, log: Path, variables: Mapping[str, str]
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        with log.open("w") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, "--model", *arguments,
                 "--host", "127.0.0.1", "--port", str(port)],
                stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, **variables, "VLLM_PLUGINS": ""},
            )

    def wait_ready(self, progress: Callable[[float], None]) -> None:
        """Return when it is healthy; raises DemoError when it ends or takes too long."""
        start_s = time.monotonic()
        while time.monotonic() - start_s < READY_S:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health", trust_env=False, timeout=5.0).is_success:
                    return
            if self._process.poll() is not None:
                break
            progress(time.monotonic() - start_s)
            time.sleep(READ_S)
        raise DemoError(f"vLLM alone did not become ready (all of it: {self._log})")

    def __enter__(self) -> BareServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_S)
