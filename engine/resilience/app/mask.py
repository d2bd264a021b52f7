"""Masking: what the configuration says nobody may read in a decision record.

A masked label loses its value everywhere in the record, also where a template copied it into a
reason or a UDF returned it. The same record always masks to the same text, so that a dry run and a
live run still agree byte for byte. Secrets need no mask: no record ever holds one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from resilience.model import MASKED_FIELDS, EngineConfig, Json

MASKED = "***"
# Whatever stands below these is ours and not the user's data.
_OURS = frozenset({
    "id", "revision", "policy", "spec_hash", "instance", "truth", "from", "to", "clocks", "mode",
    "held_from", "knob", "action", "actions", "key", "impulse", "function", "outcome",
})


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
        values = sorted(set(self._values(record)), key=len, reverse=True)
        body = {
            key: MASKED if key in self.fields and value is not None else value
            for key, value in record.items()
        }
        masked: Json = self._walk(body, values)
        return {**masked, "reason": body["reason"]} if "reason" in body else masked

    def _values(self, body: Json) -> Iterator[str]:
        """Yield what the masked labels hold anywhere in the record."""
        if isinstance(body, Mapping):
            for key, value in body.items():
                if key in self.labels and isinstance(value, str) and value:
                    yield value
                else:
                    yield from self._values(value)
        elif isinstance(body, list | tuple):
            for item in body:
                yield from self._values(item)

    def _walk(self, body: Json, values: Collection[str]) -> Json:
        if isinstance(body, Mapping):
            return {
                key: MASKED if key in self.labels and isinstance(value, str)
                else value if key in _OURS else self._walk(value, values)
                for key, value in body.items()
            }
        if isinstance(body, list | tuple):
            return [self._walk(item, values) for item in body]
        if isinstance(body, str):
            for value in values:
                body = body.replace(value, MASKED)
        return body
