"""The JSON Schema of one rung of the fallback ladder."""

from __future__ import annotations

from resilience.model import Json
from resilience.policy import fragments as f
from resilience.policy.fragments import said


def rung() -> Json:
    """Return the schema of one rung; which fields its kind needs is checked in `ladders`."""
    return f.record({**_what(), **_limits(), **_cost()}, ("name", "kind"))


def _what() -> dict[str, Json]:
    return {
        "name": said(f.string(f.NAME_PATTERN, "name", 63), "Name of the rung, for `to`."),
        "kind": said(
            f.choice("model", "lora", "engine", "url", "cached", "template"),
            "`model`: another model that this server serves; `lora`: an adapter, which changes "
            "behaviour, not cost; `engine`: a second engine that this server runs; `url`: another "
            "OpenAI-style server; `cached`: the stored answer to an equal request; `template`: a "
            "fixed text.",
        ),
        "model": said(
            f.string(longest=500), "Name under which the model or adapter is served. For `url`: "
            "the name there; default: the one that is asked for. For `engine`: the folder or name "
            "of the model that it loads.",
        ),
        "url": said(
            f.string(r"^https?://[^\s/@]+$", "URL", 1_000), "Where the other server listens, "
            "without a path. Requests go there without their Authorization header.",
        ),
        "text": said(f.string(longest=4_000), "What a template answers."),
        "engine": said(_engine(), "How this server runs the second engine of the rung."),
    }


def _engine() -> Json:
    return f.record({
        "core": said(f.choice("vllm", "torch"), "What serves it: vLLM, or the PyTorch decoder of "
                     "this package.", "vllm"),
        "start": said(
            f.choice("ahead", "on_demand"), "`ahead`: with the server. `on_demand`: when a claim "
            "first leads to the rung; until it is up, requests skip it.", "on_demand",
        ),
        "seats": said(f.integer(1, 1_024), "Most sequences that it runs at once.", 4),
        "dtype": said(f.choice("auto", "float32", "bfloat16", "float16"),
                      "Number format of its weights.", "auto"),
        "kv_mebibytes": said(f.integer(1, 1_048_576), "Memory of vLLM's KV pool.", 512),
        "memory_mebibytes": said(
            f.integer(1, 1_048_576), "Memory that must be free before it starts. Default: twice "
            "the model's files, its KV pool and 1280 MiB.",
        ),
        "start_timeout": said(
            f.duration(1_000, 3_600_000), "How long a start may take before it has failed.", "5m",
        ),
        "stop_after": said(
            f.duration(0, 86_400_000), "How long one that was started on demand stays after the "
            "last claim and request.", "1m",
        ),
    })


def _limits() -> dict[str, Json]:
    return {
        "context": said(
            f.integer(minimum=1), "Most tokens of prompt and output together; a request with more "
            "skips the rung. Default: not looked at.",
        ),
        "tools": said(
            f.boolean(), "Whether it answers requests with tools; if not, they skip it.", False
        ),
        "timeout": said(
            f.duration(1, 3_600_000),
            "Time to its first byte, after which the next rung is tried; of `url` and `engine` to "
            "the end of an answer that is no stream. Default: 30s for `url` and `engine`, none for "
            "the others.",
        ),
        "max_age": said(
            f.duration(1_000, 86_400_000), "How old a cached answer may be. Default: 5m.",
        ),
        "max_mebibytes": said(f.integer(1, 4_096), "Memory for cached answers. Default: 16."),
    }


def _cost() -> dict[str, Json]:
    return {
        "throughput": said(f.number(0), "Measured output tokens per second."),
        "p99": said(
            f.duration(0, 3_600_000), "Measured 99th percentile of the time to the first token.",
        ),
        "quality": said(f.number(0, 1), "Measured share of a fixed set that it answers well."),
    }
