"""The metrics of this core, under vLLM's names where the meaning is the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from resilience.cores.torch.generation import Generator, Job

LATENCY_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
GAP_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
TOKENS = (1, 8, 32, 128, 512, 2_048, 8_192, 32_768)
REASONS = ("stop", "length", "abort", "error")


class Series:
    """Counters and histograms of one model; an Observer of the generator."""

    def __init__(self, registry: Any, model: str) -> None:
        from prometheus_client import Counter, Histogram

        labels, values = ("model_name", "engine"), (model, "0")

        def counter(name: str, text: str) -> Any:
            return Counter(f"vllm:{name}", text, labels, registry=registry).labels(*values)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Any:
            return Histogram(
                f"vllm:{name}", text, labels, buckets=buckets, registry=registry
            ).labels(*values)

        self._prompt = counter("prompt_tokens", "Tokens of prompts that were prefilled")
        self._generated = counter("generation_tokens", "Tokens generated")
        self._first = histogram("time_to_first_token_seconds", "To the first token", LATENCY_S)
        self._gap = histogram("inter_token_latency_seconds", "Between two tokens", GAP_S)
        self._whole = histogram("e2e_request_latency_seconds", "Of a whole request", LATENCY_S)
        self._queue = histogram("request_queue_time_seconds", "Waiting for a seat", LATENCY_S)
        self._prompts = histogram("request_prompt_tokens", "Tokens of a prompt", TOKENS)
        self._answers = histogram("request_generation_tokens", "Tokens of an answer", TOKENS)
        ended = Counter(
            "vllm:request_success", "Requests by how they ended", (*labels, "finished_reason"),
            registry=registry,
        )
        self._ended = {reason: ended.labels(*values, reason) for reason in REASONS}

    def on_token(self, job: Job, now_s: float, before_s: float) -> None:
        if job.first_s is None:
            self._prompt.inc(job.prompt)
            self._first.observe(now_s - before_s)
            self._queue.observe(job.queued_s or 0.0)
        else:
            self._gap.observe(now_s - before_s)
        self._generated.inc()

    def on_end(self, job: Job, now_s: float) -> None:
        self._ended[job.finish or "error"].inc()
        self._whole.observe(now_s - job.arrived_s)
        self._prompts.observe(job.prompt)
        self._answers.observe(len(job.tokens))


class Gauges:
    """A collector of what is true right now."""

    def __init__(self, generator: Generator, model: str) -> None:
        self._generator = generator
        self._values = (model, "0")

    def collect(self) -> Iterator[Any]:
        """Yield every family; called by the registry."""
        from prometheus_client.core import GaugeMetricFamily

        running, waiting = counts(self._generator)
        for name, text, value in (
            ("num_requests_running", "Requests in the batch", float(running)),
            ("num_requests_waiting", "Requests that wait for a seat", float(waiting)),
            ("kv_cache_usage_perc", "Used share of the KV pool, 0 to 1", usage(self._generator)),
        ):
            family = GaugeMetricFamily(f"vllm:{name}", text, labels=("model_name", "engine"))
            family.add_metric(self._values, value)
            yield family


def counts(generator: Generator) -> tuple[int, int]:
    """Return how many requests are in the batch and how many wait."""
    scheduler = generator.scheduler
    running = 0 if scheduler is None else len(scheduler.active_requests)
    return running, max(0, len(generator.jobs) - running)


def usage(generator: Generator) -> float:
    """Return the used share of the KV pool; blocks kept only for their prefix count as used."""
    scheduler = generator.scheduler
    return 0.0 if scheduler is None else 1.0 - float(scheduler.cache.compute_free_capacity())
