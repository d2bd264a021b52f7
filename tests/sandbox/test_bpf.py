"""The filters, run by an interpreter of our own: both machines, whichever this one is."""

from __future__ import annotations

import struct

import pytest

from resilience.sandbox import bpf
from resilience.sandbox.syscalls import TABLES

ARGUMENTS_MAX = 6


def decide(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """Return the action of a classic BPF program for one system call."""
    padded = [*arguments, *[0] * (ARGUMENTS_MAX - len(arguments))]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *padded)
    code = [struct.unpack_from("<HBBI", program, i) for i in range(0, len(program), 8)]
    accumulator = at = 0
    while True:
        operation, jump_true, jump_false, k = code[at]
        at += 1
        if operation == 0x06:
            return int(k)
        if operation == 0x20:
            accumulator = struct.unpack_from("<I", data, k)[0]
        else:
            equal = accumulator == k if operation == 0x15 else bool(accumulator & k)
            assert operation in (0x15, 0x45)
            at += jump_true if equal else jump_false


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_worker_may_do_only_what_is_listed(machine: str) -> None:
    arch, numbers = TABLES[machine]
    program = bpf.assemble(machine, bpf.WORKER, bpf.KILL)
    names = {number: name for name, number in numbers.items()}
    for number in range(600):
        action = decide(program, arch, number, 9, 9, 9)
        name = names.get(number)
        if name in bpf.WORKER_ALLOWED:
            assert action == bpf.ALLOW, name
        elif name in bpf.WORKER_REFUSED:
            assert action == bpf.EPERM, name
        elif name in ("mmap", "mprotect"):
            assert action == bpf.ALLOW, name
        elif name == "madvise":
            assert action == bpf.EPERM, name
        else:
            assert action == bpf.KILL, (number, name)


def test_one_descriptor_each_way(machine: str) -> None:
    arch, numbers = TABLES[machine]
    program = bpf.assemble(machine, bpf.WORKER, bpf.KILL)
    for fd in range(64):
        read = decide(program, arch, numbers["read"], fd)
        write = decide(program, arch, numbers["write"], fd)
        assert (read == bpf.ALLOW) == (fd == bpf.READ_FD)
        assert (write == bpf.ALLOW) == (fd == bpf.WRITE_FD)


def test_futexes_only_wait_and_wake(machine: str) -> None:
    arch, numbers = TABLES[machine]
    program = bpf.assemble(machine, bpf.WORKER, bpf.KILL)
    allowed = {op for op in range(1024)
               if decide(program, arch, numbers["futex"], 0, op) == bpf.ALLOW}
    assert allowed == set(bpf.FUTEX_PRIVATE)
    advice = {a for a in range(128)
              if decide(program, arch, numbers["madvise"], 0, 0, a) == bpf.ALLOW}
    assert advice == set(bpf.MADVISE)


def test_no_memory_is_executable(machine: str) -> None:
    arch, numbers = TABLES[machine]
    for rules, default in ((bpf.WORKER, bpf.KILL), (bpf.ZYGOTE, bpf.EPERM)):
        program = bpf.assemble(machine, rules, default)
        for call in ("mmap", "mprotect"):
            for protection in range(16):
                action = decide(program, arch, numbers[call], 0, 4096, protection)
                assert (action == bpf.KILL) == bool(protection & bpf.PROT_EXEC)


def test_another_architecture_is_killed(machine: str) -> None:
    other = next(TABLES[m][0] for m in TABLES if m != machine)
    program = bpf.assemble(machine, bpf.WORKER, bpf.KILL)
    for arch in (other, 0x40000003):  # the other machine; 32-bit x86 calls
        assert decide(program, arch, TABLES[machine][1]["close"]) == bpf.KILL


def test_x32_calls_are_killed() -> None:
    arch, numbers = TABLES["x86_64"]
    program = bpf.assemble("x86_64", bpf.WORKER, bpf.KILL)
    for number in numbers.values():
        assert decide(program, arch, number | 0x40000000, bpf.READ_FD) == bpf.KILL


def test_the_zygote_sends_only_the_one_signal(machine: str) -> None:
    arch, numbers = TABLES[machine]
    program = bpf.assemble(machine, bpf.ZYGOTE, bpf.EPERM)
    assert decide(program, arch, numbers["kill"], 1, 9) == bpf.ALLOW
    assert decide(program, arch, numbers["kill"], 1, 15) == bpf.EPERM
    for call in ("socket", "openat", "unshare"):
        assert decide(program, arch, numbers[call]) == bpf.EPERM


def test_programs_stay_far_below_the_kernels_limit(machine: str) -> None:
    for rules in (bpf.WORKER, bpf.ZYGOTE):
        assert len(bpf.assemble(machine, rules, bpf.KILL)) // 8 < 256
