"""Send a share of the traffic to the cheapest fallback model that is available.

params: candidates, a list of {to, cost, metric}: `metric` names one of `metrics`, which says how
available the model is (0 or missing: not). Optional: share (1.0), tier, available_at (0.5).

The choice is kept while its model stays available, so that prices that change do not make the
traffic swing.
"""


def available(candidate, metrics, mark):
    value = metrics.get(candidate.get("metric", candidate["to"]))
    return value is not None and value >= mark


def cheapest_fallback(ctx):
    params = ctx.get("params") or {}
    candidates = params.get("candidates") or []
    if not candidates:
        raise ValueError("params.candidates names no fallback model")
    mark = params.get("available_at", 0.5)
    ready = [c for c in candidates if available(c, ctx["metrics"], mark)]
    if not ready:
        return {"actions": [], "note": "no fallback model is available"}
    kept = ((ctx.get("previous") or {}).get("state") or {}).get("to")
    names = [c["to"] for c in ready]
    chosen = kept if kept in names else min(ready, key=lambda c: (c["cost"], c["to"]))["to"]
    action = {"type": "fallback_model", "to": chosen, "share": params.get("share", 1.0)}
    if params.get("tier"):
        action["tier"] = params["tier"]
    return {"actions": [action], "state": {"to": chosen}}
