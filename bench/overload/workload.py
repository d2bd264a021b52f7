"""What the load asks for: lengths of real conversations, scaled to a small machine.

The lengths are drawn from Azure's trace of LLM conversations (2023, CC-BY-4.0), context and output
of one request together. They are those of a large server, so both are divided; the shape of the
distribution stays, and its longest answers are cut. Prompts are divided by more: this CPU reads a
token in 4 ms and writes one for all 16 seats in 220 ms, while a GPU reads hundreds of times faster
than it writes. Divided alike, reading would be half of the server's work, and no scheduler can give
a first token sooner than the prompt is read.
"""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.load import IN_FLIGHT_MAX, TIERS, Arrival, prompt_of

ROOT = Path(__file__).resolve().parents[2]
TRACE = Path("traces") / "azure_llm_2023_conv.csv"
CORE_OF = 5  # one request of so many is core: core to best-effort is 1 : 4
PROMPT_DIVISOR, OUTPUT_DIVISOR = 48, 6
WORDS_MAX, TOKENS_MAX = 500, 80  # with the chat template, inside a context of 1,024


@dataclass(frozen=True, slots=True)
class Lengths:
    """One request: words of its prompt, tokens of its answer."""

    words: int
    tokens: int


def trace_file() -> Path:
    """Return where the trace lies; raises SystemExit with what to do when it does not."""
    corpus = Path(os.environ.get("RESILIENCE_CORPUS", ROOT.parent / "shared" / "corpus"))
    if not (corpus / TRACE).is_file():
        raise SystemExit(f"error: no trace at `{corpus / TRACE}`; set RESILIENCE_CORPUS")
    return corpus / TRACE


def read_lengths(path: Path) -> list[Lengths]:
    """Return the scaled lengths of a trace with the columns ContextTokens and GeneratedTokens."""
    with path.open(newline="") as lines:
        return [
            Lengths(_scaled(row["ContextTokens"], PROMPT_DIVISOR, WORDS_MAX),
                    _scaled(row["GeneratedTokens"], OUTPUT_DIVISOR, TOKENS_MAX))
            for row in csv.DictReader(lines)
        ]


def _scaled(tokens: str, divisor: int, most: int) -> int:
    return min(most, max(4, round(int(tokens) / divisor)))


def arrivals_of(
    lengths: Sequence[Lengths], rate_per_s: float, duration_s: float, seed: int
) -> list[Arrival]:
    """Return Poisson arrivals, one of each five from core; the same seed gives the same ones."""
    dice = random.Random(seed)
    found: list[Arrival] = []
    at_s, place = dice.expovariate(rate_per_s), 0
    while at_s < duration_s and len(found) < IN_FLIGHT_MAX:
        if len(found) % CORE_OF == 0:
            place = dice.randrange(CORE_OF)
        tier = TIERS[0] if len(found) % CORE_OF == place else TIERS[1]
        asked = dice.choice(lengths)
        prompt = prompt_of(dice, asked.words)
        found.append(Arrival(at_s, tier, prompt, asked.tokens))
        at_s += dice.expovariate(rate_per_s)
    return found
