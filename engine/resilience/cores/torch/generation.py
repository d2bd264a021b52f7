"""Generation: one model, transformers' batching in a thread of its own, and the requests in it.

All but the thread happens on the server's event loop. A request always ends: with its last token,
with an abort, or with the error that ended the thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from resilience.cores.cpu import fast_dtype
from resilience.cores.torch.arguments import ServeArguments
from resilience.cores.torch.levers import Levers
from resilience.cores.torch.sampling import COLD, fit_processors, turn_head

PAGE = 32
LOOK_S = 0.25
STOP_S = 5.0


class QueueFullError(Exception):
    """As many requests as may wait are waiting."""


class DeadError(Exception):
    """The generation thread has ended; `str()` says why."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. `top_k` 0 and `top_p` 1.0 leave all tokens in."""

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    ignore_eos: bool = False
    priority: int = 0


@dataclass(eq=False)
class Job:
    """One request under way. `changed` is set with each new token and at the end; `finish` is None,
    stop, length, abort or error, and then `error` says which."""

    name: str
    prompt: int
    sampling: Sampling
    arrived_s: float
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    tokens: tuple[int, ...] = ()
    first_s: float | None = None
    last_s: float | None = None
    queued_s: float | None = None
    finish: str | None = None
    error: str | None = None

    @property
    def runs(self) -> bool:
        return self.first_s is not None


@dataclass
class Observer:
    """What is told of each token and each end; the metrics listen here."""

    on_token: Callable[[Job, float, float], None] = lambda job, now_s, before_s: None
    on_end: Callable[[Job, float], None] = lambda job, now_s: None


class Generator:
    """The requests of one model. `load` makes one; `start` before the first request."""

    def __init__(
        self, manager: Any, levers: Levers, arguments: ServeArguments, eos: tuple[int, ...],
        context: int, vocabulary: int, clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.manager = manager
        self.levers = levers
        self.seats = arguments.max_num_seqs
        self.context = context
        self.jobs: dict[str, Job] = {}
        self.observer = Observer()
        self.generated = 0
        self._limit = arguments.max_num_seqs + arguments.queue_max
        self._eos = eos
        self.vocabulary = vocabulary
        self._clock_s = clock_s
        self._count = 0
        self._told: str | None = None

    # --- the thread ------------------------------------------------------------------------------

    def start(self) -> None:
        self.manager.start()

    def stop(self) -> None:
        """End the thread and every request; what has died is left alone."""
        for job in list(self.jobs.values()):
            self.abort(job)
        if self.alive:
            self.manager.stop(block=True, timeout=STOP_S, hard_stop=True)

    @property
    def alive(self) -> bool:
        """Return whether the thread takes requests: one that is about to end does not."""
        ending = self.manager.background_thread_status.can_accept_new_requests()
        return bool(self.manager.is_running()) and ending is None

    @property
    def death(self) -> str | None:
        """Return why the thread has ended, if an error ended it.

        A thread that dies tells its requests first; until it has recorded the error, it is what a
        request was told.
        """
        error = self.manager.background_thread_status.fatal_error
        return self._told if error is None else f"{type(error).__name__}: {error}"

    @property
    def why_dead(self) -> str:
        return f"the generation thread has ended ({self.death or 'without an error'})"

    async def watch(self) -> None:
        """End the requests that the thread left behind when it died."""
        while self.manager.is_running():
            await asyncio.sleep(LOOK_S)
        for job in list(self.jobs.values()):
            self._end(job, "error", self.why_dead)

    @property
    def scheduler(self) -> Any:
        """Return the scheduler; None until the thread has made it."""
        return getattr(self.manager.batch_processor, "scheduler", None)

    # --- requests --------------------------------------------------------------------------------

    def submit(self, prompt: list[int], sampling: Sampling) -> Job:
        """Take a request in; raises QueueFullError, DeadError."""
        if not self.alive:
            raise DeadError(self.why_dead)
        if len(self.jobs) >= self._limit:
            raise QueueFullError(f"{len(self.jobs)} requests are under way or wait")
        self._count += 1
        job = Job(f"r{self._count}", len(prompt), sampling, self._clock_s())
        self.jobs[job.name] = job
        self.manager.register_result_handler(job.name, lambda output: self._take(job, output))
        taken = self.manager.add_request(
            prompt, request_id=job.name, max_new_tokens=sampling.max_tokens, streaming=True,
            eos_token_id=[-1] if sampling.ignore_eos else list(self._eos or (-1,)),
            temperature=max(sampling.temperature, COLD), top_p=sampling.top_p,
            top_k=min(sampling.top_k or self.vocabulary, self.vocabulary),
        )
        if taken is None:
            self._forget(job)
            raise DeadError(self.why_dead)
        return job

    def abort(self, job: Job) -> None:
        """End a request now; one that has ended stays as it is."""
        if job.finish is None:
            self.manager.cancel_request(job.name)
            self._end(job, "abort")

    def _take(self, job: Job, output: Any) -> None:
        """Take in what the thread says of a request; called on the event loop."""
        if job.finish is not None:
            return
        now_s, fresh = self._clock_s(), len(output.generated_tokens) - len(job.tokens)
        job.tokens = tuple(output.generated_tokens)
        if output.error is not None:
            self._told = None if self.alive else str(output.error)
            self._end(job, "error", str(output.error))
            return
        if job.first_s is None:
            job.queued_s = max(0.0, output.lifespan[0] - output.created_time)
        if fresh > 0:
            self._note(job, now_s, fresh)
        if output.is_finished():
            self._end(job, "stop" if self._stopped(job) else "length")
        else:
            job.changed.set()

    def _note(self, job: Job, now_s: float, fresh: int) -> None:
        before_s = job.last_s if job.last_s is not None else job.arrived_s
        self.generated += fresh
        self.observer.on_token(job, now_s, before_s)
        job.first_s = now_s if job.first_s is None else job.first_s
        job.last_s = now_s

    def _stopped(self, job: Job) -> bool:
        return not job.sampling.ignore_eos and bool(job.tokens) and job.tokens[-1] in self._eos

    def _end(self, job: Job, finish: str, error: str | None = None) -> None:
        if job.finish is not None:
            return
        job.finish, job.error = finish, error
        self._forget(job)
        self.observer.on_end(job, self._clock_s())
        job.changed.set()

    def complete(self, job: Job) -> None:
        """End a request that has all it wanted before its last token, such as a stop word."""
        if job.finish is None:
            self.manager.cancel_request(job.name)
            self._end(job, "stop")

    def _forget(self, job: Job) -> None:
        self.jobs.pop(job.name, None)
        with suppress(KeyError):
            router = self.manager.output_router
            with router._lock:
                del router.result_handlers[job.name]

    def priority_of(self, name: str) -> int:
        job = self.jobs.get(name)
        return 0 if job is None else job.sampling.priority


def load(arguments: ServeArguments) -> tuple[Generator, Any]:
    """Load the model onto the CPU; returns the generator and the tokenizer. Takes seconds."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from resilience.cores.torch.scheduler import register

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    chosen = fast_dtype(arguments.dtype)
    dtype = "auto" if chosen == "auto" else getattr(torch, chosen)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model: Any = AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=dtype, attn_implementation="sdpa"
    )
    turn_head(model)
    levers = Levers(arguments.max_num_seqs, arguments.step_tokens, prefix=True)
    found: list[Generator] = []
    register(levers, lambda name: found[0].priority_of(name))
    manager = _manager(model, arguments)
    limit = int(getattr(model.config, "max_position_embeddings", arguments.kv_tokens))
    context = min(arguments.max_model_len or limit, limit, arguments.kv_tokens)
    found.append(Generator(
        manager, levers, arguments, _eos(model, tokenizer), context, model.config.vocab_size
    ))
    return found[0], tokenizer


def _manager(model: Any, arguments: ServeArguments) -> Any:
    """Return transformers' own manager: no device graphs, one batch at a time, a fixed pool.

    The defaults of the sampling differ from "off", because only then is a processor kept that each
    request can give its own value to.
    """
    from transformers import ContinuousBatchingConfig, GenerationConfig

    from resilience.cores.torch.scheduler import NAME

    sampling = GenerationConfig(
        do_sample=True, temperature=0.7, top_k=50, top_p=0.9, eos_token_id=-1, max_new_tokens=16
    )
    manager = model.init_continuous_batching(sampling, ContinuousBatchingConfig(
        page_size=PAGE, num_blocks=-(-arguments.kv_tokens // PAGE),
        max_batch_tokens=arguments.step_tokens, max_requests_per_batch=arguments.max_num_seqs,
        per_request_processors=True, use_cuda_graph=False, use_async_batching=False,
        auto_switch_to_flash=False, scheduler_type=NAME,
    ))
    fit_processors(manager)
    return manager


def _eos(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens that end an answer: the model's and the tokenizer's."""
    found = model.generation_config.eos_token_id
    ids = found if isinstance(found, list) else [found]
    return tuple(dict.fromkeys(i for i in (*ids, tokenizer.eos_token_id) if i is not None))
