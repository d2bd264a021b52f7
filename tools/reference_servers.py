"""Unpack Prometheus, promtool, Alertmanager and VictoriaMetrics for tests, without installing them.

`python -m tools.reference_servers [DIR]` takes current packages from the Debian mirror that this
machine's apt uses, by apt's own client with lists and cache of its own, into DIR (default
`.cache/reference-servers`) and prints where the programs lie. On a machine without apt, dpkg or a
mirror it says why and exits with 1: the tests that want a real server then skip.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = ROOT / ".cache" / "reference-servers"
PROGRAMS = ("prometheus", "promtool", "prometheus-alertmanager", "victoria-metrics")
PACKAGES = ("prometheus", "prometheus-alertmanager", "victoria-metrics")
VARIABLE = "RESILIENCE_REFERENCE_SERVERS"
SUITE = "sid"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SOURCES = Path("/etc/apt")
MIRROR = re.compile(r"https?://[^\s\]]+/debian/?(?=\s|$)")
TIMEOUT_S = 300
# Debian's Alertmanager reads its templates from a fixed place. They are laid there for it alone, in
# a mount namespace of its own, so that nothing is installed.
TEMPLATES = Path("usr/share/prometheus/alertmanager")
ALERTMANAGER = """\
#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
exec unshare --map-root-user --mount sh -c '
here=$1; shift
mount -t tmpfs none /usr/share && mkdir -p /usr/share/prometheus &&
cp -r "$here/share/alertmanager" /usr/share/prometheus/ &&
exec "$here/share/prometheus-alertmanager" "$@"' sh "$here" "$@"
"""


class UnavailableError(Exception):
    """The servers cannot be had here; the message says why."""


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0]) if arguments else DEFAULT
    try:
        unpack(folder)
    except UnavailableError as why:
        print(f"reference servers: {why}; tests that need them are skipped", file=sys.stderr)
        return 1
    print(folder / "bin")
    return 0


def offer() -> None:
    """Tell the tests where the servers are, unless the environment does or they cannot be had."""
    if VARIABLE in os.environ:
        return
    try:
        unpack(DEFAULT)
    except UnavailableError as why:
        print(f"reference servers: {why}; tests that need them are skipped", file=sys.stderr)
        return
    os.environ[VARIABLE] = str(DEFAULT)


def present(folder: Path) -> bool:
    """Return whether DIR holds every program already."""
    return all((folder / "bin" / name).is_file() for name in PROGRAMS)


def unpack(folder: Path) -> None:
    """Fill `folder/bin`; quick when it is filled. Raises UnavailableError."""
    if present(folder):
        return
    _need_tools()
    work = folder.resolve() / "apt"
    options = _apt_options(work, mirror())
    try:
        _run(["apt-get", *options, "-qq", "update"], work)
        _run(["apt-get", *options, "-qq", "download", *PACKAGES], work)
        _download_apart(options, work)
        for package in sorted(work.glob("*.deb")):
            _run(["dpkg", "-x", package.name, "root"], work)
        _keep(work / "root" / "usr" / "bin", folder / "bin")
        _wrap_alertmanager(work / "root" / TEMPLATES, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _need_tools() -> None:
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise UnavailableError(f"there is no {tool} on this machine")
    if not KEYRING.is_file():
        raise UnavailableError(f"there is no `{KEYRING}` to trust packages by")


def mirror() -> str:
    """Return the Debian mirror of this machine's apt sources; raises UnavailableError."""
    for text in _source_texts():
        for line in text.splitlines():
            found = MIRROR.search(line)
            if found and not line.lstrip().startswith("#") and "security" not in line:
                return found.group().rstrip("/")
    raise UnavailableError("apt knows no Debian mirror")


def _source_texts() -> Iterator[str]:
    files = [SOURCES / "sources.list", *sorted((SOURCES / "sources.list.d").glob("*"))]
    for file in files:
        if file.is_file():
            yield file.read_text(encoding="utf-8", errors="replace")


def _apt_options(work: Path, origin: str) -> list[str]:
    """Make lists, cache and state of our own, so that the system's stay untouched."""
    for part in ("lists/partial", "cache/archives/partial"):
        (work / part).mkdir(parents=True, exist_ok=True)
    (work / "status").touch()
    (work / "sources.list").write_text(f"deb [signed-by={KEYRING}] {origin} {SUITE} main\n")
    settings = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State": work,
        "Dir::State::status": work / "status",
        "Dir::State::lists": work / "lists",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "root",
    }
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def _download_apart(options: Sequence[str], work: Path) -> None:
    """Newer suites ship promtool in a package of its own; older ones beside the server."""
    try:
        _run(["apt-get", *options, "-qq", "download", "promtool"], work)
    except UnavailableError:
        return


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"`{command[0]}` failed: {error}") from error
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no reason given"]
        raise UnavailableError(f"`{command[0]}` failed: {words[-1]}")


def _keep(unpacked: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        if not (unpacked / name).is_file():
            raise UnavailableError(f"the packages hold no `{name}`")
        shutil.move(unpacked / name, target / name)


def _wrap_alertmanager(templates: Path, folder: Path) -> None:
    if not templates.is_dir():
        raise UnavailableError("the packages hold no templates of Alertmanager")
    share, program = folder / "share", folder / "bin" / "prometheus-alertmanager"
    shutil.rmtree(share, ignore_errors=True)
    shutil.copytree(templates, share / "alertmanager", ignore=shutil.ignore_patterns("ui"))
    shutil.move(program, share / program.name)
    program.write_text(ALERTMANAGER, encoding="utf-8")
    program.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
