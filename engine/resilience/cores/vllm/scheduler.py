"""vLLM's scheduler with levers: the subclass, and what `--scheduler-cls` calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from resilience.cores.vllm.levers import Levers


def levers_of(scheduler: Any) -> Levers:
    """Return the levers of a scheduler, also of one that is not this package's.

    A foreign scheduler gets the attribute levers, and its `schedule` and `add_request` are wrapped
    in place so that leases end there too.
    """
    found = getattr(scheduler, "resilience_levers", None)
    if isinstance(found, Levers):
        return found
    levers = Levers.of(scheduler, subclassed=False)
    scheduler.resilience_levers = levers
    _wrap(scheduler, "schedule", levers.before_step, levers.after_step)
    _wrap(scheduler, "add_request", levers.on_request, lambda _: None)
    return levers


def _wrap(
    scheduler: Any, name: str, first: Callable[[], None], last: Callable[[Any], None]
) -> None:
    original = getattr(scheduler, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        first()
        result = original(*args, **kwargs)
        last(result)
        return result

    setattr(scheduler, name, wrapped)


@cache
def scheduler_class(asynchronous: bool) -> type:
    """Build the subclass of vLLM's scheduler for the mode in which the engine runs."""
    if asynchronous:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler as Base
    else:
        from vllm.v1.core.sched.scheduler import Scheduler as Base

    class ResilienceScheduler(Base):  # type: ignore[misc]
        """vLLM's scheduler with levers; without claims it does what its base does."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.resilience_levers = Levers.of(self, subclassed=True)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            self.resilience_levers.before_step()
            output = super().schedule(*args, **kwargs)
            self.resilience_levers.after_step(output)
            return output

        def add_request(self, *args: Any, **kwargs: Any) -> Any:
            self.resilience_levers.on_request()
            return super().add_request(*args, **kwargs)

        def _get_local_prefix_cache_hit(self, *args: Any, **kwargs: Any) -> Any:
            found = super()._get_local_prefix_cache_hit(*args, **kwargs)
            return self.resilience_levers.hide_prefix(found)

        def _handle_blocked_waiting_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            ready = super()._handle_blocked_waiting_request(request, *args, **kwargs)
            return ready and self.resilience_levers.admits(request)

        def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
            self.resilience_levers.let_go()
            return super().reset_prefix_cache(*args, **kwargs)

        def make_stats(self, *args: Any, **kwargs: Any) -> Any:
            return self.resilience_levers.corrected(super().make_stats(*args, **kwargs))

    return ResilienceScheduler


def make_scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    """Be the value of `--scheduler-cls`: called like the class, it picks the right base."""
    asynchronous = bool(vllm_config.scheduler_config.async_scheduling)
    return scheduler_class(asynchronous)(vllm_config, *args, **kwargs)
