"""The rungs of a fallback ladder side by side: `python bench/core/ladder.py [--seconds 12]`.

One server of 8 seats with SmolLM2-135M, and as its rungs: a second vLLM engine with the same model
less half of its layers, the PyTorch decoder with 2 seats, stored answers, and a fixed text.
Eight clients ask twelve questions over and over, streaming 24 tokens; each rung in turn gets all of
them by a claim. Quality is ROUGE-L (F1 over words) of the answers to the twelve questions, against
the answers of the full model to the same questions asked one by one.

`--attach URL --token-file FILE` measures the ladder that a running server has; no engine may drive
it meanwhile. In both cases the ladder is printed with its costs, as the Engine document takes it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parent))

from ladder_document import Cost, lines  # noqa: E402
from servers import end_with_sigterm, protected, quantile  # noqa: E402

from resilience.addresses import IDLE_MAX_S  # noqa: E402
from resilience.cores.client import HttpCore, read_token  # noqa: E402
from resilience.cores.cpu import fast_dtype  # noqa: E402
from resilience.gate.rungs import rungs_from_json  # noqa: E402
from resilience.model import (  # noqa: E402
    Claim,
    Desired,
    EngineConfig,
    Rung,
    SecondEngineSettings,
)
from tools.prepare_model import prepare  # noqa: E402

SEATS, CLIENTS, TOKENS, PORT = 8, 8, 24, 18_481
FULL = "full"
LEFT_OUT = range(9, 24)         # of 30 layers: the first and the last ones matter most
WARM_S, START_S = 3.0, 240.0
TOPICS = (
    "The capital of France is", "Water boils at a temperature of", "The opposite of hot is",
    "Plants make their food from", "The largest planet of the sun is", "A triangle has",
    "The author of Hamlet is", "Ice is the solid form of", "The heart pumps",
    "In winter the days are", "The first month of the year is", "Bees make",
)
# requests a second, p99 and quality of the source's rungs against its full model
SOURCE = {
    "small": "2.3x, -41 %, -1.2 %", "cpu": "0.32x, +170 %, 0 %", "stored": "12x, -92 %, -3.8 %",
}


@dataclass(frozen=True)
class Server:
    """What is measured: one model of one server, at its control interface and at its API."""

    core: HttpCore
    http: httpx.AsyncClient
    model: str
    epoch: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="of load for each rung")
    parser.add_argument("--attach", metavar="URL", help="a running server with a ladder of its own")
    parser.add_argument("--token-file", type=Path, help="the token of that server's control")
    options = parser.parse_args()
    if (options.attach is None) != (options.token_file is None):
        parser.error("--attach and --token-file go together")
    end_with_sigterm()
    with ExitStack() as stack:
        if options.attach is None:
            url, token = own_server(stack)
        else:
            url, token = options.attach.rstrip("/"), read_token(options.token_file)
        core = stack.enter_context(HttpCore(url, token))
        ladder, costs = asyncio.run(measure(core, url, options.seconds))
    print_costs(costs)
    print("\nfor the `kind: Engine` document:\nspec:\n" + "\n".join(lines(ladder, costs)))
    return 0 if options.attach else direction(costs)


def own_server(stack: ExitStack) -> tuple[str, str]:
    """Start the server that the table in docs/performance.md is about; returns (url, token)."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    config = EngineConfig(ladder=rungs(without_layers(folder / "small")))
    server = protected(PORT, SEATS, folder / "state", config)
    stack.callback(server.stop, 30.0)
    return server.url, server.token


def rungs(small: Path) -> tuple[Rung, ...]:
    settings = SecondEngineSettings(start="ahead", seats=SEATS, dtype=fast_dtype("auto"))
    decoder = SecondEngineSettings("torch", "ahead", seats=2, dtype=fast_dtype("auto"))
    return (
        Rung("small", "engine", model=str(small), context=1024, timeout_ms=60_000, engine=settings),
        Rung("cpu", "engine", model=str(prepare()), context=1024, timeout_ms=60_000,
             engine=decoder),
        Rung("stored", "cached", max_age_ms=3_600_000),
        Rung("sorry", "template", text="We are under heavy load. Please try again later."),
    )


def without_layers(folder: Path) -> Path:
    """Write the model without some of its layers, as a stand-in for a distilled one."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = prepare()
    model: Any = AutoModelForCausalLM.from_pretrained(source)
    kept = [layer for n, layer in enumerate(model.model.layers) if n not in LEFT_OUT]
    model.model.layers = torch.nn.ModuleList(kept)
    model.config.num_hidden_layers = len(kept)
    model.config.layer_types = None
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


async def measure(
    core: HttpCore, url: str, seconds: float
) -> tuple[Sequence[Rung], dict[str, Cost]]:
    """Return the server's ladder and what each of its rungs did, the full model first."""
    ladder = rungs_from_json(core.gate(deadline_ms=30_000)["config"]["ladder"])
    can = core.capabilities(deadline_ms=30_000)
    if not ladder or not can.models:
        raise SystemExit(f"{url} has no ladder: give it one in its Engine document")
    costs: dict[str, Cost] = {}
    limits = httpx.Limits(max_connections=None, keepalive_expiry=IDLE_MAX_S)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as http:
        server = Server(core, http, can.models[0], can.epoch + 1)
        wanted = [await answer(server, topic, FULL) for topic in TOPICS]
        for number, rung in enumerate((FULL, *(rung.name for rung in ladder)), 1):
            await hold(server, rung, number)
            costs[rung] = await one(server, rung, wanted, seconds)
            print(f"{rung}: {costs[rung]}", file=sys.stderr, flush=True)
        await hold(server, FULL, len(costs) + 1)
    return ladder, costs


async def hold(server: Server, rung: str, generation: int) -> None:
    """Send every request to one rung, to none for `full`, and wait for the rung's own engine."""
    claims = () if rung == FULL else (Claim(
        "bench", "0" * 16, "0", "route.model", (), {"to": rung, "share": 1.0}, 600_000, False, 50,
        "r", "bench"),)
    server.core.put_desired(Desired(server.epoch, generation, claims), deadline_ms=30_000)
    ends_s = time.monotonic() + START_S
    while True:
        engine = server.core.gate(deadline_ms=30_000)["engines"].get(rung)
        if engine is None or engine["state"] == "ready":
            return
        if time.monotonic() > ends_s:
            raise SystemExit(f"the engine of rung {rung} did not start: {engine['reason']}")
        await asyncio.sleep(0.5)


async def one(server: Server, rung: str, wanted: Sequence[str], seconds: float) -> Cost:
    texts = await asyncio.gather(*(answer(server, topic, rung) for topic in TOPICS))
    quality = sum(map(rouge_l, texts, wanted)) / len(TOPICS)
    await load(server, WARM_S)
    seen = await load(server, seconds)
    tokens_s = seen.tokens / seconds
    return Cost(tokens_s / TOKENS, tokens_s, quantile(seen.first_s, 0.5),
                quantile(seen.first_s, 0.99), quality)


async def answer(server: Server, topic: str, rung: str) -> str:
    """Return the text that a rung gives; raises when another one has answered."""
    found = await server.http.post("/v1/completions", json=body(server, topic))
    found.raise_for_status()
    if found.headers.get("x-resilience-rung", FULL) != rung:
        raise SystemExit(f"not {rung} but {found.headers.get('x-resilience-rung')} has answered")
    return str(found.json()["choices"][0]["text"])


def body(server: Server, topic: str, **more: Any) -> dict[str, Any]:
    return {"model": server.model, "prompt": topic, "max_tokens": TOKENS, "temperature": 0,
            "ignore_eos": True, **more}


@dataclass
class Seen:
    """What the clients have got: tokens, and the seconds to the first one of each answer."""

    tokens: int = 0
    first_s: list[float] = field(default_factory=list[float])


async def load(server: Server, seconds: float) -> Seen:
    """Let the clients ask for `seconds`; an answer that is not whole by then counts in part."""
    seen = Seen()

    async def client(turn: int) -> None:
        while True:
            turn += 1
            await stream(server, TOPICS[turn % len(TOPICS)], seen)

    tasks = [asyncio.ensure_future(client(n)) for n in range(CLIENTS)]
    failed, _ = await asyncio.wait(
        tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
    )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in failed:
        task.result()
    return seen


async def stream(server: Server, topic: str, seen: Seen) -> None:
    """Read one whole answer. Stored answers and templates come in one piece."""
    began_s, pieces = time.monotonic(), 0
    asked = body(server, topic, stream=True)
    async with server.http.stream("POST", "/v1/completions", json=asked) as found:
        found.raise_for_status()
        async for line in found.aiter_lines():
            if line.startswith("data: {"):
                if not pieces:
                    seen.first_s.append(time.monotonic() - began_s)
                pieces += 1
                seen.tokens += 1
    seen.tokens += TOKENS - pieces


def rouge_l(text: str, wanted: str) -> float:
    """Return F1 of the longest common subsequence of words, 0 to 1."""
    mine, theirs = text.split(), wanted.split()
    if not mine or not theirs:
        return float(mine == theirs)
    row = [0] * (len(theirs) + 1)
    for word in mine:
        before = row[:]
        for n, other in enumerate(theirs, 1):
            row[n] = before[n - 1] + 1 if word == other else max(before[n], row[n - 1])
    return 2 * row[-1] / (len(mine) + len(theirs))


def print_costs(costs: dict[str, Cost]) -> None:
    full = costs[FULL]
    print("| rung | answers/s | of full | TTFT p50 | TTFT p99 | p99 of full | ROUGE-L | source |")
    print("|---|---|---|---|---|---|---|---|")
    for rung, c in costs.items():
        print(f"| {rung} | {c.rate:.1f} | {c.rate / full.rate:.2f}x | {c.p50_s:.3f} s | "
              f"{c.p99_s:.3f} s | {(c.p99_s / full.p99_s - 1) * 100:+.0f} % | {c.quality:.2f} | "
              f"{SOURCE.get(rung, '-')} |")


def direction(costs: dict[str, Cost]) -> int:
    """Return 1 unless the rungs are ordered as the source's are: stored answers, the smaller
    model, the full one, the decoder."""
    order = ("stored", "small", FULL, "cpu")
    rates = [costs[rung].rate for rung in order]
    times = [costs[rung].p99_s for rung in order]
    same = rates == sorted(rates, reverse=True) and times == sorted(times)
    print(f"\ndirection of the source's figures: {'the same' if same else 'NOT the same'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
