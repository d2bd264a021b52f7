"""Seccomp filters, assembled here as classic BPF: an allowlist with a default."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resilience.sandbox.limits import words
from resilience.sandbox.syscalls import TABLES

KILL = 0x80000000  # the whole process, seen by its parent as SIGSYS
ALLOW = 0x7FFF0000
EPERM = 0x00050000 | 1
PROT_EXEC = 4
NAMESPACES = 0x7E020000  # the flags of clone that make new ones

_LOAD = 0x20  # a 32-bit word of struct seccomp_data
_EQUAL = 0x15
_ANY_BIT = 0x45
_RETURN = 0x06
_NR, _ARCH, _ARGS = 0, 4, 16

Instruction = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Rule:
    """`action` for a call. With `argument`: if it is one of `values`, or has no bit of `without`;
    a call that fails the test gets `otherwise`."""

    call: str
    action: int = ALLOW
    argument: int | None = None
    values: tuple[int, ...] = ()
    without: int = 0
    otherwise: int = KILL


# What CPython needs to compute, and one descriptor each way.
WORKER_ALLOWED = words(
    "munmap brk mremap rt_sigreturn rt_sigprocmask exit exit_group clock_gettime "
    "gettimeofday restart_syscall rseq sched_yield close"
)
# What CPython tries by itself and can do without; all else kills the process.
WORKER_REFUSED = words(
    "open openat stat fstat lstat newfstatat statx access faccessat faccessat2 readlink "
    "readlinkat getdents64 getcwd lseek ioctl fcntl rt_sigaction sigaltstack poll ppoll select "
    "pselect6 nanosleep clock_nanosleep clock_getres getpid gettid getuid geteuid getgid "
    "getegid getrandom set_robust_list"
)
READ_FD, WRITE_FD = 4, 3
# Wait and wake inside one process, with and without CLOCK_REALTIME: no requeue, no priorities.
FUTEX_PRIVATE = (128, 129, 137, 138, 393)
MADVISE = (4, 8, 14, 15)  # give memory back, and huge pages or not

WORKER: tuple[Rule, ...] = (
    Rule("read", argument=0, values=(READ_FD,)), Rule("write", argument=0, values=(WRITE_FD,)),
    Rule("futex", argument=1, values=FUTEX_PRIVATE),
    Rule("madvise", argument=2, values=MADVISE, otherwise=EPERM),
    Rule("mmap", argument=2, without=PROT_EXEC), Rule("mprotect", argument=2, without=PROT_EXEC),
    *(Rule(name) for name in WORKER_ALLOWED),
    *(Rule(name, EPERM) for name in WORKER_REFUSED),
)
# The zygote forks, reaps and receives descriptors; its children narrow themselves further.
ZYGOTE: tuple[Rule, ...] = (
    Rule("mmap", argument=2, without=PROT_EXEC), Rule("mprotect", argument=2, without=PROT_EXEC),
    Rule("kill", argument=1, values=(9,), otherwise=EPERM),
    Rule("clone", argument=0, without=NAMESPACES, otherwise=EPERM),
    *(Rule(name) for name in (
        *WORKER_ALLOWED, "futex", "madvise", "getrandom", "read", "write", "fork", "wait4",
        "waitid", "recvmsg", "recvfrom", "sendmsg", "sendto", "pipe2", "poll", "ppoll",
        "pidfd_open", "close_range", "dup2", "dup3",
        "prctl", "prlimit64", "setrlimit", "getrlimit", "getpid", "getppid", "gettid", "fcntl",
        "fstat", "set_robust_list", "set_tid_address", "rt_sigaction", "sigaltstack", "seccomp",
    )),
)


def assemble(machine: str, rules: Sequence[Rule], default: int) -> bytes:
    """Return the program for `machine`: wrong architecture kills, then `rules`, then `default`."""
    arch, numbers = TABLES[machine]
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, KILL), (_LOAD, 0, 0, _NR),
    ]
    for rule in rules:
        if rule.call in numbers:  # aarch64 has no `open`, `poll`, `fork`…
            program += _instructions(rule, numbers)
    program.append((_RETURN, 0, 0, default))
    return b"".join(struct.pack("=HBBI", *i) for i in program)


def _instructions(rule: Rule, numbers: Mapping[str, int]) -> list[Instruction]:
    number = numbers[rule.call]
    if rule.argument is None:
        return [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, rule.action)]
    low = _ARGS + 8 * rule.argument  # both machines are little-endian
    ends: list[Instruction] = [(_RETURN, 0, 0, rule.otherwise), (_RETURN, 0, 0, rule.action)]
    if rule.without:
        tests: list[Instruction] = [(_ANY_BIT, 0, 1, rule.without)]
    else:
        last = len(rule.values)
        tests = [(_EQUAL, last - i, 0, value) for i, value in enumerate(rule.values)]
    body: list[Instruction] = [(_LOAD, 0, 0, low), *tests, *ends]
    return [(_EQUAL, 0, len(body), number), *body]
