"""System call numbers of the two machines that the sandbox knows (Linux' own tables)."""

from __future__ import annotations

import platform
from types import MappingProxyType

AUDIT_X86_64 = 0xC000003E
AUDIT_AARCH64 = 0xC00000B7

_X86_64 = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7,
    "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13,
    "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "access": 21,
    "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28, "dup2": 33, "nanosleep": 35,
    "getpid": 39, "socket": 41, "sendto": 44, "recvfrom": 45, "sendmsg": 46, "recvmsg": 47,
    "clone": 56, "fork": 57, "exit": 60, "wait4": 61, "kill": 62, "fcntl": 72, "getcwd": 79,
    "readlink": 89, "gettimeofday": 96, "getrlimit": 97, "getuid": 102, "getgid": 104,
    "geteuid": 107, "getegid": 108, "getppid": 110, "capset": 126, "sigaltstack": 131,
    "prctl": 157, "setrlimit": 160, "unshare": 272, "gettid": 186, "futex": 202, "getdents64": 217,
    "set_tid_address": 218, "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229,
    "clock_nanosleep": 230, "exit_group": 231, "waitid": 247, "openat": 257, "newfstatat": 262,
    "readlinkat": 267, "faccessat": 269, "pselect6": 270, "ppoll": 271, "set_robust_list": 273,
    "dup3": 292, "pipe2": 293, "prlimit64": 302, "seccomp": 317, "getrandom": 318,
    "statx": 332, "rseq": 334,
    "pidfd_send_signal": 424, "pidfd_open": 434, "close_range": 436, "faccessat2": 439,
    "landlock_create_ruleset": 444, "landlock_restrict_self": 446,
}
_AARCH64 = {
    "getcwd": 17, "dup3": 24, "fcntl": 25, "ioctl": 29, "faccessat": 48, "openat": 56, "close": 57,
    "getdents64": 61, "lseek": 62, "read": 63, "write": 64, "pread64": 67, "pselect6": 72,
    "ppoll": 73, "pipe2": 59, "readlinkat": 78, "newfstatat": 79, "fstat": 80, "exit": 93,
    "exit_group": 94,
    "waitid": 95, "set_tid_address": 96, "unshare": 97, "futex": 98, "set_robust_list": 99,
    "nanosleep": 101,
    "capset": 91, "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115,
    "restart_syscall": 128, "sched_yield": 124, "kill": 129, "sigaltstack": 132,
    "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "getrlimit": 163,
    "setrlimit": 164, "prctl": 167, "gettimeofday": 169, "getpid": 172, "getppid": 173,
    "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178, "socket": 198,
    "sendto": 206, "recvfrom": 207, "sendmsg": 211, "recvmsg": 212, "brk": 214, "munmap": 215,
    "mremap": 216, "clone": 220, "mmap": 222, "mprotect": 226, "madvise": 233, "wait4": 260,
    "prlimit64": 261, "seccomp": 277, "getrandom": 278, "statx": 291, "rseq": 293,
    "pidfd_send_signal": 424, "pidfd_open": 434, "close_range": 436, "faccessat2": 439,
    "landlock_create_ruleset": 444, "landlock_restrict_self": 446,
}
TABLES = MappingProxyType({
    "x86_64": (AUDIT_X86_64, MappingProxyType(_X86_64)),
    "aarch64": (AUDIT_AARCH64, MappingProxyType(_AARCH64)),
})


def machine() -> str | None:
    """Return `x86_64` or `aarch64`, or None: seccomp and Landlock cannot be used then."""
    name = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return name if name in TABLES else None
