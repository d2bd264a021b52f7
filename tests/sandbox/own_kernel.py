# ruff: noqa: E501
"""Attacks on the kernel layer: system calls by number (x86-64), and what else a process tries.

The code runs as plain Python in the locked worker, behind `PRELUDE`.
"""

from __future__ import annotations

PRELUDE = """import ctypes, os, socket, signal, mmap, struct, time
L = ctypes.CDLL(None, use_errno=True)
L.syscall.restype = ctypes.c_long
def sc(n, *a):
    r = L.syscall(ctypes.c_long(n), *[ctypes.c_void_p(x) if isinstance(x, int) else x for x in a])
    if r < 0: raise OSError(ctypes.get_errno(), "no")
    return r
B = ctypes.create_string_buffer(4096)
P = ctypes.addressof(B)
W = ctx["resp_fd"]
E = ctx["engine_pid"]
"""
# name -> number and arguments. P is a page of memory, E the pid of the engine.
CALLS: dict[str, str] = {
    "openat2": "437, -100, b'/etc/passwd', P, 24",
    "io_uring_setup": "425, 8, P",
    "process_vm_readv": "310, E, P, 1, P, 1, 0",
    "process_vm_writev": "311, E, P, 1, P, 1, 0",
    "pidfd_open": "434, E, 0",
    "pidfd_getfd": "438, 5, 1, 0",
    "pidfd_send_signal": "424, 5, 9, 0, 0",
    "keyctl": "250, 0, -3, 1",
    "add_key": "248, b'user', b'x', P, 4, -3",
    "request_key": "249, b'user', b'x', 0, -3",
    "bpf": "321, 0, P, 48",
    "perf_event_open": "298, P, 0, -1, -1, 0",
    "userfaultfd": "323, 0",
    "clone3": "435, P, 88",
    "clone": "56, 17, 0, 0, 0, 0",
    "vfork": "58",
    "fork": "57",
    "execveat": "322, -100, b'/bin/true', 0, 0, 0",
    "execve": "59, b'/bin/true', 0, 0",
    "memfd_create": "319, b'x', 0",
    "memfd_secret": "447, 0",
    "mseal": "462, P & ~4095, 4096, 0",
    "landlock_create": "444, P, 8, 0",
    "landlock_restrict": "446, 3, 0",
    "seccomp": "317, 1, 0, P",
    "seccomp_notify": "317, 1, 8, P",
    "prctl_pdeathsig": "157, 1, 0, 0, 0, 0",
    "prctl_dumpable": "157, 4, 1, 0, 0, 0",
    "prctl_ptracer": "157, 0x59616d61, -1, 0, 0, 0",
    "prctl_setmm": "157, 35, 1, P, 0, 0",
    "prctl_keepcaps": "157, 8, 1, 0, 0, 0",
    "prctl_seccomp": "157, 22, 2, P, 0, 0",
    "prctl_name": "157, 15, P, 0, 0, 0",
    "arch_prctl": "158, 0x1002, P",
    "modify_ldt": "154, 0, P, 16",
    "ptrace_traceme": "101, 0, 0, 0, 0",
    "ptrace_seize": "101, 0x4206, E, 0, 0",
    "kcmp": "312, E, E, 0, 0, 0",
    "shmget": "29, 0, 4096, 0o1600",
    "shmat": "30, 0, 0, 0",
    "msgget": "68, 0, 0o1600",
    "semget": "64, 0, 1, 0o1600",
    "mq_open": "240, b'x', 0o102, 0o600, 0",
    "socket_unix": "41, 1, 1, 0",
    "socket_vsock": "41, 40, 1, 0",
    "socket_netlink": "41, 16, 3, 0",
    "socket_packet": "41, 17, 3, 0",
    "socket_alg": "41, 38, 5, 0",
    "socketpair": "53, 1, 1, 0, P",
    "connect": "42, 3, P, 16",
    "sendto": "44, 3, P, 1, 0, 0, 0",
    "sendmsg": "46, 3, P, 0",
    "recvmsg": "47, 4, P, 0",
    "recvfrom": "45, 4, P, 1, 0, 0, 0",
    "bind": "49, 3, P, 16",
    "timer_create": "222, 1, 0, P",
    "setitimer": "38, 0, P, 0",
    "alarm": "37, 1",
    "timerfd": "283, 1, 0",
    "eventfd": "290, 0, 0",
    "signalfd": "289, -1, P, 8, 0",
    "epoll": "291, 0",
    "inotify": "294, 0",
    "fanotify": "300, 0, 0",
    "sched_setaffinity": "203, 0, 8, P",
    "sched_setscheduler": "144, 0, 1, P",
    "sched_setattr": "314, 0, P, 0",
    "setpriority": "141, 0, 0, -20",
    "mlock": "149, P, 4096",
    "mlockall": "151, 3",
    "mlock2": "325, P, 4096, 1",
    "setrlimit": "160, 9, P",
    "prlimit": "302, 0, 9, P, 0",
    "prlimit_engine": "302, E, 9, P, 0",
    "kill_group": "62, 0, 9",
    "kill_all": "62, -1, 9",
    "kill_engine": "62, E, 9",
    "tkill": "200, E, 9",
    "tgkill": "234, E, E, 9",
    "rt_sigqueueinfo": "129, E, 9, P",
    "rt_tgsigqueueinfo": "297, E, E, 9, P",
    "dup": "32, 3",
    "dup2": "33, 3, 9",
    "dup3": "292, 3, 9, 0",
    "fcntl_dupfd": "72, 3, 0, 10",
    "pipe": "22, P",
    "pipe2": "293, P, 0",
    "splice": "275, 4, 0, 3, 0, 10, 0",
    "tee": "276, 4, 3, 10, 0",
    "vmsplice": "278, 3, P, 1, 0",
    "sendfile": "40, 3, 4, 0, 10",
    "copy_file_range": "326, 4, 0, 3, 0, 10, 0",
    "writev": "20, 3, P, 1",
    "pwrite64": "18, 3, P, 1, 0",
    "pwritev": "296, 3, P, 1, 0",
    "pwritev2": "328, 3, P, 1, 0, 0",
    "readv": "19, 4, P, 1",
    "pread64": "17, 4, P, 1, 0",
    "preadv2": "327, 4, P, 1, 0, 0",
    "write_fd0": "1, 0, b'x', 1",
    "write_fd1": "1, 1, b'x', 1",
    "write_fd2": "1, 2, b'x', 1",
    "write_fd5": "1, 5, b'x', 1",
    "write_fd_hi": "1, 0x100000003 - 0xffffffff + 6, b'x', 1",
    "read_fd0": "0, 0, P, 1",
    "read_fd3": "0, 3, P, 1",
    "open": "2, b'/proc/self/mem', 2",
    "creat": "85, b'/tmp/x', 0o600",
    "openat_mem": "257, -100, b'/proc/self/mem', 2",
    "openat_engine": "257, -100, b'/proc/%d/mem' % E, 2",
    "mkdir": "83, b'/tmp/xx', 0o700",
    "unlink": "87, b'/etc/passwd'",
    "rename": "82, b'/a', b'/b'",
    "symlink": "88, b'/a', b'/b'",
    "link": "86, b'/a', b'/b'",
    "mknod": "133, b'/x', 0o20666, 259",
    "chmod": "90, b'/tmp', 0o777",
    "chown": "92, b'/tmp', 0, 0",
    "truncate": "76, b'/etc/passwd', 0",
    "ftruncate": "77, 3, 0",
    "mount": "165, 0, b'/', 0, 0, 0",
    "umount": "166, b'/', 2",
    "pivot_root": "155, b'/', b'/'",
    "chroot": "161, b'/'",
    "chdir": "80, b'/'",
    "fchdir": "81, 3",
    "open_tree": "428, -100, b'/', 1",
    "fsopen": "430, b'tmpfs', 0",
    "mount_setattr": "442, -100, b'/', 0, P, 32",
    "name_to_handle": "303, -100, b'/', P, P, 0",
    "open_by_handle": "304, -100, P, 0",
    "setns": "308, 3, 0",
    "unshare": "272, 0x10000000",
    "setuid": "105, 0",
    "setresuid": "117, 0, 0, 0",
    "setgid": "106, 0",
    "setgroups": "116, 0, 0",
    "setfsuid": "122, 0",
    "capset": "126, P, P",
    "capget": "125, P, P",
    "sethostname": "170, b'x', 1",
    "uname": "63, P",
    "sysinfo": "99, P",
    "getrusage": "98, 0, P",
    "times": "100, P",
    "syslog": "103, 3, P, 10",
    "reboot": "169, 0, 0, 0, 0",
    "kexec": "246, 0, 0, 0, 0",
    "init_module": "175, P, 1, b''",
    "finit_module": "313, 3, b'', 0",
    "iopl": "172, 3",
    "ioperm": "173, 0, 1, 1",
    "swapon": "167, b'/x', 0",
    "quotactl": "179, 0, 0, 0, 0",
    "acct": "163, b'/x'",
    "settimeofday": "164, P, 0",
    "clock_settime": "227, 0, P",
    "adjtimex": "159, P",
    "personality": "135, 0x40000",
    "ioctl_tiocsti": "16, 0, 0x5412, b'x'",
    "ioctl_fionbio": "16, 3, 0x5421, P",
    "move_pages": "279, 0, 0, 0, 0, 0, 0",
    "mbind": "237, 0, 0, 0, 0, 0, 0",
    "process_madvise": "440, 3, P, 1, 4, 0",
    "process_mrelease": "448, 3, 0",
    "set_tid_address": "218, P",
    "set_robust_list": "273, P, 24",
    "get_robust_list": "274, E, P, P",
    "membarrier": "324, 0, 0",
    "cachestat": "451, 3, P, P, 0",
    "pkey_mprotect": "329, P & ~4095, 4096, 7, 0",
    "remap_file_pages": "216, P & ~4095, 4096, 0, 0, 0",
    "msync": "26, P & ~4095, 4096, 4",
    "mincore": "27, P & ~4095, 4096, P",
    "futex_wait_shared": "202, P, 0, 0, 0, 0, 0",
    "futex_requeue": "202, P, 3, 1, 1, P, 0",
    "futex_lock_pi": "202, P, 6, 0, 0, 0, 0",
    "futex_waitv": "449, P, 1, 0, 0, 0",
    "futex2_wait": "455, P, 0, 1, 2, 0, 0",
    "statmount": "457, P, P, 100, 0",
    "listmount": "458, P, P, 10, 0",
    "lsm_get": "459, 100, P, P, 0",
    "map_shadow": "453, 0, 4096, 1",
    "uretprobe": "335",
    "quotactl_fd": "443, 3, 0, 0, 0",
    "memory_policy": "238, 0, 0, 0",
    "ioprio": "251, 1, 0, 0",
    "lookup_dcookie": "212, 0, P, 10",
    "vhangup": "153",
    "setsid": "112",
    "setpgid": "109, 0, 0",
    "getsid": "124, E",
    "getpgid": "121, E",
    "sched_getaffinity": "204, E, 8, P",
    "getpriority": "140, 0, E",
    "getcpu": "309, P, P, 0",
    "pause": "34",
    "rt_sigsuspend": "130, P, 8",
    "rt_sigtimedwait": "128, P, P, P, 8",
    "wait4": "61, -1, P, 1, 0",
    "waitid": "247, 0, 0, P, 5, 0",
    "x32_getpid": "0x40000000 + 39",
    "nr_minus1": "-1",
    "nr_huge": "2**31 - 1",
}
# name -> (outcomes, lines)
CODE: dict[str, tuple[str, str]] = {
    "mmap_exec": ("SECCOMP_KILL", """
m = L.mmap; m.restype = ctypes.c_void_p
r = m(None, 4096, 5, 0x22, -1, 0)
return {'actions': [], 'pwned': r not in (None, 2**64-1)}"""),
    "mmap_shared_exec": ("SECCOMP_KILL", """
m = mmap.mmap(-1, 4096, prot=7)
return {'actions': [], 'pwned': 1}"""),
    "mprotect_exec": ("SECCOMP_KILL", """
m = mmap.mmap(-1, 4096)
a = ctypes.addressof(ctypes.c_char.from_buffer(m))
r = L.mprotect(ctypes.c_void_p(a), 4096, 5)
return {'actions': [], 'pwned': r} if r == 0 else {'actions': []}"""),
    "mprotect_growsdown": ("SECCOMP_KILL", """
r = L.mprotect(ctypes.c_void_p(P & ~4095), 4096, 0x01000000 | 7)
return {'actions': [], 'pwned': r} if r == 0 else {'actions': []}"""),
    "mmap_file_fd": ("ok", """
m = L.mmap; m.restype = ctypes.c_void_p
r = m(None, 4096, 1, 2, 0, 0)
return {'actions': [], 'pwned': r} if r not in (None, 2**64-1) else {'actions': []}"""),
    "segv": ("CRASH", """
ctypes.string_at(0)
return {'actions': [], 'pwned': 1}"""),
    "stack_overflow": ("TIMEOUT CRASH MEMORY RUNTIME_DENIED", """
def r(n):
    return r(n + 1)
import sys
sys.setrecursionlimit(10**9)
return {'actions': [], 'pwned': r(0)}"""),
    "abort": ("SECCOMP_KILL", """
os.abort()"""),
    "exit0": ("CRASH", """
os._exit(0)"""),
    "raise_sigkill_self": ("SECCOMP_KILL", """
os.kill(os.getpid(), 9)"""),
    "close_reply_hang": ("CRASH TIMEOUT", """
os.close(W)
while True: pass"""),
    "hang": ("TIMEOUT", """
while True: pass"""),
    "forged_ok_frame": ("BAD_RESULT", """
b = b'{"outcome":"ok","result":{"actions":[],"pwned":1},"detail":null,"log":""}'
os.write(W, struct.pack('>I', len(b)) + b)
return {'actions': []}"""),
    "double_frame": ("BAD_RESULT", """
b = b'{"outcome":"ok","result":{"actions":[]},"detail":null,"log":""}'
os.write(W, (struct.pack('>I', len(b)) + b) * 2)
os._exit(0)"""),
    "trailing_byte": ("BAD_RESULT", """
b = b'{"outcome":"ok","result":{"actions":[]},"detail":null,"log":""}'
os.write(W, struct.pack('>I', len(b)) + b + b'x')
os._exit(0)"""),
    "frame_dup_key": ("BAD_RESULT", """
b = b'{"outcome":"CRASH","outcome":"ok","result":{"actions":[]},"detail":null,"log":""}'
os.write(W, struct.pack('>I', len(b)) + b)
os._exit(0)"""),
    "frame_nan": ("BAD_RESULT", """
b = b'{"outcome":"ok","result":{"actions":[],"state":NaN},"detail":null,"log":""}'
os.write(W, struct.pack('>I', len(b)) + b)
os._exit(0)"""),
    "frame_1e999": ("BAD_RESULT", """
b = b'{"outcome":"ok","result":{"actions":[],"state":1e999},"detail":null,"log":""}'
os.write(W, struct.pack('>I', len(b)) + b)
os._exit(0)"""),
    "frame_bigint": ("BAD_RESULT", """
b = b'{"outcome":"ok","result":{"actions":[],"state":' + b'9'*4000 + b'},"detail":null,"log":""}'
os.write(W, struct.pack('>I', len(b)) + b)
os._exit(0)"""),
    "frame_hugeint": ("BAD_RESULT", """
b = b'{"outcome":"ok","result":{"actions":[],"state":' + b'9'*100000 + b'},"detail":null,"log":""}'
os.write(W, struct.pack('>I', len(b)) + b)
os._exit(0)"""),
    "frame_deep": ("BAD_RESULT", """
b = b'{"outcome":"ok","result":' + b'['*100000 + b']'*100000 + b',"detail":null,"log":""}'
os.write(W, struct.pack('>I', len(b)) + b)
os._exit(0)"""),
    "frame_utf16": ("BAD_RESULT", """
b = '{"outcome":"ok"}'.encode('utf-16')
os.write(W, struct.pack('>I', len(b)) + b)
os._exit(0)"""),
    "frame_bom": ("BAD_RESULT", """
b = b'\\xef\\xbb\\xbf{"outcome":"ok","result":{"actions":[]},"detail":null,"log":""}'
os.write(W, struct.pack('>I', len(b)) + b)
os._exit(0)"""),
    "frame_len_4g": ("OUTPUT_LIMIT", """
os.write(W, b'\\xff\\xff\\xff\\xff' + b'x' * 1000)
while True: pass"""),
    "frame_len_0": ("BAD_RESULT", """
os.write(W, b'\\0\\0\\0\\0')
os._exit(0)"""),
    "frame_outcome_quarantined": ("BAD_RESULT", """
b = b'{"outcome":"QUARANTINED","result":null,"detail":null,"log":""}'
os.write(W, struct.pack('>I', len(b)) + b)
os._exit(0)"""),
    "frame_outcome_list": ("BAD_RESULT", """
b = b'{"outcome":["ok"],"result":null,"detail":null,"log":""}'
os.write(W, struct.pack('>I', len(b)) + b)
os._exit(0)"""),
    "frame_log_flood": ("ok", """
b = b'{"outcome":"ok","result":{"actions":[]},"detail":null,"log":"' + b'x'*300000 + b'"}'
os.write(W, struct.pack('>I', len(b)) + b)
os._exit(0)"""),
    "flood": ("OUTPUT_LIMIT", """
while True: os.write(W, b'x' * 65536)"""),
    "drip": ("BAD_RESULT", """
while True:
    os.write(W, b'\\0')
    for i in range(10**6): pass"""),
    "escaped_surrogate": ("BAD_RESULT", """
b = b'{"outcome":"ok","result":{"actions":[],"note":"' + b'\\\\ud800' + b'"},"detail":null,"log":""}'
os.write(W, struct.pack('>I', len(b)) + b)
os._exit(0)"""),
    "detail_surrogate": ("RUNTIME_DENIED", """
b = b'{"outcome":"RUNTIME_DENIED","result":null,"detail":"' + b'\\\\ud800' + b'","log":"' + b'\\\\udfff' + b'"}'
os.write(W, struct.pack('>I', len(b)) + b)
os._exit(0)"""),
    "thread": ("SECCOMP_KILL", """
import _thread
x = []
_thread.start_new_thread(x.append, (1,))
for i in range(10**7): pass
return {'actions': [], 'pwned': 1} if x else {'actions': []}"""),
    "memory": ("MEMORY", """
x = []
while True: x.append(b'x' * 10**7)"""),
    "brk_memory": ("ok", """
L.sbrk.restype = ctypes.c_void_p
for i in range(1000):
    if L.sbrk(ctypes.c_long(1 << 20)) in (None, 2**64 - 1): return {'actions': []}
return {'actions': [], 'pwned': 1}"""),
    "env_leak": ("ok", """
e = dict(os.environ)
return {'actions': [], 'pwned': list(e)} if e else {'actions': []}"""),
    "heap_sources": ("ok", """
import gc
n = len([o for o in gc.get_objects() if isinstance(o, dict) and 'CANARY' in o])
return {'actions': [], 'pwned': n} if n else {'actions': []}"""),
    "sigaction": ("RUNTIME_DENIED", """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
return {'actions': [], 'pwned': 1}"""),
    "madvise_hwpoison": ("ok", """
r = L.madvise(ctypes.c_void_p(P & ~4095), 4096, 100)
return {'actions': [], 'pwned': r} if r == 0 else {'actions': []}"""),
    "madvise_mergeable": ("ok", """
r = L.madvise(ctypes.c_void_p(P & ~4095), 4096, 12)
return {'actions': [], 'pwned': r} if r == 0 else {'actions': []}"""),
    "mremap_grow": ("ok", """
L.mremap.restype = ctypes.c_void_p
m = mmap.mmap(-1, 4096)
a = ctypes.addressof(ctypes.c_char.from_buffer(m))
r = L.mremap(ctypes.c_void_p(a), 4096, 1 << 40, 1)
return {'actions': [], 'pwned': 1} if r not in (None, 2**64-1) else {'actions': []}"""),
}
