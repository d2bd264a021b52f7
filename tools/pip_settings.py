"""Read how pip is configured here, and say the same to uv, which reads none of it by itself.

Companies point pip at their own index, certificates or a folder of wheels; whoever made that work
for pip should not have to say it twice. Standard library only: this runs before anything is
installed.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_LATER_WINS = ("global", "install", ":env:")


@dataclass(frozen=True, slots=True)
class PipSettings:
    """What pip's files and PIP_* variables say, names as in `pip config list`."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    no_index: bool = False
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    def uv_arguments(self) -> list[str]:
        """Return the options of `uv pip install` that mean the same."""
        arguments = ["--no-index"] if self.no_index else []
        if self.index_url and "UV_DEFAULT_INDEX" not in os.environ:
            arguments += ["--default-index", self.index_url]
        for option, values in (
            ("--index", self.extra_index_urls),
            ("--find-links", self.find_links),
            ("--constraint", self.constraints),
            ("--allow-insecure-host", self.trusted_hosts),
        ):
            arguments += [word for value in values for word in (option, value)]
        if self.extra_index_urls:
            # pip takes the best version of all its indexes; uv by default stops at the first.
            arguments += ["--index-strategy", "unsafe-best-match"]
        return arguments

    def sources(self) -> str:
        """Return the places wheels may come from, for an error message."""
        places = [*self.find_links, *self.extra_index_urls]
        if not self.no_index:
            places.append(self.index_url or "PyPI")
        return ", ".join(map(_shown, places))


def _shown(place: str) -> str:
    """Return a place without the credentials that its address may hold: logs are read by many."""
    scheme, found, rest = place.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}" if found else place


def read_settings(python: Path) -> PipSettings:
    """Ask `python`'s pip for its settings; a pip without `config` counts as not configured."""
    command = [str(python), "-m", "pip", "config", "list"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return parse_settings(answer.stdout)


def parse_settings(listing: str) -> PipSettings:
    """Turn the lines of `pip config list` into settings; unknown lines are left alone."""
    values = _effective(listing)
    return PipSettings(
        index_url=values.get("index-url"),
        extra_index_urls=_words(values, "extra-index-url"),
        find_links=_words(values, "find-links"),
        constraints=tuple(p for p in _words(values, "constraint") if Path(p).is_file()),
        trusted_hosts=_words(values, "trusted-host"),
        no_index=values.get("no-index", "").lower() in ("1", "true", "yes", "on"),
        variables=_variables(values),
    )


def _effective(listing: str) -> dict[str, str]:
    """Return option -> value, where `[install]` beats `[global]` and PIP_* beats both."""
    found: dict[str, dict[str, str]] = {section: {} for section in _LATER_WINS}
    for line in listing.splitlines():
        name, separator, value = line.partition("=")
        section, dot, option = name.partition(".")
        if separator and dot and section in found:
            found[section][option] = str(ast.literal_eval(value))
    return {k: v for section in _LATER_WINS for k, v in found[section].items()}


def _words(values: Mapping[str, str], option: str) -> tuple[str, ...]:
    return tuple(values.get(option, "").split())


def _variables(values: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that uv reads for what has no option; never overrides the user's."""
    wanted = {
        "SSL_CERT_FILE": values.get("cert"),
        "ALL_PROXY": values.get("proxy"),
        "UV_HTTP_TIMEOUT": values.get("timeout", values.get("default-timeout")),
    }
    return {k: v for k, v in wanted.items() if v and k not in os.environ}
