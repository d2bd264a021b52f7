"""The vLLM core as the registry sees it."""

from __future__ import annotations

from resilience.cores.kind import HTTP_EXAMPLE, CoreKind, HttpParams, connect

VLLM = CoreKind(
    name="vllm",
    doc="A vLLM server that runs the gate, the endpoint and the scheduler of this package.",
    params=HttpParams,
    example=HTTP_EXAMPLE,
    connect=connect,
    launch="resilience.cores.vllm.launch",
)
