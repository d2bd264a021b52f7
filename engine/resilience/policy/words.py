"""How messages quote what a user wrote, and how they guess what was meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from resilience.samples import escaped, plain

SHOWN_MAX = 80

# Blanks that are none to YAML, and what nobody sees: a message that shows them is read twice.
_UNSEEN = re.compile("[\u00a0\u00ad\u1680\u180e\u2000-\u200a\u202f\u205f-\u2064\u3000]")


def quoted(value: object) -> str:
    """Return `value` between backticks: one line, shortened, nothing a terminal would obey."""
    text = value if isinstance(value, str) else str(value)
    if len(text) > SHOWN_MAX:
        text = text[: SHOWN_MAX - 1] + "…"
    return "`" + _UNSEEN.sub(lambda m: escaped(m.group()), plain(text)) + "`"


def has_odd_blank(text: str) -> bool:
    """Return whether a blank stands in `text` that YAML takes for a letter."""
    return any(c.isspace() and not c.isascii() for c in text)


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word that `word` was most likely meant to be."""
    if len(word) > SHOWN_MAX:
        return None
    options = list(known)
    folded = {option.lower().replace("-", "_"): option for option in options}
    same = folded.get(word.lower().replace("-", "_"))
    if same is not None:
        return same
    from difflib import get_close_matches

    close = get_close_matches(word, options, n=1, cutoff=cutoff)
    return close[0] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return a suggestion line, or None when nothing is near."""
    guess = nearest(word, known)
    return f"did you mean `{guess}`?" if guess else None


def moment(t_ms: int) -> str:
    """Return a time (epoch ms) as people read it: UTC, to the second."""
    return datetime.fromtimestamp(t_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def listed(words: Iterable[str]) -> str:
    """Return `a`, `b` and `c`."""
    items = [f"`{word}`" for word in words]
    if len(items) < 2:
        return "".join(items)
    return ", ".join(items[:-1]) + " and " + items[-1]


def counted(count: int, noun: str) -> str:
    """Return `1 policy`, `2 policies`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1] + 'ies' if noun.endswith('y') else noun + 's'}"
