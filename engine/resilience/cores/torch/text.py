"""Tokens to text, piece by piece, with stop words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

UNFINISHED = "\ufffd"


class Detokenizer:
    """Turns a growing list of tokens into a growing text.

    A character may be spread over tokens, so the newest are decoded together with a few before
    them, and what may still change is held back. So is what may be the start of a stop word.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._held = max((len(stop) for stop in stops), default=1) - 1
        self._from = self._seen = 0
        self._sent = 0
        self.text = ""
        self.stopped = False

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """Take in all tokens so far and return the text that is new; `last` holds nothing back."""
        if not self.stopped:
            self.text += self._new_text(tokens, last)
            self._cut()
        end = len(self.text) if last or self.stopped else max(
            self._sent, len(self.text) - self._held
        )
        piece, self._sent = self.text[self._sent:end], end
        return piece

    def _new_text(self, tokens: Sequence[int], last: bool) -> str:
        before = self._decode(tokens[self._from:self._seen])
        both = self._decode(tokens[self._from:])
        if both.endswith(UNFINISHED) and not last:
            return ""
        self._from, self._seen = self._seen, len(tokens)
        return both[len(before):]

    def _decode(self, tokens: Sequence[int]) -> str:
        if not tokens:
            return ""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _cut(self) -> None:
        ends = [at for at in (self.text.find(s, self._sent) for s in self._stops) if at >= 0]
        if ends:
            self.text, self.stopped = self.text[:min(ends)], True
