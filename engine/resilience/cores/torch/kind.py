"""The PyTorch core as the registry sees it."""

from __future__ import annotations

from resilience.cores.kind import HTTP_EXAMPLE, CoreKind, HttpParams, connect

TORCH = CoreKind(
    name="torch",
    doc="A server of this package over transformers' continuous batching, for machines without "
        "vLLM.",
    params=HttpParams,
    example=HTTP_EXAMPLE,
    connect=connect,
    launch="resilience.cores.torch.launch",
)
