"""One small recording for each kind of incident, as OpenMetrics text made by code.

`python tests/unit/incidents/lessons.py FOLDER` writes them all. A lesson says which shipped
policies it must set off; all others must stay quiet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

START_S = 1_764_430_000
BREAK_S = 120                        # when it goes wrong
Course: TypeAlias = Callable[[int], float | None]
Series: TypeAlias = Mapping[tuple[str, str], Course]

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
KV, OLD_KV = "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"
GENERATED, PROMPT = "vllm:generation_tokens_total", "vllm:prompt_tokens_total"
PREEMPTED = "vllm:num_preemptions_total"
REFUSED = "resilience_gate_requests_total"


@dataclass(frozen=True)
class Dress:
    """What differs between servers that tell the same story: labels, names, scrape interval."""

    labels: Mapping[str, str]
    scrape_s: int
    old_names: bool = False


DRESSES = {
    "bare": Dress({"model_name": "m"}, 10, old_names=True),
    "engine": Dress({"engine": "0", "model_name": "org/model-7b"}, 5),
    "often": Dress({"engine": "0", "model_name": "m"}, 1),
    "fleet": Dress({
        "namespace": "llm", "pod": "decode-3", "job": "vllm", "instance": "10.0.0.3:8000",
        "model_name": "m", "engine": "1",
    }, 15),
}


@dataclass(frozen=True)
class Lesson:
    """A course of metrics; series are named (metric, engine), engine "" being the only one."""

    seconds: int
    series: Series
    fires: frozenset[str] = frozenset()
    within_s: tuple[int, int] = (0, 0)
    first: str = ""
    dresses: tuple[str, ...] = field(default=("bare", "engine", "fleet"))


def after(before: float, then: float, at_s: int = BREAK_S) -> Course:
    """Return a gauge that steps from one value to another."""
    return lambda t: before if t < at_s else then


def counter(pace: float, then: float, at_s: int = BREAK_S) -> Course:
    """Return a counter that grows by `pace` a second, and by `then` from `at_s` on."""
    return lambda t: 1_000 + pace * min(t, at_s) + then * max(0, t - at_s)


def ramp(low: float, high: float, a_second: float, at_s: int = BREAK_S) -> Course:
    return lambda t: round(min(high, low + a_second * max(0, t - at_s)), 4)


def healthy(t: int) -> float:
    return 0.3 + t % 70 / 1_000


def busy(**changes: Course) -> dict[tuple[str, str], Course]:
    """Return a healthy, busy server, with `changes` by short name."""
    normal: dict[str, Course] = {
        "running": lambda t: 8 + t // 10 % 3, "waiting": lambda t: t // 10 % 2, "kv": healthy,
        "generated": counter(160, 160), "prompt": counter(40, 40), "preempted": counter(0, 0),
    }
    names = {"running": RUNNING, "waiting": WAITING, "kv": KV, "generated": GENERATED,
             "prompt": PROMPT, "preempted": PREEMPTED}
    return {(names[key], ""): course for key, course in {**normal, **changes}.items()}


def blocks_of_cancelled(t: int) -> float:
    return 0.4 if t < BREAK_S else 0.96


def every_other(t: int) -> float:
    return t // 15 % 2


def restarted(t: int) -> float | None:
    if BREAK_S <= t < BREAK_S + 480:
        return None
    return 900_000 + 160.0 * t if t < BREAK_S else 160.0 * (t - BREAK_S - 480)


def waves(t: int) -> float:
    """A minute of refusals, a minute of none."""
    full, rest = divmod(t, 120)
    return 600.0 * full + 10 * min(rest, 60)


def quick_waves(t: int) -> float:
    """Half a minute of refusals, half a minute of none, told when a scrape comes."""
    full, rest = divmod(t + 11, 60)
    return 150.0 * full + 5 * min(rest, 30)


def trickle(t: int) -> float:
    """One refusal every three quarters of a minute."""
    return t // 45


def renamed(before: bool) -> Course:
    return lambda t: healthy(t) if (t < 300) == before else None


def long_prompt(t: int) -> float:
    """What a prompt of 60,000 tokens counts, which takes 100 seconds."""
    return 1_000 if t < BREAK_S + 100 else 61_000


LESSONS: dict[str, Lesson] = {
    "quiet": Lesson(900, busy()),
    "stuck": Lesson(
        360, busy(running=lambda t: 35, waiting=lambda t: 0, generated=counter(118, 0),
                  prompt=counter(382, 0)),
        frozenset({"stalled-engine"}), (210, 300), "stalled-engine",
    ),
    "stuck after a pause": Lesson(
        360, busy(running=after(0, 1), waiting=lambda t: 0, generated=lambda t: 1_000,
                  prompt=lambda t: 1_000),
        frozenset({"stalled-engine"}), (230, 280), "stalled-engine",
    ),
    "a long prompt after a pause": Lesson(
        360, busy(running=after(0, 1), waiting=lambda t: 0, prompt=long_prompt,
                  generated=lambda t: 1_000 + 20 * max(0, t - BREAK_S - 100)),
        dresses=("bare", "engine", "often"),
    ),
    "dead": Lesson(
        360, busy(running=after(8, 0), waiting=after(0, 7), generated=counter(160, 0),
                  prompt=counter(40, 0)),
        frozenset({"dead-engine", "queue-growth"}), (175, 200), "dead-engine",
    ),
    "wedge": Lesson(
        1_000, busy(running=lambda t: 1, waiting=lambda t: 14, generated=counter(160, 5.4),
                    prompt=counter(40, 0), kv=lambda t: 0.76),
        frozenset({"wedged-queue"}), (600, 790), "wedged-queue",
    ),
    "slope": Lesson(
        330, busy(kv=ramp(0.35, 0.88, 0.004)), frozenset({"kv-slope"}), (150, 230), "kv-slope",
    ),
    "cliff": Lesson(
        300, busy(kv=after(0.5, 0.95)), frozenset({"kv-pressure"}), (120, 145), "kv-pressure",
    ),
    "creep": Lesson(
        360, busy(kv=ramp(0.912, 1.0, 0.00035, at_s=0), waiting=lambda t: 0),
        frozenset({"kv-pressure", "kv-slope"}), (40, 150), "kv-slope",
    ),
    "starvation": Lesson(
        420, busy(running=lambda t: 4, waiting=lambda t: 0, generated=counter(160, 6),
                  prompt=counter(100, 4_000)),
        frozenset({"decode-starvation"}), (165, 250), "decode-starvation",
    ),
    "preemption": Lesson(
        300, busy(preempted=counter(0, 2)), frozenset({"preemption-storm"}), (130, 190),
        "preemption-storm",
    ),
    "orphan": Lesson(
        300, busy(running=every_other, waiting=lambda t: 0, kv=blocks_of_cancelled),
        frozenset({"orphaned-kv", "kv-pressure"}), (145, 190), "orphaned-kv",
    ),
    "imbalance": Lesson(
        420, {(KV, "0"): after(0.3, 0.8), (KV, "1"): after(0.3, 0.1), (KV, "2"): after(0.3, 0.2)},
        frozenset({"engine-imbalance"}), (175, 215), "engine-imbalance", ("engine", "fleet"),
    ),
    "rename": Lesson(
        1_080, {**busy(), (OLD_KV, ""): renamed(True), (KV, ""): renamed(False)},
        frozenset({"metric-renamed"}), (440, 540), "metric-renamed", ("engine", "fleet"),
    ),
    "rename under pressure": Lesson(
        420, {(OLD_KV, ""): lambda t: 0.95 if t < 200 else None,
              (KV, ""): lambda t: None if t < 200 else 0.95},
        frozenset({"kv-pressure", "metric-renamed"}), (0, 30), "kv-pressure", ("engine", "fleet"),
    ),
    "rename, nothing else recorded": Lesson(
        1_080, {(OLD_KV, ""): renamed(True), (KV, ""): renamed(False)},
        frozenset({"metric-renamed"}), (440, 540), "metric-renamed", ("engine",),
    ),
    "restart": Lesson(
        900, {(GENERATED, ""): restarted}, frozenset({"engine-restarted"}), (600, 640),
        "engine-restarted",
    ),
    "flapping": Lesson(
        900, {(REFUSED, ""): waves}, frozenset({"flapping-refusals"}), (300, 700),
        "flapping-refusals",
    ),
    "flapping quickly": Lesson(
        900, {(REFUSED, ""): quick_waves}, frozenset({"flapping-refusals"}), (150, 500),
        "flapping-refusals", ("bare", "often"),
    ),
    "a refusal now and then": Lesson(
        1_200, {(REFUSED, ""): trickle}, dresses=("bare", "engine", "often"),
    ),
}


def text_of(lesson: Lesson, dress: Dress) -> str:
    """Return the lesson as OpenMetrics text with timestamps."""
    return "\n".join([*_lines(lesson, dress), "# EOF", ""])


def _lines(lesson: Lesson, dress: Dress) -> Iterator[str]:
    for (name, engine), course in lesson.series.items():
        if dress.old_names and name == KV:
            name = OLD_KV
        labels = {**dress.labels, **({"engine": engine} if engine else {})}
        if name == REFUSED:
            labels = {"instance": labels.get("instance", ""), "tier": "best-effort",
                      "outcome": "refused"}
        kind = "counter" if name.endswith("_total") else "gauge"
        yield f"# TYPE {name.removesuffix('_total')} {kind}" if not engine or engine == "0" else ""
        shown = ",".join(f'{k}="{v}"' for k, v in sorted(labels.items()) if v)
        for t in range(0, lesson.seconds + 1, dress.scrape_s):
            value = course(t)
            if value is not None:
                yield f"{name}{{{shown}}} {value} {START_S + t}"


def main(folder: Path) -> None:
    """Write every lesson in every dress to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lesson in LESSONS.items():
        for dress in lesson.dresses:
            path = folder / f"{name.replace(' ', '_')}.{dress}.om.txt"
            path.write_text(text_of(lesson, DRESSES[dress]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
