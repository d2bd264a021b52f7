"""What `get ladder` shows: cost, what is served now, and who leads there."""

from __future__ import annotations

from typing import Any

from resilience.app.views import ladder
from resilience.cli.get import ladder_text
from resilience.model import Rung, SecondEngineSettings

LADDER = (
    Rung("small", "model", model="s", context=2_048, tools=True, throughput=140.0, p99_ms=900,
         quality=0.713),
    Rung("cpu", "url", url="http://127.0.0.1:8001"), Rung("sorry", "template", text="later"),
)


def claim(to: str, policy: str, *, rules: bool = True, knob: str = "route.model") -> Any:
    return {"knob": knob, "value": {"to": to, "share": 1.0}, "policy": policy, "rules": rules}


def test_rungs_say_what_is_served_and_who_leads_there() -> None:
    claims = [claim("ladder", "b"), claim("small", "a"), claim("small", "weak", rules=False),
              {**claim("small", "other"), "knob": "throttle.max_concurrency", "value": 3}]
    small, cpu, sorry = ladder(LADDER, claims, ("big", "s"))
    assert (small["available"], cpu["available"], sorry["available"]) == (True, None, True)
    assert (small["claimed_by"], cpu["claimed_by"]) == (["a", "b"], ["b"])
    assert ladder(LADDER, (), ("big",))[0]["available"] is False
    assert ladder(LADDER, (), None)[0]["available"] is None


def test_people_see_a_table_in_order_with_measured_costs() -> None:
    text = ladder_text({"ladder": ladder(LADDER, [claim("ladder", "burn")], ("s",))})
    head, first, second, third = text.splitlines()
    assert head.split()[:4] == ["RUNG", "KIND", "MODEL", "TOKENS/S"]
    assert first.split() == ["1", "small", "model", "s", "140", "900ms", "71.3%", "2048", "yes",
                             "yes", "burn"]
    assert second.split() == ["2", "cpu", "url", "http://127.0.0.1:8001", "-", "-", "-", "-", "no",
                              "?", "burn"]
    assert third.split()[:3] == ["3", "sorry", "template"]
    assert ladder_text({"ladder": []}) == "no ladder"


def test_a_second_engine_says_how_it_is() -> None:
    rung = Rung("own", "engine", model="/m", engine=SecondEngineSettings())
    running = {"state": "failed", "reason": "it ended", "pid": None}
    unknown, failed, ready = (
        ladder((rung,), (), ("own",), engines)[0]
        for engines in (None, {"own": running}, {"own": {**running, "state": "ready"}}))
    assert (unknown["available"], failed["available"], ready["available"]) == (None, False, True)
    assert failed["running"] == running and failed["engine"]["seats"] == 4
    texts = [ladder_text({"ladder": [row]}).splitlines()[1].strip()
             for row in (unknown, failed, ready)]
    said = [text.rpartition("no  ")[2].strip() for text in texts]
    assert said == ["?", "failed: it ended", "yes"]
