"""Which kernel layers hold the UDFs, for `doctor`, the metric, and the refusal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from resilience.errors import SandboxError
from resilience.model import EngineConfig
from resilience.sandbox.process import Zygote

_MEANING = {
    "seccomp": "an allowlist of system calls; any other kills the worker",
    "no_new_privs": "no program or file can give the worker more rights",
    "rlimits": "memory, CPU, files and processes are bounded",
    "landlock": "no file, TCP port or outside signal",
    "namespaces": "no network, no other processes, own mounts and IPC",
    "empty_root": "an empty read-only file system",
    "uid": "a user that owns nothing",
    "bounding_set": "no capability can come back",
    "non_dumpable": "no core, no look from outside",
}


@dataclass(frozen=True, slots=True)
class Layer:
    """One kernel layer. `required`: UDFs are refused without it (unless `sandbox.allow_weak`)."""

    name: str
    engaged: bool
    required: bool
    meaning: str


def layers_of(engaged: Mapping[str, bool], config: EngineConfig) -> tuple[Layer, ...]:
    """Return every layer with what a zygote reported."""
    required = frozenset(config.sandbox_require)
    return tuple(
        Layer(name, engaged.get(name, False), name in required, meaning)
        for name, meaning in _MEANING.items()
    )


def probe(config: EngineConfig | None = None) -> tuple[Layer, ...]:
    """Start a sandbox process, have it prove its layers, and stop it.

    No layer is engaged where it cannot start at all, for example outside Linux.
    """
    try:
        zygote = Zygote({})
    except SandboxError:
        return layers_of({}, config or EngineConfig())
    engaged = dict(zygote.layers)
    zygote.close()
    return layers_of(engaged, config or EngineConfig())


def warnings(layers: tuple[Layer, ...]) -> list[str]:
    """Return one line for each layer that is missing."""
    return [
        f"the sandbox layer `{layer.name}` is missing: {layer.meaning}"
        + (" (required)" if layer.required else "")
        for layer in layers if not layer.engaged
    ]


def refusal(engaged: Mapping[str, bool], config: EngineConfig) -> str | None:
    """Return why UDFs may not run here, None if they may."""
    missing = [name for name in config.sandbox_require if not engaged.get(name, False)]
    if not missing or config.sandbox_allow_weak:
        return None
    names = ", ".join(f"`{name}`" for name in missing)
    return f"the sandbox lacks {names}; set `sandbox.allow_weak: true` to run UDFs all the same"
