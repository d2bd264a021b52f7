"""The rungs of a fallback ladder side by side: `python bench/core/ladder.py [--seconds 12]`.

One server of 8 seats with SmolLM2-135M, and as its rungs: a second vLLM engine with the same model
less a fifth of its layers, the PyTorch decoder with 2 seats, stored answers, and a fixed text.
Eight clients ask twelve questions over and over, streaming 24 tokens; each rung in turn gets all of
them by a claim. Quality is ROUGE-L (F1 over words) of the answers to the twelve questions, against
the answers of the full model to the same questions asked one by one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parent))

from servers import end_with_sigterm, protected, quantile  # noqa: E402

from demo.scenario import fast_dtype  # noqa: E402
from resilience.cores.client import HttpCore  # noqa: E402
from resilience.model import (  # noqa: E402
    Claim,
    Desired,
    EngineConfig,
    Rung,
    SecondEngineSettings,
)
from tools.prepare_model import prepare  # noqa: E402

SEATS, CLIENTS, TOKENS, PORT = 8, 8, 24, 18_481
LEFT_OUT = range(14, 20)        # of 30 layers: those that plain text misses least
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
class Cost:
    """What one rung did: answers a second, seconds to the first token, likeness 0..1."""

    rate: float
    p50_s: float
    p99_s: float
    quality: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="of load for each rung")
    options = parser.parse_args()
    end_with_sigterm()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = EngineConfig(ladder=rungs(without_layers(folder / "small")))
        server = protected(PORT, SEATS, folder / "state", config)
        try:
            with HttpCore(server.url, server.token) as core:
                costs = asyncio.run(measure(core, server.url, options.seconds))
        finally:
            server.stop(30.0)
    return report(costs)


def rungs(small: Path) -> tuple[Rung, ...]:
    settings = SecondEngineSettings(start="ahead", seats=SEATS, dtype=fast_dtype())
    decoder = SecondEngineSettings("torch", "ahead", seats=2, dtype=fast_dtype())
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


async def measure(core: HttpCore, url: str, seconds: float) -> dict[str, Cost]:
    costs: dict[str, Cost] = {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as http:
        await until_ready(core)
        wanted = [await answer(http, topic) for topic in TOPICS]
        for number, rung in enumerate(("full", "small", "cpu", "stored", "sorry"), 1):
            hold(core, rung, number)
            costs[rung] = await one(http, rung, wanted, seconds)
            print(f"{rung}: {costs[rung]}", file=sys.stderr, flush=True)
    return costs


async def until_ready(core: HttpCore) -> None:
    """Wait for the second engines; says why if one does not start."""
    ends_s = time.monotonic() + START_S
    while True:
        engines = core.gate(deadline_ms=30_000)["engines"]
        if engines and all(engine["state"] == "ready" for engine in engines.values()):
            return
        if time.monotonic() > ends_s:
            raise SystemExit(f"a second engine did not start: {engines}")
        await asyncio.sleep(0.5)


def hold(core: HttpCore, rung: str, generation: int) -> None:
    """Send every request to one rung; to none for `full`."""
    claims = () if rung == "full" else (Claim(
        "bench", "0" * 16, "0", "route.model", (), {"to": rung, "share": 1.0}, 600_000, False, 50,
        "r", "bench"),)
    core.put_desired(Desired(1, generation, claims), deadline_ms=30_000)


async def one(http: httpx.AsyncClient, rung: str, wanted: Sequence[str], seconds: float) -> Cost:
    texts = await asyncio.gather(*(answer(http, topic, rung) for topic in TOPICS))
    quality = sum(map(rouge_l, texts, wanted)) / len(TOPICS)
    await load(http, WARM_S)
    first_s = await load(http, seconds)
    return Cost(len(first_s) / seconds, quantile(first_s, 0.5), quantile(first_s, 0.99), quality)


async def answer(http: httpx.AsyncClient, topic: str, rung: str = "full") -> str:
    """Return the text that a rung gives; raises when another one has answered."""
    found = await http.post("/v1/completions", json=body(topic))
    found.raise_for_status()
    if found.headers.get("x-resilience-rung", "full") != rung:
        raise SystemExit(f"not {rung} but {found.headers.get('x-resilience-rung')} has answered")
    return str(found.json()["choices"][0]["text"])


def body(topic: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": topic, "max_tokens": TOKENS, "temperature": 0,
            "ignore_eos": True, **more}


async def load(http: httpx.AsyncClient, seconds: float) -> list[float]:
    """Let the clients ask for `seconds`; returns the times to the first token."""
    first_s: list[float] = []
    ends_s = time.monotonic() + seconds

    async def client(number: int) -> None:
        turn = number
        while time.monotonic() < ends_s:
            turn += 1
            took_s = await stream(http, TOPICS[turn % len(TOPICS)])
            if time.monotonic() <= ends_s:
                first_s.append(took_s)

    tasks = [asyncio.ensure_future(client(n)) for n in range(CLIENTS)]
    await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return first_s


async def stream(http: httpx.AsyncClient, topic: str) -> float:
    """Read one whole answer; returns the seconds to its first token."""
    began_s, first_s = time.monotonic(), 0.0
    async with http.stream("POST", "/v1/completions", json=body(topic, stream=True)) as found:
        found.raise_for_status()
        async for line in found.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                first_s = first_s or time.monotonic() - began_s
    return first_s


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


def report(costs: dict[str, Cost]) -> int:
    """Print the table and the fields for the document; 1 unless the rungs are ordered as the
    source's are: stored answers, the smaller model, the full one, the decoder."""
    full = costs["full"]
    print("| rung | answers/s | of full | TTFT p50 | TTFT p99 | p99 of full | ROUGE-L | source |")
    print("|---|---|---|---|---|---|---|---|")
    for rung, c in costs.items():
        print(f"| {rung} | {c.rate:.1f} | {c.rate / full.rate:.2f}x | {c.p50_s:.3f} s | "
              f"{c.p99_s:.3f} s | {(c.p99_s / full.p99_s - 1) * 100:+.0f} % | {c.quality:.2f} | "
              f"{SOURCE.get(rung, '-')} |")
    print("\nfor the Engine document:")
    for rung, c in costs.items():
        p99_ms = max(1, round(c.p99_s * 1000))
        print(f"  {rung}: throughput: {c.rate * TOKENS:.0f}, p99: {p99_ms}ms, "
              f"quality: {c.quality:.2f}")
    order = ("stored", "small", "full", "cpu")
    rates = [costs[rung].rate for rung in order]
    times = [costs[rung].p99_s for rung in order]
    same = rates == sorted(rates, reverse=True) and times == sorted(times)
    print(f"\ndirection of the source's figures: {'the same' if same else 'NOT the same'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
