"""The kernel's confinement calls, through ctypes: no library but libc is needed.

Every function returns whether the layer is now engaged; none raises for a kernel that lacks it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct

from resilience.sandbox.limits import CPU_SECONDS_MAX, FILES_OPEN_MAX, MEMORY_BYTES_MAX
from resilience.sandbox.syscalls import TABLES, machine

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_GET_DUMPABLE = 1, 4, 3
PR_SET_SECCOMP, PR_CAPBSET_READ, PR_CAPBSET_DROP = 22, 23, 24
PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS = 38, 39
SECCOMP_MODE_FILTER = 2
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x08000000, 0x10000000, 0x20000000
CLONE_NEWNET = 0x40000000
MS_REC_PRIVATE = 0x4000 | (1 << 18)
MS_EMPTY_ROOT = 1 | 2 | 4 | 8  # read-only, nosuid, nodev, noexec
NOBODY = 65534

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, *arguments: int) -> int:
    """Return the result of prctl, -1 on failure."""
    padded = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    return int(_libc.prctl(option, *padded))


def no_new_privs() -> bool:
    """Forbid this process and its children to gain privileges."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    return prctl(PR_GET_NO_NEW_PRIVS) == 1


def not_dumpable() -> bool:
    """No core, and no look into this process by others of the same user."""
    return prctl(PR_SET_DUMPABLE, 0) == 0 and prctl(PR_GET_DUMPABLE) == 0


def die_with_parent(parent: int) -> bool:
    """Have the kernel kill this process when its parent ends; False if `parent` is gone."""
    return prctl(PR_SET_PDEATHSIG, signal.SIGKILL) == 0 and os.getppid() == parent


def seccomp(program: bytes) -> bool:
    """Install a BPF program for this process and its children, for good."""
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    buffer = ctypes.create_string_buffer(header, len(header))
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(buffer)) == 0


def resource_limits() -> bool:
    """Bound memory, CPU, files and processes of this process, hard."""
    wanted = {
        resource.RLIMIT_AS: MEMORY_BYTES_MAX, resource.RLIMIT_CPU: CPU_SECONDS_MAX,
        resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: FILES_OPEN_MAX,
        resource.RLIMIT_NPROC: 0, resource.RLIMIT_MEMLOCK: 0, resource.RLIMIT_MSGQUEUE: 0,
    }
    try:
        for limit, value in wanted.items():
            resource.setrlimit(limit, (value, value))
    except (OSError, ValueError):
        return False
    return all(resource.getrlimit(limit)[1] == value for limit, value in wanted.items())


def close_from(first: int) -> None:
    """Close every descriptor from `first` on, in one call where the kernel has it."""
    name = machine()
    if name and _syscall(TABLES[name][1]["close_range"], first, 0xFFFFFFFF, 0) == 0:
        return
    os.closerange(first, 4096)


# --- landlock ---

_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_CREATE_VERSION = 1


def landlock() -> bool:
    """Deny every file, TCP port, abstract Unix socket and outside signal that the ABI knows."""
    name = machine()
    if name is None:
        return False
    numbers = TABLES[name][1]
    abi = _syscall(numbers["landlock_create_ruleset"], 0, 0, _CREATE_VERSION)
    if abi < 1:
        return False
    files = (1 << _FS_BITS.get(min(abi, 5), 13)) - 1
    attributes = struct.pack("=QQQ", files, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    ruleset = _syscall(numbers["landlock_create_ruleset"], ctypes.addressof(buffer), size, 0)
    if ruleset < 0:
        return False
    engaged = _syscall(numbers["landlock_restrict_self"], ruleset, 0) == 0
    os.close(ruleset)
    return engaged


def _syscall(number: int, *arguments: int) -> int:
    return int(_libc.syscall(ctypes.c_long(number), *(ctypes.c_ulong(a) for a in arguments)))


# --- namespaces and user ---


def namespaces() -> bool:
    """Leave the machine's processes, network, mounts, IPC and names; the next fork is pid 1.

    As root directly, else through a user namespace with one user in it.
    """
    flags = (
        CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    )
    if os.geteuid() == 0 and _libc.unshare(flags) == 0:
        return True
    uid, gid = os.geteuid(), os.getegid()
    if _libc.unshare(flags | CLONE_NEWUSER) != 0:
        return False
    _map_user(uid, gid)
    return True


def _map_user(uid: int, gid: int) -> None:
    for path, line in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {uid} 1"),
                       ("gid_map", f"{NOBODY} {gid} 1")):
        try:
            with open(f"/proc/self/{path}", "w", encoding="ascii") as file:
                file.write(line)
        except OSError:  # without a map the process is nobody all the same
            continue


def empty_root() -> bool:
    """Stand in an empty read-only file system; needs the mount namespace."""
    if _libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC_PRIVATE), None) != 0:
        return False
    flags = ctypes.c_ulong(MS_EMPTY_ROOT)
    if _libc.mount(b"none", b"/tmp", b"tmpfs", flags, b"size=4k,nr_inodes=2") != 0:
        return False
    try:
        os.chroot("/tmp")
        os.chdir("/")
    except OSError:
        return False
    return True


def drop_user() -> bool:
    """Become nobody where the process may; True when it is no user of the machine's own."""
    try:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError:
        return False
    return os.getuid() == os.geteuid() == NOBODY


def drop_capabilities() -> bool:
    """Empty all capability sets but the bounding set, which `drop_bounding_set` empties."""
    name = machine()
    if name is None:
        return False
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0), 8)
    data = ctypes.create_string_buffer(bytes(24), 24)
    capset = TABLES[name][1]["capset"]
    return _syscall(capset, ctypes.addressof(header), ctypes.addressof(data)) == 0


def drop_bounding_set() -> bool:
    """Empty the capability bounding set; needs CAP_SETPCAP, so it comes before `drop_user`."""
    known = [c for c in range(64) if prctl(PR_CAPBSET_READ, c) >= 0]
    for capability in known:
        prctl(PR_CAPBSET_DROP, capability)
    return bool(known) and all(prctl(PR_CAPBSET_READ, c) == 0 for c in known)
