"""Degrade the KV cache while it is nearly full: fewer sequences run at once, then smaller steps.

metrics (optional): kv_usage, 0..1. Without it the value of the trigger is used.
params (optional): high (0.97), max_running (16), max_running_high (8), step_tokens_high (none).
"""


def fallback_to_cache(ctx):
    params = ctx.get("params") or {}
    usage = ctx["metrics"].get("kv_usage")
    if usage is None:
        usage = ctx["value"]
    if usage is None:
        raise ValueError("neither the metric kv_usage nor a value of the trigger is known")
    if usage <= params.get("high", 0.97):
        running = params.get("max_running", 16)
        return {"actions": [{"type": "cache_degrade", "max_running": running}]}
    action = {"type": "cache_degrade", "max_running": params.get("max_running_high", 8)}
    if params.get("step_tokens_high"):
        action["step_tokens"] = params["step_tokens_high"]
    return {"actions": [action], "note": f"KV cache at {usage:.0%}"}
