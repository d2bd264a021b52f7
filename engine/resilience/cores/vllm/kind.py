"""The vLLM core as the registry sees it."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.cores.kind import CoreKind
from resilience.model import Core


@dataclass(frozen=True, slots=True)
class VllmParams:
    """Where a server with our plug-ins answers, and the file that holds its token."""

    url: str = "http://127.0.0.1:8000"
    token_file: str = "core.token"


def connect(params: VllmParams) -> Core:
    """Read the token and return the client; raises UsageError when there is no token."""
    from resilience.cores.client import HttpCore, read_token

    return HttpCore(params.url, read_token(params.token_file))


VLLM = CoreKind(
    name="vllm",
    doc="A vLLM server that runs the gate, the endpoint and the scheduler of this package.",
    params=VllmParams,
    example="url: http://127.0.0.1:8000\ntoken_file: core.token\n",
    connect=connect,
    launch="resilience.cores.vllm.launch",
)
