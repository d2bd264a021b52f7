"""No spelling of a JSON object gets a client's own word past the gate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from resilience.gate.body import OWN_WORDS, may_claim, parsed, strip

NAMES = (*OWN_WORDS, "vllm_xargs", "extra_args", "prompt", "x", "\ud83d\ude00", "\ud800", "")
SPACES = st.sampled_from(["", " ", "\n", "\t\r "])
SCALARS = st.sampled_from([
    "1", "-0.5e3", "1e999", "NaN", "-Infinity", "true", "null", '"tier"', '"\\"priority\\": 1"',
    '"\\ud800"', '"\\\\"', '"\u20ac"', "123456789012345678901234567890", "01", "", "'x'",
])


@st.composite
def spellings(draw: st.DrawFn, name: str) -> str:
    """Return a JSON string that means `name`, with some of its characters escaped."""
    escaped = draw(st.sets(st.integers(0, max(0, len(name) - 1))))
    spelt = "".join(
        f"\\u{ord(c):04X}" if i in escaped or 0xD800 <= ord(c) <= 0xDFFF else c
        for i, c in enumerate(name))
    return f'"{spelt}"'


@st.composite
def objects(draw: st.DrawFn, depth: int = 2) -> str:
    """Return the text of an object, now and then one that is none."""
    space = draw(SPACES)
    pairs: list[str] = []
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=4)):
        nested = depth > 0 and draw(st.booleans())
        value = draw(objects(depth - 1)) if nested else draw(SCALARS)
        pairs.append(f"{draw(spellings(name))}{space}:{space}{value}{space}")
    return "{" + space + ",".join(pairs) + "}" + space


@given(objects(), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32-be"]))
def test_what_a_body_says_of_itself_is_always_noticed(text: str, code: str) -> None:
    body = text.encode(code, "surrogatepass")
    fields = parsed(body)
    if isinstance(fields, dict) and strip(fields):
        assert may_claim(body)
