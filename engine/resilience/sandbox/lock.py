"""The order in which a process locks itself, and which layers that engaged."""

from __future__ import annotations

import os
from collections.abc import Callable, Container

from resilience.sandbox import bpf, kernel
from resilience.sandbox.syscalls import machine


class Lock:
    """Collects which layers are engaged. `skip` names layers to leave out, for tests."""

    def __init__(self, skip: Container[str] = ()) -> None:
        self.engaged: dict[str, bool] = {}
        self._skip = skip

    def _try(self, layer: str, engage: Callable[[], bool]) -> bool:
        done = layer not in self._skip and engage()
        self.engaged[layer] = done
        return done

    def leave_machine(self) -> bool:
        """First step, before the fork that becomes pid 1: True if that fork is needed."""
        return self._try("namespaces", kernel.namespaces)

    def zygote(self) -> None:
        """Lock the zygote: all that its children inherit. Files are out of reach afterwards."""
        self._try("empty_root", lambda: self.engaged["namespaces"] and kernel.empty_root())
        self._try("bounding_set", kernel.drop_bounding_set)
        self._try("uid", kernel.drop_user)
        kernel.drop_capabilities()
        self._try("no_new_privs", kernel.no_new_privs)
        self._try("non_dumpable", kernel.not_dumpable)
        self._try("landlock", kernel.landlock)
        name = machine()
        if name and "seccomp" not in self._skip:
            kernel.seccomp(bpf.assemble(name, bpf.ZYGOTE, bpf.EPERM))

    def worker(self, parent: int) -> None:
        """Lock a child of the zygote for good: what is left is computing, one read, one write."""
        if not kernel.die_with_parent(parent):
            os._exit(1)
        if self.engaged.get("non_dumpable"):
            kernel.not_dumpable()  # a fork of a process with another user may reset it
        self._try("rlimits", kernel.resource_limits)
        name = machine()
        self._try("seccomp", lambda: name is not None and kernel.seccomp(WORKER_FILTERS[name]))


WORKER_FILTERS = {
    name: bpf.assemble(name, bpf.WORKER, bpf.KILL) for name in ("x86_64", "aarch64")
}
