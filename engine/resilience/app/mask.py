"""Masking: what the configuration says nobody may read in a decision record.

A masked label loses its value everywhere in the record, also where a template copied it into a
reason or a UDF returned it. The same record always masks to the same text, so that a dry run and a
live run still agree byte for byte. Secrets need no mask: no record ever holds one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from resilience.model import MASKED, MASKED_FIELDS, EngineConfig, Json

# Whatever stands below these is ours and not the user's data.
_OURS = frozenset({
    "id", "revision", "policy", "spec_hash", "instance", "truth", "from", "to", "clocks", "mode",
    "held_from", "knob", "action", "actions", "key", "impulse", "function", "outcome",
})
# Below these everything is the user's: a label may have the name of one of our fields.
_USERS = frozenset({"labels", "scope", "value", "args", "result", "inputs", "annotations"})


@dataclass(frozen=True, slots=True)
class Mask:
    """Which labels and which fields are masked."""

    labels: Collection[str] = ()
    fields: Collection[str] = ()

    @classmethod
    def configured(cls, config: EngineConfig) -> Mask:
        return cls(config.mask_labels, [f for f in config.mask_fields if f in MASKED_FIELDS])

    def __bool__(self) -> bool:
        return bool(self.labels or self.fields)

    def of(self, record: Json) -> Json:
        """Return `record` masked; the same object when nothing is configured."""
        if not self:
            return record
        values = sorted(set(self._values(record, ours=True)), key=len, reverse=True)
        body = {
            key: MASKED if key in self.fields and value is not None else value
            for key, value in record.items()
        }
        masked: Json = self._walk(body, values, ours=True)
        return {**masked, "reason": body["reason"]} if "reason" in body else masked

    def _values(self, body: Json, *, ours: bool) -> Iterator[str]:
        """Yield what the masked labels hold anywhere in the record."""
        if isinstance(body, Mapping):
            for key, value in body.items():
                if not ours and key in self.labels and isinstance(value, str) and value:
                    yield value
                else:
                    yield from self._values(value, ours=ours and key not in _USERS)
        elif isinstance(body, list | tuple):
            for item in body:
                yield from self._values(item, ours=ours)

    def _walk(self, body: Json, values: Collection[str], *, ours: bool) -> Json:
        if isinstance(body, Mapping):
            return {
                self._text(key, values, ours=ours) if "=" in key else key:
                self._field(key, value, values, ours=ours)
                for key, value in body.items()
            }
        if isinstance(body, list | tuple):
            return [self._walk(item, values, ours=ours) for item in body]
        return self._text(body, values, ours=ours) if isinstance(body, str) else body

    def _field(self, key: str, value: Json, values: Collection[str], *, ours: bool) -> Json:
        if ours and key in _OURS:
            return value
        if not ours and key in self.labels and isinstance(value, str):
            return MASKED
        return self._walk(value, values, ours=ours and key not in _USERS)

    def _text(self, text: str, values: Collection[str], *, ours: bool) -> str:
        """Mask the values in a text; in our own also those of a scope, as in `tenant=acme`."""
        for value in values:
            text = text.replace(value, MASKED)
        if not ours or not self.labels or "=" not in text:
            return text
        names = "|".join(map(re.escape, sorted(self.labels)))
        return re.sub(rf"\b({names})=[^\s,`;}}]+", rf"\1={MASKED}", text)
