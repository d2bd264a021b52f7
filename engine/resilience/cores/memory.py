"""The memory that is really free, and whether the KV pool fits into it.

On a CPU the pool is allocated at start but only touched as blocks are used, so a server can start
well and be ended by the kernel later. On a device the pool is the device's own and was claimed at
start; there is nothing to check here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
RESERVE_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Free:
    """What is available to this process in bytes, of what total, and the kernel's kills so far."""

    available: int
    total: int
    oom_kills: int = 0

    @property
    def spare(self) -> int:
        """Return what may be used without coming near the limit."""
        return max(0, self.available - int(self.total * RESERVE_SHARE))


def free_memory(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> Free | None:
    """Return the smaller of the machine's and the control group's memory; None if unreadable."""
    fields = _pairs(meminfo)
    total, available = fields.get("MemTotal:"), fields.get("MemAvailable:")
    if total is None or available is None:
        return None
    kills = _pairs(cgroup / "memory.events").get("oom_kill", 0)
    machine = Free(available * 1024, total * 1024, kills)
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or used is None or limit >= machine.total:
        return machine
    cache = _pairs(cgroup / "memory.stat").get("inactive_file", 0)
    inside = max(0, limit - used + cache)
    return Free(min(inside, machine.available), limit, kills)


def _pairs(path: Path) -> dict[str, int]:
    """Read `name number …` lines; what is not there is {}."""
    found: dict[str, int] = {}
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return found
    for line in lines:
        words = line.split()
        if len(words) >= 2 and words[1].isdigit():
            found[words[0]] = int(words[1])
    return found


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() else None


@dataclass(frozen=True, slots=True)
class Memory:
    """The KV pool in bytes. `block_bytes` 0: its size is not known or not this machine's."""

    blocks: int
    block_bytes: int
    sequence_blocks: int

    @classmethod
    def of(cls, scheduler: Any, blocks: int) -> Memory:
        """Look at a scheduler; whatever it does not tell is left out."""
        config = getattr(scheduler, "kv_cache_config", None)
        sizes = [getattr(t, "size", 0) for t in getattr(config, "kv_cache_tensors", ())]
        on_cpu = _device(scheduler) == "cpu"
        block_bytes = sum(sizes) // (blocks + 1) if on_cpu else 0
        return cls(blocks, block_bytes, _longest(scheduler, config))

    @property
    def longest_sequences(self) -> int:
        """Return how many sequences of the greatest length the pool holds at once."""
        return self.blocks // self.sequence_blocks if self.sequence_blocks else 0

    def look(self) -> Free | None:
        """Return what is free now; None where the pool is not this machine's memory."""
        return free_memory() if self.block_bytes else None

    def room(self, peak_blocks: int, free: Free | None = None) -> int | None:
        """Return how many blocks there is memory for; None where nobody can say."""
        free = free or self.look()
        if free is None or not self.block_bytes:
            return None
        return peak_blocks + free.spare // self.block_bytes

    def why_not(self, blocks: int, peak_blocks: int, free: Free | None = None) -> str | None:
        """Return why `blocks` usable blocks do not fit into what is free, or None.

        `peak_blocks` have been used before, so their memory is there already.
        """
        most = self.room(peak_blocks, free)
        if most is None or blocks <= most:
            return None
        return (
            f"knob `cache.kv_blocks` at `{blocks}` needs memory that is not free: "
            f"{most} blocks of {self.block_bytes} bytes fit"
        )

    def findings(self, peak_blocks: int, free: Free | None) -> list[str]:
        """Return in sentences what of the pool does not fit into what is free."""
        growth = max(0, self.blocks - peak_blocks) * self.block_bytes
        if free is None or growth <= free.spare:
            return []
        return [
            f"the KV pool may still grow by {growth} bytes and {free.spare} are free: start with "
            "a smaller pool, or cap `cache.kv_blocks`"
        ]


def _device(scheduler: Any) -> str:
    config = getattr(getattr(scheduler, "vllm_config", None), "device_config", None)
    return str(getattr(config, "device_type", ""))


def _longest(scheduler: Any, config: Any) -> int:
    length = getattr(scheduler, "max_model_len", 0)
    sizes = [
        getattr(getattr(group, "kv_cache_spec", None), "block_size", 0)
        for group in getattr(config, "kv_cache_groups", ())
    ]
    return sum(-(-length // size) for size in sizes if size)
