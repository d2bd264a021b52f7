"""Reading the part of vLLM's arguments that we must know, and refusing what cannot work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from resilience.cores.process import local_url
from resilience.errors import UsageError

PORT_DEFAULT = 8000
_NO_TLS = "the engine speaks plain HTTP on this machine; end TLS in front of the server"
_REFUSED = {
    "--uds": "the engine reaches the server by port",
    "--ssl-keyfile": _NO_TLS,
    "--ssl-certfile": _NO_TLS,
    "--headless": "it starts no API server, so there is no gate",
    "--grpc": "its requests do not pass the gate",
    "--root-path": "the engine looks for `/resilience` at the root",
}


@dataclass(frozen=True, slots=True)
class ServeArguments:
    """vLLM's arguments: `rest` are all but the model, as they were given."""

    model: str
    rest: tuple[str, ...]
    bind_host: str
    port: int

    @property
    def url(self) -> str:
        """Return where this machine reaches the server."""
        return local_url(self.bind_host, self.port)

    def has(self, option: str) -> bool:
        return any(_name(word) == option for word in self.rest)


def parse_arguments(argv: Sequence[str]) -> ServeArguments:
    """Split MODEL ARGS…; raises UsageError when the model is missing or an option cannot work."""
    words = list(argv[1:] if argv[:1] == ["serve"] else argv)
    model = words.pop(0) if words and not words[0].startswith("-") else None
    named = _take(words, "--model")
    model = named or model
    if model is None:
        raise UsageError("no model given; write it after `--`, as in `-- /models/llama`")
    _check_model(model)
    for option, why in _REFUSED.items():
        if any(_name(word) == option for word in words):
            raise UsageError(f"`{option}` does not work with this engine: {why}")
    _check_single_server(words)
    port = _port(_value(words, "--port"))
    return ServeArguments(model, tuple(words), _value(words, "--host") or "", port)


def _name(word: str) -> str:
    """Return the option of a word; vLLM takes `_` for `-`."""
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def _value(words: Sequence[str], option: str) -> str | None:
    """Return the last value of an option, as argparse would."""
    found: str | None = None
    for index, word in enumerate(words):
        if _name(word) != option:
            continue
        _, equals, value = word.partition("=")
        found = value if equals else (words[index + 1] if index + 1 < len(words) else "")
    return found


def _take(words: list[str], option: str) -> str | None:
    """Return the option's value and remove both from `words`."""
    value = _value(words, option)
    while any(_name(word) == option for word in words):
        index = next(i for i, word in enumerate(words) if _name(word) == option)
        del words[index:index + (1 if "=" in words[index] else 2)]
    return value


def _port(text: str | None) -> int:
    if text is None:
        return PORT_DEFAULT
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65_536:
        raise UsageError(f"`{text}` is not a port; give a number from 1 to 65535")
    return int(text)


def _check_single_server(words: Sequence[str]) -> None:
    for option in ("--api-server-count", "-asc"):
        count = _value(words, option)
        if count is not None and count != "1":
            raise UsageError(
                f"`{option} {count}` does not work with this engine: the gate counts in one "
                "process; start more servers, each with its own engine"
            )


def _check_model(model: str) -> None:
    """Refuse a path that is not there. A name such as `org/model` is left to vLLM."""
    path = Path(model).expanduser()
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", "params.json")):
            raise UsageError(f"model folder `{model}` holds no config.json; is it a model?")
        return
    if model.startswith(("/", "./", "../", "~")) and not path.exists():
        raise UsageError(f"model path `{model}` does not exist; give a folder or a model name")
