"""The ladder at check: its rungs, and whether actions can use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from resilience.gate.config import GateConfig
from resilience.model import Capabilities, KnobCapability, Rung, SecondEngineSettings
from resilience.policy.check import CheckResult
from resilience.policy.ladders import rungs_of, worst_case_ms

Run = Callable[..., CheckResult]
Policy = Callable[..., str]
ENGINE = "apiVersion: resilience/v1\nkind: Engine\nmetadata: {name: e}\nspec:\n"
TIERS = "  tiers: [{name: core, p99: 1s}, {name: rest}]\n  tier_source: {default: rest}\n"
SMALL = "{name: small, kind: model, model: s, context: 512, tools: true}"
SORRY = "{name: sorry, kind: template, text: later}"
CPU = "{name: cpu, kind: url, url: 'http://127.0.0.1:8001', tools: true, timeout: 2s}"
CORE = Capabilities(
    "vllm", "0.32", {"route.model": KnobCapability("gate"),
                     "throttle.max_context_tokens": KnobCapability("gate", capacity=2_048)},
    models=("big", "s"),
)


def engine(*rungs: str, more: str = "") -> str:
    return f"{ENGINE}  ladder: [{', '.join(rungs)}]\n{more}"


def found(run: Run, text: Any, **options: Any) -> list[str]:
    codes = ("duplicate-rung", "rung-fields", "rung-context", "model-missing", "no-ladder",
             "ladder-gap", "ladder-no-tools", "ladder-latency", "ladder-order", "ladder-repeats",
             "fallback-to-itself", "fallback-circle", "unknown-tier", "unknown-receiver")
    result = run(text, **options)
    return [f"{f.severity} {f.code}" for f in result.findings if f.code in codes]


def test_a_ladder_becomes_configuration(run: Run) -> None:
    cost = "{name: s, kind: lora, model: m, throughput: 140, p99: 900ms, quality: 0.8}"
    stored = "{name: stored, kind: cached, max_age: 1m, max_mebibytes: 2}"
    bundle = run(engine(SMALL, CPU, cost, stored, SORRY)).bundle
    assert bundle is not None and bundle.config.ladder == (
        Rung("small", "model", model="s", context=512, tools=True),
        Rung("cpu", "url", url="http://127.0.0.1:8001", tools=True, timeout_ms=2_000),
        Rung("s", "lora", model="m", throughput=140.0, p99_ms=900, quality=0.8),
        Rung("stored", "cached", max_age_ms=60_000, max_bytes=2 * 1024 * 1024),
        Rung("sorry", "template", text="later"),
    )


def test_a_second_engine_becomes_configuration(run: Run) -> None:
    settings = ("{core: torch, start: ahead, seats: 2, dtype: float32, memory_mebibytes: 900, "
                "start_timeout: 4m, stop_after: 0}")
    own = f"{{name: a, kind: engine, model: /m, context: 512, engine: {settings}}}"
    bundle = run(engine(own, "{name: b, kind: engine, model: x, timeout: 9s}")).bundle
    assert bundle is not None and bundle.config.ladder == (
        Rung("a", "engine", model="/m", context=512, timeout_ms=30_000,
             engine=SecondEngineSettings("torch", "ahead", 2, "float32", memory_mebibytes=900,
                                         start_timeout_ms=240_000, stop_after_ms=0)),
        Rung("b", "engine", model="x", timeout_ms=9_000, engine=SecondEngineSettings()),
    )
    assert GateConfig.from_engine(bundle.config).ladder == bundle.config.ladder


@pytest.mark.parametrize(
    ("rungs", "line"),
    [
        ("{name: a, kind: model}", "rung `a` of kind `model` needs `model`"),
        ("{name: a, kind: url}", "rung `a` of kind `url` needs `url`"),
        ("{name: a, kind: template}", "rung `a` of kind `template` needs `text`"),
        ("{name: a, kind: cached, text: x}", "rung `a` of kind `cached` takes no `text`"),
        ("{name: a, kind: template, text: x, tools: true}", "takes no `tools`"),
        (f"{SMALL}, {SMALL}", "the name `small` of a rung is given twice"),
        ("{name: ladder, kind: template, text: x}", "is taken by the whole ladder"),
        ("{name: a, kind: cached}, {name: b, kind: cached}", "has one rung of kind `cached`"),
        ("{name: a, kind: engine}", "rung `a` of kind `engine` needs `model`"),
        ("{name: a, kind: engine, model: x, url: 'http://h'}", "takes no `url`"),
        ("{name: a, kind: model, model: x, engine: {seats: 2}}", "takes no `engine`"),
        ("{name: a, kind: engine, model: x, engine: {seats: 0}}", "must be >= 1"),
        ("{name: a, kind: engine, model: x, engine: {core: torch, kv_mebibytes: 9}}",
         "runs the PyTorch core, which takes no `kv_mebibytes`"),
        ("{name: a, kind: engine, model: x, tools: true, engine: {core: torch}}",
         "which calls no tools"),
        ("{name: a, kind: int8, model: x}", "`int8`, not one of"),
        ("{name: a, kind: url, url: 'http://u:p@h'}", "is not a valid URL"),
        ("{name: a, kind: model, model: x, quality: 3}", "must be <= 1"),
    ],
)
def test_mistakes_in_a_ladder(run: Run, rungs: str, line: str) -> None:
    said = [f.message for f in run(engine(rungs)).errors]
    assert len(said) == 1 and line in said[0], said


def test_a_rung_that_the_core_cannot_be(run: Run) -> None:
    text = engine("{name: a, kind: model, model: x}", "{name: b, kind: lora, model: s, "
                  "context: 4096}", "{name: c, kind: url, url: 'http://h', model: x}")
    assert found(run, text) == []
    assert found(run, text, capabilities=CORE) == ["error model-missing", "error rung-context"]


def files(policy: Policy, to: str, *rungs: str, more: str = "", **options: str) -> dict[str, str]:
    action = f"[{{type: fallback_model, to: {to}, tier: core}}]"
    return {"e.yaml": engine(*rungs, more=more or TIERS),
            "p.yaml": policy(actions=action, **options)}


def test_to_the_ladder_needs_one(run: Run, policy: Policy) -> None:
    assert found(run, policy(actions="[{type: fallback_model, to: ladder}]")) == [
        "error no-ladder"]
    assert found(run, files(policy, "ladder", SMALL, SORRY)) == []
    assert found(run, files(policy, "small", SMALL), capabilities=CORE)[0] == "warning ladder-gap"
    assert found(run, files(policy, "smal", SMALL), capabilities=CORE) == ["error model-missing"]


def test_requests_that_fit_nowhere_are_told(run: Run, policy: Policy) -> None:
    gap = ["warning ladder-gap"]
    assert found(run, files(policy, "ladder", SMALL), capabilities=CORE) == gap
    assert found(run, files(policy, "ladder", SMALL, SORRY), capabilities=CORE) == []
    assert found(run, files(policy, "ladder", SMALL)) == ["info ladder-gap"]
    assert found(run, files(policy, "small", SMALL)) == []
    assert found(run, files(policy, "ladder", SORRY)) == ["info ladder-no-tools"]


def test_the_worst_case_is_held_against_the_tier(run: Run, policy: Policy) -> None:
    slow = "{name: slow, kind: model, model: s, tools: true, p99: 3s}"
    late = ["warning ladder-latency"]
    assert found(run, files(policy, "slow", slow)) == late
    assert found(run, files(policy, "ladder", CPU, SORRY)) == late
    assert found(run, files(policy, "cpu", CPU, SORRY)) == []
    escalated = policy(spec="  escalation: [{after: 1m, actions: [{type: fallback_model, to: slow, "
                       "tier: core}]}]\n")
    assert found(run, {"e.yaml": engine(slow, more=TIERS), "p.yaml": escalated}) == late


def test_a_second_engine_is_held_against_the_tier_like_another_server(
    run: Run, policy: Policy
) -> None:
    own = "{name: own, kind: engine, model: /m, tools: true, context: 512, timeout: 2s, p99: 400ms}"
    late = ["warning ladder-latency"]
    assert found(run, files(policy, "ladder", own, SORRY)) == late
    assert found(run, files(policy, "own", own)) == []
    assert found(run, files(policy, "own", own), capabilities=CORE) == ["warning ladder-gap"]


BIG = "{name: big, kind: model, model: s, tools: true}"


@pytest.mark.parametrize(
    ("rungs", "codes"),
    [
        ((SORRY, BIG), ["warning ladder-order"]),
        ((BIG, SORRY, SORRY.replace("sorry", "again")), ["warning ladder-order"]),
        (("{name: stored, kind: cached}", BIG, SORRY), ["info ladder-order"]),
        ((BIG, "{name: stored, kind: cached}", SORRY), []),
        (("{name: stored, kind: cached}", SORRY), []),
        ((BIG, "{name: b, kind: lora, model: s}"), ["warning ladder-repeats"]),
        ((CPU, CPU.replace("cpu", "again")), ["warning ladder-repeats"]),
        ((CPU, CPU.replace("cpu", "other").replace("8001", "8002")), []),
        ((BIG, "{name: own, kind: engine, model: s}"), []),
        ((CPU.replace("tools", "model: a, tools"),
          CPU.replace("cpu", "b").replace("tools", "model: b, tools")), []),
    ],
)
def test_ladders_that_cannot_work_as_written(
    run: Run, rungs: tuple[str, ...], codes: list[str]
) -> None:
    assert found(run, engine(*rungs)) == codes


def test_a_ladder_whose_every_rung_is_the_model_in_trouble(run: Run, policy: Policy) -> None:
    expr = 'vllm:num_requests_waiting{model_name="s"} > 5'
    itself = ["warning fallback-to-itself"]
    assert found(run, files(policy, "ladder", BIG, expr=expr)) == itself
    own = "{name: own, kind: engine, model: s, tools: true}"
    assert found(run, files(policy, "ladder", BIG, own, expr=expr)) == []
    escalated = policy(expr=expr, spec="  escalation: [{after: 1m, actions: [{type: fallback_model,"
                       " to: s}]}]\n")
    assert found(run, escalated) == itself


@pytest.mark.parametrize("broken", [
    engine(BIG, more="  tiers: [{name: gold, p99: 1}]\n"),
    engine(BIG, more="  tiers: [{name: gold}\n"),
    engine(BIG, more="  unknown: 1\n"),
])
def test_what_follows_from_a_broken_engine_document_is_not_said(
    run: Run, policy: Policy, broken: str
) -> None:
    acts = ("[{type: fallback_model, to: ladder, tier: gold, lease: 30s}, "
            "{type: notify, to: pager}]")
    result = run({"e.yaml": broken, "p.yaml": policy(actions=acts)})
    assert {f.file for f in result.errors} == {"e.yaml"}
    assert found(run, policy(actions=acts)) == [
        "error unknown-tier", "error unknown-receiver"]


def test_a_rung_that_is_the_model_in_trouble(run: Run, policy: Policy) -> None:
    expr = 'vllm:num_requests_waiting{model_name="s"} > 5'
    assert found(run, files(policy, "small", SMALL, expr=expr)) == ["warning fallback-to-itself"]
    assert found(run, files(policy, "ladder", SMALL, SORRY, expr=expr)) == []


def test_policies_that_fall_back_to_each_other_by_rungs(run: Run, policy: Policy) -> None:
    big = "{name: full, kind: model, model: big, tools: true}"
    made = [
        policy(name=name, expr=f'vllm:num_requests_waiting{{model_name="{source}"}} > 5',
               actions=f"[{{type: fallback_model, to: {to}}}]")
        for name, source, to in (("a", "big", "small"), ("b", "s", "full"))
    ]
    assert found(run, {"e.yaml": engine(SMALL, big), "p.yaml": "---\n".join(made)}) == [
        "warning fallback-circle"] * 2


def test_what_a_name_means_and_what_waits_add_up_to() -> None:
    ladder = (Rung("a", "url", url="http://h", timeout_ms=500), Rung("b", "template", text="x"),
              Rung("c", "model", model="m", p99_ms=70))
    assert rungs_of("ladder", ladder) == ladder and rungs_of("b", ladder) == ladder[1:2]
    assert rungs_of("m", ladder) == () and worst_case_ms(()) == 0
    assert worst_case_ms(ladder) == 570
