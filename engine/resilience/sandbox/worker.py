"""A child of the zygote: locks itself, says that it is ready, serves one request, ends."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, NoReturn, Protocol

from resilience.sandbox import kernel, reply
from resilience.sandbox.bpf import READ_FD, WRITE_FD
from resilience.sandbox.budget import Denied, Run
from resilience.sandbox.environment import environment
from resilience.sandbox.lock import Lock
from resilience.sandbox.program import Program, load, run
from resilience.sandbox.wire import READY, frame, read_frame, write_all

_SPARE_FD = 200  # above every descriptor that the zygote holds: it has up to 64 workers


class Runnable(Protocol):
    """What the zygote has for a file: something that runs one function on one context."""

    def __call__(
        self, function: str, context: Any, budget: Run, names: dict[str, Any]
    ) -> Any: ...


def runnable(program: Program) -> Runnable:
    """Return `program` as the worker calls it."""
    return lambda function, context, budget, names: run(program, function, context, budget, names)


def reach(run_file: Runnable) -> Iterator[object]:
    """Yield what a call of `run_file` is going to refer to: its code, and what that holds."""
    for cell in getattr(run_file, "__closure__", None) or ():
        if isinstance(cell.cell_contents, Program):
            yield from parts_of(cell.cell_contents.code)


def parts_of(code: CodeType) -> Iterator[object]:
    """Yield a code object and all that it holds."""
    yield code
    for part in (*code.co_consts, *code.co_names, *code.co_varnames):
        if isinstance(part, CodeType):
            yield from parts_of(part)
        else:
            yield part


def serve(
    request_fd: int, reply_fd: int, parent: int, lock: Lock, files: Mapping[str, Runnable],
    desk: Desk, ahead: bool, touched: Sequence[object] = (),
) -> NoReturn:
    """Do all of the above; never returns. `desk` is unused; warming it up, and the objects in
    `touched`, is worth its time when the fork is `ahead` of the call."""
    status = 1
    try:
        arrange_descriptors(request_fd, reply_fd)
        lock.worker(parent)
        if ahead:
            warm_up(desk)
            for _ in touched:  # a reference to each copies its page ahead of the call
                pass
        desk.reserve()
        write_all(WRITE_FD, READY)
        request = read_frame(READ_FD)
        if request is not None:
            _answer(desk.perform(request, files))
        status = 0
    except BaseException:  # whatever happens, this process ends here and now
        status = 1
    finally:
        os._exit(status)


def arrange_descriptors(request_fd: int, reply_fd: int) -> None:
    """Leave /dev/null on 0-2, the reply on 3, the request on 4, and nothing else."""
    os.dup2(request_fd, _SPARE_FD)
    os.dup2(reply_fd, _SPARE_FD + 1)
    os.dup2(_SPARE_FD, READ_FD)
    os.dup2(_SPARE_FD + 1, WRITE_FD)
    kernel.close_from(max(READ_FD, WRITE_FD) + 1)


class Desk:
    """All that one run needs, laid out before the fork: a copy of it is cheaper than a new one."""

    def __init__(self) -> None:
        self._budget = Run("", stop=self._stop)
        self._names = environment(self._budget)
        self._clean = dict(self._names)
        self._reserve: mmap.mmap | None = None

    def clear(self) -> None:
        """Forget a run, as if there had been none."""
        self._budget.restart()
        self._names.clear()
        self._names.update(self._clean)

    def reserve(self) -> None:
        """Set room aside to answer once the UDF has used up all memory. It is never touched."""
        self._reserve = mmap.mmap(-1, 1 << 20)

    def perform(self, request: Mapping[str, Any], files: Mapping[str, Runnable]) -> reply.Reply:
        """Run one request and return the reply. A denial answers and ends the process at once."""
        budget = self._budget
        budget.file = request["file"]
        try:
            run_file = files[request["file"]]
            result = run_file(request["function"], request["context"], budget, self._names)
            return reply.ok(result, budget)
        except Denied as denied:
            return reply.denied(denied, budget)
        except BaseException as error:
            if self._reserve is not None:
                self._reserve.close()
            return reply.raised(error, budget)

    def _stop(self, denied: Denied) -> NoReturn:
        _answer(reply.denied(denied, self._budget))
        os._exit(0)


def _answer(body: reply.Reply) -> None:
    """Send the one frame and end the stream, so that the engine need not wait for the exit."""
    write_all(WRITE_FD, frame(body))
    os.close(WRITE_FD)


_WARM_SOURCE = """
import math, statistics
LEVELS = [1, 2]
def helper(x, *, scale=1.0):
    return max(x * scale, 0.5)
def warm(ctx):
    m = ctx["metrics"]
    total = sum(helper(v) for v in m["a"])
    parts = {k: round(v, 2) for k, v in sorted(ctx["labels"].items())}
    for i, (a, b) in enumerate(zip(m["a"], LEVELS)):
        parts["x"] = parts.get("x", 0) + a + b
        parts["x"] += i
    try:
        parts["y"]
    except KeyError as e:
        print(f"{e} {total:.2f}", "x" in parts)
    return {"actions": [{"type": "t", "v": [math.ceil(total), statistics.fmean(m["a"]), parts]}]}
"""
_WARM_REQUEST = json.dumps({
    "file": "warm-up", "function": "warm",
    "context": {"metrics": {"a": [1.0, 2.0]}, "labels": {"a": 1.25}, "value": 0.5, "now": 1.5e9,
                "policy": "warm", "params": {}, "claims": {}, "previous": None},
})
_WARM_PROGRAM = load("warm-up", _WARM_SOURCE)[0]


def warm_up(desk: Desk) -> None:
    """Touch the memory that a call needs, ahead of it: a fork copies pages on first write."""
    if _WARM_PROGRAM is not None:
        body = desk.perform(json.loads(_WARM_REQUEST), {"warm-up": runnable(_WARM_PROGRAM)})
        frame(body)
    desk.clear()
