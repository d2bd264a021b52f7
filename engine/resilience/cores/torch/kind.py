"""The PyTorch core as the registry sees it."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.cores.kind import CoreKind
from resilience.model import Core


@dataclass(frozen=True, slots=True)
class TorchParams:
    """Where the server answers, and the file that holds its token."""

    url: str = "http://127.0.0.1:8000"
    token_file: str = "core.token"


def connect(params: TorchParams) -> Core:
    """Read the token and return the client; raises UsageError when there is no token."""
    from resilience.cores.client import HttpCore, read_token

    return HttpCore(params.url, read_token(params.token_file))


TORCH = CoreKind(
    name="torch",
    doc="A server of this package over transformers' continuous batching, for machines without "
        "vLLM.",
    params=TorchParams,
    example="url: http://127.0.0.1:8000\ntoken_file: core.token\n",
    connect=connect,
    launch="resilience.cores.torch.launch",
)
