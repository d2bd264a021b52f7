"""A plain scalar means the same in YAML 1.1 and 1.2, or it is refused with what to write."""

from __future__ import annotations

import pytest

from resilience.policy.scalars import Refused, plain


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8), ("-3", -3), ("0", 0), ("0.5", 0.5), ("-1.25", -1.25), ("true", True),
        ("False", False), ("null", None), ("~", None), ("", None), ("30s", "30s"),
        ("1h30m", "1h30m"), ("-30s", "-30s"), ("60%", "60%"), ("v1.2.3", "v1.2.3"),
        ("127.0.0.1", "127.0.0.1"), ("2-of-3", "2-of-3"), ("y", "y"), ("n", "n"),
        ("1.5e+3", 1500.0), ("up == 0", "up == 0"), ("one", "one"), ("9007199254740992", 2**53),
    ],
)
def test_accepted(text: str, value: object) -> None:
    found = plain(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "code", "hint"),
    [
        ("yes", "yaml-ambiguous", '`"yes"`'), ("No", "yaml-ambiguous", '`"No"`'),
        ("on", "yaml-ambiguous", "true"), ("OFF", "yaml-ambiguous", "false"),
        ("010", "yaml-ambiguous", "`8`"), ("0o17", "yaml-ambiguous", "`15`"),
        ("0x10", "yaml-ambiguous", "`16`"), ("0b101", "yaml-ambiguous", "`5`"),
        ("089", "yaml-ambiguous", "`89`"), ("1_000", "yaml-ambiguous", "`1000`"),
        ("1:30", "yaml-ambiguous", "`1m30s`"), ("12:30:45", "yaml-ambiguous", "`12h30m45s`"),
        ("1e3", "yaml-ambiguous", "`1000`"), ("1.5e3", "yaml-ambiguous", "`1500`"),
        ("2026-01-31", "yaml-ambiguous", "quote"),
        ("2026-01-31T10:00:00Z", "yaml-ambiguous", "quote"), ("=", "yaml-ambiguous", "quote"),
        (".nan", "number-not-finite", "finite"), ("-.inf", "number-not-finite", "finite"),
        ("9007199254740993", "number-too-large", "smaller"), ("1" * 5000, "number-too-large", ""),
        ("1e999", "yaml-ambiguous", ""), ("0x" + "f" * 5000, "yaml-ambiguous", ""),
        ("1" * 400 + ".5", "number-too-large", ""), ("9:" * 60 + "9", "yaml-ambiguous", "quote"),
    ],
)
def test_refused(text: str, code: str, hint: str) -> None:
    found = plain(text)
    assert isinstance(found, Refused)
    assert found.code == code
    assert hint in found.suggestion
    assert len(found.message) < 200
