"""Open a throttled tier again in stages, and only while the server stays healthy.

metrics: healthy (above 0 is healthy; missing counts as not). Without it the value of the trigger.
params (optional): tier ("best-effort"), max_concurrency (32), stages ([0.25, 0.5, 0.75, 1.0]),
every_s (60).

Each stage lasts `every_s` healthy seconds; an unhealthy reading goes back to the first one.
"""

import math


def staged_recovery(ctx):
    params = ctx.get("params") or {}
    stages = params.get("stages") or [0.25, 0.5, 0.75, 1.0]
    state = (ctx.get("previous") or {}).get("state") or {"stage": 0, "since": ctx["now"]}
    stage, since = state["stage"], state["since"]
    healthy = ctx["metrics"].get("healthy")
    if healthy is None and "healthy" not in ctx["metrics"]:
        healthy = ctx["value"]
    if not healthy or healthy <= 0:
        stage, since = 0, ctx["now"]
    elif ctx["now"] - since >= params.get("every_s", 60):
        stage, since = min(stage + 1, len(stages) - 1), ctx["now"]
    limit = max(1, math.floor(params.get("max_concurrency", 32) * stages[stage]))
    action = {
        "type": "throttle", "tier": params.get("tier", "best-effort"), "max_concurrency": limit,
    }
    progress = {"type": "metric_emit", "name": "recovery_stage", "value": stage + 1}
    return {"actions": [action, progress], "state": {"stage": stage, "since": since}}
