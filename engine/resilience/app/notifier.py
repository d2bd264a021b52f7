"""Notifications: from live `notify.*` claims to receivers, never on the tick's path.

A tick only hands over which claims live; each receiver has a thread of its own, a bounded queue
and bounded tries, so that a receiver that hangs delays neither the ticks nor another receiver.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from resilience.app.mask import Mask
from resilience.app.outbox import Alert, Outbox
from resilience.app.senders import HttpSender, LogSender, Sender, SendError
from resilience.app.state_rows import readable
from resilience.errors import JournalError
from resilience.knobs import NOTIFY_PREFIX
from resilience.model import (
    LOG_RECEIVER,
    Bundle,
    Claim,
    Clock,
    EngineConfig,
    Files,
    Journal,
    JournalEntry,
    Json,
    Policy,
    Receiver,
    canonical_json,
    labels_of,
)
from resilience.policy.state import EngineState, Instance
from resilience.policy.template import render

FLUSH_S = 3.0
IDLE_S = 0.5
LOG = Receiver(LOG_RECEIVER, "log")
KIND = "notice"


def alerts_of(
    claims: Iterable[Claim], bundle: Bundle, state: EngineState, receivers: Mapping[str, Receiver]
) -> dict[str, list[Alert]]:
    """Return receiver -> alerts of the `notify.*` claims among `claims`; a receiver that is no
    longer defined gets none."""
    found: dict[str, list[Alert]] = {name: [] for name in receivers}
    policies: dict[str, Policy] | None = None
    for claim in claims:
        name = claim.knob.removeprefix(NOTIFY_PREFIX)
        if not claim.knob.startswith(NOTIFY_PREFIX) or name not in receivers:
            continue
        policies = policies or {p.name: p for p in bundle.policies}
        policy = policies.get(claim.policy)
        instance = state.of(claim.policy).get(claim.instance)
        if policy is not None and instance is not None:
            found[name].append(_alert(claim, policy, instance, receivers[name]))
    return found


def _alert(claim: Claim, policy: Policy, instance: Instance, receiver: Receiver) -> Alert:
    labels = {
        **dict(receiver.labels), **dict(policy.labels), **dict(instance.labels),
        "alertname": policy.name, "severity": str(claim.value["severity"]),
    }
    notes = {
        name: render(text, instance.labels, instance.fired_value)
        for name, text in policy.annotations
    }
    return Alert(
        f"{receiver.name}/{claim.policy}/{claim.instance}/{claim.action}", labels_of(labels),
        labels_of({**notes, "summary": claim.reason}),
        instance.firing_since_ms or instance.since_ms, claim.ttl_ms, claim.keep,
    )


@dataclass
class Tally:
    """What became of the alerts of one receiver since the start."""

    sent: int = 0
    retried: int = 0
    failed: int = 0


class _Channel:
    """One receiver: its outbox, its sender, its thread. `lock` guards the outbox."""

    def __init__(self, receiver: Receiver, sender: Sender, told: Iterable[Alert]) -> None:
        self.receiver, self.sender = receiver, sender
        self.outbox = Outbox(
            told, repeats=receiver.type == "alertmanager", resolves=receiver.send_resolved,
            jitter=random.random,
        )
        self.tally = Tally()
        self.ready = threading.Condition()
        self.ended = False
        self.thread: threading.Thread | None = None


class Notifier:
    """All receivers of one engine; `say` tells people once when a receiver fails or is back."""

    def __init__(
        self, config: EngineConfig, journal: Journal, clock: Clock, files: Files,
        say: Callable[[str], None], *,
        sender: Callable[[Receiver], Sender] | None = None, threads: bool = True,
    ) -> None:
        """`threads` False: nothing is sent but by `work`, for tests and simulations."""
        self._journal, self._clock, self._files, self._say = journal, clock, files, say
        self._make = sender or self._sender
        self._threads = threads
        self._channels: dict[str, _Channel] = {}
        with readable(KIND):
            self._told = {
                key: Alert.from_json(body) for key, body in journal.load(KIND).items()
            }
        self._lock = threading.Lock()
        self.configure(config)

    def _sender(self, receiver: Receiver) -> Sender:
        return LogSender(self._say) if receiver.type == "log" else HttpSender(receiver)

    def configure(self, config: EngineConfig) -> None:
        """Take other receivers; those that stay as they are keep their queue."""
        wanted = {r.name: r for r in (LOG, *config.receivers)}
        self._mask = Mask.configured(config)
        with self._lock:
            for name, channel in list(self._channels.items()):
                if wanted.get(name) != channel.receiver:
                    self._told.update(channel.outbox.told)
                    self._end(self._channels.pop(name), 0)
            self._forget([k for k in self._told if k.partition("/")[0] not in wanted])
            for name, receiver in wanted.items():
                if name not in self._channels:
                    keys = [k for k in self._told if k.partition("/")[0] == name]
                    told = [self._told.pop(k) for k in keys]
                    self._channels[name] = _Channel(receiver, self._make(receiver), told)

    def _forget(self, keys: Sequence[str]) -> None:
        """Drop what receivers were told that are no longer there."""
        for key in keys:
            del self._told[key]
        with suppress(JournalError):
            if keys:
                self._journal.append([JournalEntry(KIND, key, None) for key in keys])

    def update(self, claims: Sequence[Claim], bundle: Bundle, state: EngineState) -> None:
        """Take the live claims after a tick; quick, and never waits for a receiver's answer."""
        with self._lock:
            channels = dict(self._channels)
        receivers = {name: c.receiver for name, c in channels.items()}
        now_ms = self._clock.now_ms()
        for name, alerts in alerts_of(claims, bundle, state, receivers).items():
            channel = channels[name]
            with channel.ready:
                channel.outbox.want(alerts, now_ms)
                if len(channel.outbox):
                    self._start(channel)
                    channel.ready.notify()

    def _start(self, channel: _Channel) -> None:
        if self._threads and channel.thread is None and not channel.ended:
            channel.thread = threading.Thread(
                target=self._run, args=(channel,), name=f"notify-{channel.receiver.name}",
                daemon=True,
            )
            channel.thread.start()

    def _run(self, channel: _Channel) -> None:
        """Send until the channel is ended and nothing can be told now; then let go of the sender,
        which may be long after `_end` has stopped to wait."""
        while True:
            with channel.ready:
                batch = channel.outbox.batch(self._clock.now_ms())
                if channel.ended and not batch:
                    break
                if not batch:
                    channel.ready.wait(IDLE_S)
            self._work(channel)
        channel.sender.close()

    def work(self) -> None:
        """Make one try for every receiver that has something to be told."""
        for channel in list(self._channels.values()):
            self._work(channel)

    def _work(self, channel: _Channel) -> None:
        now_ms = self._clock.now_ms()
        with channel.ready:
            batch = channel.outbox.batch(now_ms)
        if not batch:
            return
        error: SendError | None = None
        try:
            channel.sender.send(batch, now_ms)
        except SendError as failed:
            error = failed
        except Exception as surprise:  # a thread that dies would be silent for ever
            error = SendError(f"internal: {type(surprise).__name__}", final=True)
        self._settle(channel, batch, error)

    def _settle(
        self, channel: _Channel, batch: Sequence[Alert], error: SendError | None
    ) -> None:
        now_ms = self._clock.now_ms()
        with channel.ready:
            before = channel.outbox.error
            if error is None:
                channel.outbox.done(batch, now_ms)
                channel.tally.sent += len(batch)
            else:
                given_up = channel.outbox.failed(batch, str(error), now_ms, final=error.final)
                channel.tally.failed += given_up
                channel.tally.retried += given_up == 0
        self._say_change(channel.receiver, before, error)
        self._remember(batch, error)
        self._write(channel.receiver, batch, error, now_ms)

    def _say_change(
        self, receiver: Receiver, before: str | None, error: SendError | None
    ) -> None:
        if error is not None and str(error) != before:
            self._say(f"receiver `{receiver.name}`: {error}")
        elif error is None and before is not None:
            self._say(f"receiver `{receiver.name}` takes notifications again")

    def _remember(self, batch: Sequence[Alert], error: SendError | None) -> None:
        """Journal what was told; a full disk may mean that it is told once more after a restart."""
        if error is not None and not error.final:
            return
        rows = [
            JournalEntry(KIND, a.key, a.to_json() if a.ends_ms is None else None)
            for a in batch if error is None or a.ends_ms is not None
        ]
        if rows:
            with suppress(JournalError):  # the engine says how its journal is
                self._journal.append(rows)

    def _write(
        self, receiver: Receiver, batch: Sequence[Alert], error: SendError | None, now_ms: int
    ) -> None:
        for alert in batch:
            labels = self._mask.of({"labels": dict(alert.labels)})["labels"]
            line = {
                "t_ms": now_ms, "receiver": receiver.name, "status": alert.status,
                "labels": labels, "error": str(error) if error else None,
            }
            self._files.append_line("notifications.jsonl", canonical_json(line))

    def view(self) -> list[Json]:
        """Return one object a receiver, for people and for the metrics."""
        return [
            {
                "receiver": name, "type": c.receiver.type, "queued": len(c.outbox),
                "firing": len(c.outbox.told), "sent": c.tally.sent, "retried": c.tally.retried,
                "failed": c.tally.failed, "error": c.outbox.error,
            }
            for name, c in sorted(self._channels.items())
        ]

    def close(self) -> None:
        """Tell what is queued if it goes quickly, and end; what is not told is told next time."""
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            self._end(channel, FLUSH_S / max(1, len(channels)))

    def _end(self, channel: _Channel, wait_s: float) -> None:
        with channel.ready:
            channel.ended = True
            channel.ready.notify()
        if channel.thread is not None:
            channel.thread.join(wait_s)
        else:
            channel.sender.close()
