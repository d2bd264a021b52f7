"""Reading the part of vLLM's arguments that we must know, and refusing what cannot work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from resilience.cores.process import local_url
from resilience.errors import UsageError

PORT_DEFAULT = 8000
_NO_TLS = "the engine speaks plain HTTP on this machine; end TLS in front of the server"
_ONE_MACHINE = "one engine drives one server on its own machine; start one of each on the others"
_ONE_GATE = "the gate counts in one process; start more servers, each with its own engine"
_OWN_WORKERS = "workers are processes of the server, so that their end and memory are seen"
_REFUSED = {
    "--config": "its options cannot be read here; write them after `--`",
    "--uds": "the engine reaches the server by port",
    "--ssl-keyfile": _NO_TLS,
    "--ssl-certfile": _NO_TLS,
    "--headless": "it starts no API server, so there is no gate",
    "--grpc": "its requests do not pass the gate",
    "--root-path": "the engine looks for `/resilience` at the root",
    "--enable-elastic-ep": "claims on engine processes that come and go are not kept",
    **dict.fromkeys((
        "--node-rank", "--data-parallel-rank", "--data-parallel-start-rank",
        "--data-parallel-size-local", "--data-parallel-address", "--data-parallel-rpc-port",
        "--data-parallel-hybrid-lb", "--data-parallel-external-lb",
        "--data-parallel-multi-port-external-lb",
    ), _ONE_MACHINE),
}
# option -> the values that work, and why others do not
_ALLOWED = {
    "--api-server-count": (("1",), _ONE_GATE),
    "--nnodes": (("1",), _ONE_MACHINE),
    "--data-parallel-backend": (("mp",), _OWN_WORKERS),
    "--distributed-executor-backend": (("mp", "uni"), _OWN_WORKERS),
}
_SHORT = {
    "-asc": "--api-server-count", "-n": "--nnodes", "-r": "--node-rank",
    "-dp": "--data-parallel-size", "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank", "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address", "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend", "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb", "-dpm": "--data-parallel-multi-port-external-lb",
}
_READ = frozenset({
    "--model", "--host", "--port", "--scheduler-cls", "--scheduling-policy",
    "--disable-access-log-for-endpoints", *_REFUSED, *_ALLOWED, *_SHORT.values(),
})
_ABBREVIATION_MIN = len("--x")


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
    _check_options(words)
    port = _port(_value(words, "--port"))
    return ServeArguments(model, tuple(words), _value(words, "--host") or "", port)


def _name(word: str) -> str:
    """Return the option of a word by its long name; vLLM takes `_` for `-`."""
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else _SHORT.get(name, name)


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


def _check_options(words: Sequence[str]) -> None:
    """Refuse before anything is loaded what could not work, however it is written."""
    for word in words:
        name = _name(word)
        if name in _REFUSED:
            raise UsageError(f"`{name}` does not work with this engine: {_REFUSED[name]}")
        whole = _abbreviated(name)
        if whole is not None:
            raise UsageError(f"`{name}` is an abbreviation; write `{whole}`")
    for option, (allowed, why) in _ALLOWED.items():
        value = _value(words, option)
        if value is not None and value not in allowed:
            raise UsageError(f"`{option} {value}` does not work with this engine: {why}")


def _abbreviated(name: str) -> str | None:
    """Return which option that must be read here a word abbreviates, as vLLM would take it."""
    if not name.startswith("--") or len(name) < _ABBREVIATION_MIN or name in _READ:
        return None
    return next((option for option in sorted(_READ) if option.startswith(name)), None)


def _check_model(model: str) -> None:
    """Refuse a path that is not there. A name such as `org/model` is left to vLLM."""
    path = Path(model).expanduser()
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", "params.json")):
            raise UsageError(f"model folder `{model}` holds no config.json; is it a model?")
        return
    if model.startswith(("/", "./", "../", "~")) and not path.exists():
        raise UsageError(f"model path `{model}` does not exist; give a folder or a model name")
