"""An SLO in a running engine: its policies, their decisions, and where both say they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from resilience.model import labels_of

SLO = """
apiVersion: resilience/v1
kind: SLO
metadata: {name: answers}
spec:
  objective: 99%
  window: 12h
  exclusions: []
  indicator:
    ratio: {bad: 'http_requests_total{status="500"}', total: http_requests_total}
  alerts:
    fast: {actions: [{type: throttle, tier: best-effort, max_concurrency: 4}]}
  on_missing_metric: warn
"""


def second(rig: Any, bad: float, good: float) -> None:
    """Scrape both counters once, tick once, and let a second pass."""
    series = [labels_of({"__name__": "http_requests_total", "status": s}) for s in ("500", "200")]
    now = rig.clock.now_ms()
    rig.recorder.append(now - 100, tuple(series), np.array([bad, good]))
    rig.runtime.tick(now, 1_000, 0)
    rig.clock.forward(1_000)


def test_its_alerts_fire_as_policies_and_say_which_slo_they_guard(
    engine: Any, cli: Any, rules: Path
) -> None:
    (rules / "slo.yaml").write_text(SLO)
    shown = cli("apply", rules)
    assert shown.code == 0, shown.err
    assert "+ answers-fast" in shown.out
    for i in range(70):                                  # one in ten fails, then one in two
        second(engine, i * 0.1 if i < 60 else 6 + (i - 60) * 3, i)
    assert engine.core.values() == {"throttle.max_concurrency": {"tier=best-effort": 4}}
    assert "answers-fast (SLO answers)" in cli("get", "policies").out
    (body,) = cli("get", "policies", "answers-fast", "-o", "json").json()["policies"]
    assert (body["slo"]["name"], body["slo"]["burn"], body["state"]) == ("answers", 14.4, "firing")
    assert cli("get", "policies", "queue", "-o", "json").json()["policies"][0]["slo"] is None
    fired = cli("get", "decisions", "--policy", "answers-fast", "-o", "json").json()["decisions"]
    told = cli("explain", fired[-1]["id"]).out
    assert (
        "It guards SLO `answers`, 99% over 12h: alert `fast`, the error budget burns 14.4 times "
        "too fast over 1m and over 5s.\n"
    ) in told


def test_check_says_what_each_alert_has_become(cli: Any, rules: Path) -> None:
    (rules / "slo.yaml").write_text(SLO)
    shown = cli("check", rules, "--strict")
    assert shown.code == 0
    assert "slo.yaml:12:5: info: spec.alerts.fast is policy `answers-fast`" in shown.out
    assert "14.4 times too fast over 1m and over 5s [slo-policy]" in shown.out
