"""Throttle a tier harder while the queue is long and the KV cache fills; let go with hysteresis.

metrics: queue (requests waiting, a number), kv (KV cache usage 0..1, a range query: a list of
numbers, oldest first; a single number works too). Both may be missing, not at the same time.
params (optional): tier ("best-effort"), max_concurrency (32), min_concurrency (2), queue_high (50),
queue_low (10), kv_high (0.9), kv_low (0.75).

Pressure halves the limit, calm doubles it, and between the two marks it stays as it is.
"""

DEFAULTS = {
    "tier": "best-effort", "max_concurrency": 32, "min_concurrency": 2, "queue_high": 50,
    "queue_low": 10, "kv_high": 0.9, "kv_low": 0.75,
}


def slope(values):
    """Return the change per sample, by least squares."""
    count = len(values)
    if count < 2:
        return 0.0
    middle = (count - 1) / 2
    mean = sum(values) / count
    rise = sum((i - middle) * (v - mean) for i, v in enumerate(values))
    return rise / sum((i - middle) ** 2 for i in range(count))


def readings(ctx):
    """Return (queue, kv now, kv expected three samples from now); None for what is unknown."""
    metrics = ctx["metrics"]
    kv = metrics.get("kv")
    history = kv if isinstance(kv, list) else [] if kv is None else [kv]
    now = history[-1] if history else None
    ahead = None if now is None else now + 3 * max(slope(history), 0.0)
    return metrics.get("queue"), now, ahead


def adaptive_throttle(ctx):
    conf = {**DEFAULTS, **(ctx.get("params") or {})}
    queue, kv, ahead = readings(ctx)
    if queue is None and kv is None:
        raise ValueError("neither queue nor kv is known")
    pressed = (queue is not None and queue > conf["queue_high"]) or (
        ahead is not None and ahead > conf["kv_high"])
    calm = (queue is None or queue < conf["queue_low"]) and (kv is None or kv < conf["kv_low"])
    previous = ctx.get("previous") or {}
    limit = (previous.get("state") or {}).get("limit", conf["max_concurrency"])
    if pressed:
        limit = max(conf["min_concurrency"], limit // 2)
    elif calm:
        limit = min(conf["max_concurrency"], limit * 2)
    action = {"type": "throttle", "tier": conf["tier"], "max_concurrency": limit}
    level = "pressed" if pressed else "calm" if calm else "between the marks"
    return {"actions": [action], "state": {"limit": limit}, "note": f"{level}, limit {limit}"}
