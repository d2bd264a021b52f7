"""The arguments of the PyTorch core's server; those that vLLM has too carry vLLM's names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from resilience.cores.process import local_url
from resilience.errors import UsageError

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class ServeArguments:
    """What the server runs with. `kv_tokens` are the token slots of the KV pool; `queue_max` the
    requests that may wait for one of `max_num_seqs` seats; `threads` 0 leaves torch's default."""

    model: str
    names: tuple[str, ...]
    host: str
    port: int
    dtype: str
    max_num_seqs: int
    step_tokens: int
    max_model_len: int | None
    kv_tokens: int
    queue_max: int
    threads: int

    @property
    def url(self) -> str:
        """Return where this machine reaches the server."""
        return local_url(self.host, self.port)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `--core torch` takes {_known(self)}")


def parse_arguments(argv: Sequence[str]) -> ServeArguments:
    """Read MODEL ARGS…; raises UsageError with what the server takes."""
    found = _parser().parse_args(list(argv))
    model = Path(found.model).expanduser()
    if found.model.startswith(("/", "./", "../", "~")) and not (model / "config.json").is_file():
        raise UsageError(f"model folder `{found.model}` holds no config.json; is it a model?")
    if found.kv_tokens < (found.max_model_len or 1):
        raise UsageError(
            f"`--kv-tokens {found.kv_tokens}` holds no sequence of `--max-model-len "
            f"{found.max_model_len}`; give more tokens or a smaller length"
        )
    names = tuple(found.served_model_name or (found.model,))
    return ServeArguments(
        str(model) if model.is_dir() else found.model, names, found.host, found.port, found.dtype,
        found.max_num_seqs, found.max_num_batched_tokens, found.max_model_len, found.kv_tokens,
        found.queue_max, found.threads,
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="resilience serve --core torch", add_help=False, allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=_Whole(1, 65_535), default=8000)
    parser.add_argument("--dtype", choices=DTYPES, default="auto")
    parser.add_argument("--max-num-seqs", type=_Whole(1, 1_024), default=8)
    parser.add_argument("--max-num-batched-tokens", type=_Whole(16, 65_536), default=512)
    parser.add_argument("--max-model-len", type=_Whole(16, 1_000_000))
    parser.add_argument("--kv-tokens", type=_Whole(64, 100_000_000), default=16_384)
    parser.add_argument("--queue-max", type=_Whole(0, 100_000), default=256)
    parser.add_argument("--threads", type=_Whole(0, 1_024), default=0)
    return parser


class _Whole:
    """A whole number in a range, as argparse wants it."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def __call__(self, text: str) -> int:
        if text.isascii() and text.isdigit() and self._least <= int(text) <= self._most:
            return int(text)
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a whole number from {self._least} to {self._most}"
        )


def _known(parser: argparse.ArgumentParser) -> str:
    options = [a.option_strings[0] for a in parser._actions if a.option_strings]
    return "MODEL and " + ", ".join(f"`{o}`" for o in options)
