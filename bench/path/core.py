"""A small model server behind the real gate, on uvicorn: what the benchmarks of the path count on.

`python bench/path/core.py PORT SETTINGS_JSON` serves; `Core` starts it in a process of its own. It
has so many seats, first come first served, and takes as long for an inference as its plan says: a
log-normal time, now and then a stuck or failing one. `GET /stats` says what it has done.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "engine"), str(ROOT)]

import httpx  # noqa: E402

READY_S = 30.0
STOP_S = 10.0
BODY = b'{"model": "m"}'


@dataclass(frozen=True)
class Plan:
    """How the model behaves; times in seconds. `gate` None: the application alone."""

    seats: int
    median_s: float
    sigma: float = 0.0
    stuck_share: float = 0.0
    stuck_s: float = 0.0
    failing_share: float = 0.0
    gate: Mapping[str, Any] | None = None


class Model:
    """The application: every request is one inference on one of the seats."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._seats = asyncio.Semaphore(plan.seats)
        self.begun: Counter[str] = Counter()
        self.good: Counter[str] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            more = (await receive()).get("more_body", False)
        if scope["path"] == "/stats":
            good = self.good.values()
            stats = {"begun": self.begun.total(), "good": self.good.total(),
                     "duplicated": sum(n - 1 for n in good if n > 1)}
            await _answer(send, 200, stats)
            return
        left = asyncio.ensure_future(_left(receive))
        work = asyncio.ensure_future(self._infer(_number(scope)))
        try:
            await asyncio.wait({left, work}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await _answer(send, work.result(), {"choices": [{"text": "t"}]})
        finally:
            left.cancel()
            work.cancel()

    async def _infer(self, number: str) -> int:
        async with self._seats:
            self.begun[number] += 1
            seconds, status = self._fate(number)
            await asyncio.sleep(seconds)
            self.good[number] += status == 200
            return status

    def _fate(self, number: str) -> tuple[float, int]:
        """Return time and status of an inference: the same in every run, another when repeated."""
        plan = self._plan
        dice = random.Random(f"{number}.{self.begun[number]}")
        seconds = plan.median_s * dice.lognormvariate(0.0, plan.sigma)
        chance = dice.random()
        if chance < plan.stuck_share:
            return plan.stuck_s, 200
        if chance < plan.stuck_share + plan.failing_share:
            return seconds / 2, 500
        return seconds, 200


def _number(scope: Any) -> str:
    return str(dict(scope["headers"]).get(b"x-number", b"").decode())


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: Any, status: int, body: Any) -> None:
    text = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


async def ask(url: str, headers: Mapping[str, str]) -> int:
    """Send one request on a connection of its own and return its status, when it is all there.

    Cancelled, it closes the connection. A client library would cost more CPU than the server does.
    """
    host, _, port = url.removeprefix("http://").partition(":")
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{lines}"
            f"content-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
            + BODY)
        status = int((await reader.readline()).split()[1])
        await reader.read()
        return status
    finally:
        writer.close()


class Core:
    """The server in a process of its own; as a context manager it ends with the block."""

    def __init__(self, plan: Plan, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(port), json.dumps(asdict(plan))],
            stdin=subprocess.DEVNULL)

    def __enter__(self) -> Core:
        ends_s = time.monotonic() + READY_S
        while time.monotonic() < ends_s and self._process.poll() is None:
            try:
                self.stats()
            except httpx.HTTPError:
                time.sleep(0.05)
            else:
                return self
        self.__exit__()
        raise SystemExit("error: the small model server did not start")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def stats(self) -> dict[str, int]:
        """Return inferences begun, ended well, and ended well for a request that had one."""
        found: dict[str, int] = httpx.get(f"{self.url}/stats", trust_env=False).json()
        return found


def main(port: str, settings: str) -> None:
    import uvicorn

    plan = Plan(**json.loads(settings))
    application: Any = Model(plan)
    if plan.gate is not None:
        application = gated(application, plan)
    uvicorn.run(application, host="127.0.0.1", port=int(port), log_config=None, lifespan="off")


def gated(application: Any, plan: Plan) -> Any:
    """Put the real gate before the application, which takes as many as it has seats at once."""
    from prometheus_client import CollectorRegistry

    from resilience.gate.config import GateConfig
    from resilience.gate.metrics import GateMetrics
    from resilience.gate.middleware import Gate
    from resilience.gate.state import GateState

    assert plan.gate is not None
    config = GateConfig.from_json(plan.gate)
    state = GateState(replace(config, trusted_peers=("127.0.0.0/8",)), GateMetrics(
        CollectorRegistry()))
    state.start_with(plan.seats)
    return Gate(application, state)


if __name__ == "__main__":
    main(*sys.argv[1:3])
