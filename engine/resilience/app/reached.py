"""The server that an engine drives: one that it starts, or one that it takes over."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.addresses import server_address
from resilience.app.bus import Bus
from resilience.app.files import read_token
from resilience.app.prepare import Prepared, Report, Settings
from resilience.errors import CoreUnauthorizedError, CoreUnreachableError, UsageError
from resilience.model import Clock
from resilience.registry import catalogue, load

if TYPE_CHECKING:
    from resilience.cores.client import HttpCore
    from resilience.cores.process import ServerProcess

ATTACH_DEADLINE_MS = 5_000
READY_MS = 600_000
STARTED_MS = 60_000     # what a server that we saw get ready may need for its first answer
STOP_S = 30.0
ASK_AGAIN_S = 0.25


@dataclass
class Server:
    """The core that is driven. `process` None: somebody else started it."""

    url: str
    core: HttpCore
    process: ServerProcess | None = None
    token_file: Path | None = None

    @property
    def gone(self) -> bool:
        return self.process is not None and self.process.exit_code is not None


def reach(settings: Settings, ready: Prepared, stack: ExitStack, report: Report) -> Server:
    if settings.attach is not None:
        return _attach(settings, ready, stack)
    return _launch(settings, ready, stack, report)


def _launch(settings: Settings, ready: Prepared, stack: ExitStack, report: Report) -> Server:
    from resilience.cores.client import HttpCore

    config = ready.checked.bundle.config
    process = _starter(settings.core)(settings.server, config, ready.folder.path)
    stack.callback(_stop_server, process, settings.keep_server, report)
    report.say(
        f"starting {process.name} (pid {process.pid}) at {process.url}; its log is {process.log}"
    )
    process.wait_ready((settings.wait_ms or READY_MS) / 1000)
    core = HttpCore(process.url, process.token)
    stack.callback(core.close)
    return Server(process.url, core, process, process.token_file)


def _starter(kind: str) -> Callable[..., ServerProcess]:
    """Return what starts a server of a kind of core; raises UsageError for one that nobody can."""
    launchable = {k.name: k.launch for k in catalogue("cores").values() if k.launch}
    if kind not in launchable:
        known = ", ".join(f"`{name}`" for name in launchable)
        raise UsageError(f"`--core {kind}` cannot be started; there are {known}")
    start: Callable[..., ServerProcess] = load(f"{launchable[kind]}:start")
    return start


def _stop_server(process: ServerProcess, keep: bool, report: Report) -> None:
    if keep and process.exit_code is None:
        report.say(f"the server goes on at {process.url}; take it over with "
                   f"`resilience serve --attach {process.url} --token-file {process.token_file}`")
        return
    process.stop(STOP_S)


def _attach(settings: Settings, ready: Prepared, stack: ExitStack) -> Server:
    from resilience.cores.client import HttpCore

    url = server_address(str(settings.attach))
    token_file = settings.token_file or ready.folder.token
    core = HttpCore(url, read_token(token_file))
    stack.callback(core.close)
    return Server(url, core, None, token_file)


def connect(bus: Bus, server: Server, wait_ms: int | None, clock: Clock) -> None:
    """Attach the bus; a core that does not answer yet is asked again for `wait_ms`. None: not at
    all, or for a while if we started it; its engine process may be busy for a moment."""
    if wait_ms is None:
        wait_ms = 0 if server.process is None else STARTED_MS
    ends_ms = clock.monotonic_ms() + wait_ms
    while True:
        try:
            bus.attach(deadline_ms=ATTACH_DEADLINE_MS)
            return
        except CoreUnauthorizedError as error:
            hint = "name the right token with `--token-file`"
            raise CoreUnauthorizedError(f"{error}; {hint}") from None
        except CoreUnreachableError:
            if server.gone or clock.monotonic_ms() >= ends_ms:
                raise
            time.sleep(ASK_AGAIN_S)
