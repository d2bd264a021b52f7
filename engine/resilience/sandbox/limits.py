"""Every limit of the sandbox in one place, and why it has its value."""

from __future__ import annotations

SOURCE_BYTES_MAX = 64 * 1024
SOURCE_FILES_MAX = 256
SOURCE_NODES_MAX = 20_000
SOURCE_DEPTH_MAX = 60  # far below every recursion limit of parser, visitor and compiler
LITERAL_BITS_MAX = 8_192

STEPS_MAX = 1_000_000  # counted, so that a run ends at the same place on every machine
RANGE_MAX = 10_000_000  # longer ranges are only good for spinning inside one C call
INT_BITS_MAX = 65_536
TEXT_CHARS_MAX = 4_000_000
ITEMS_MAX = 1_000_000
WALK_NODES_MAX = 100_000  # nodes seen when a value becomes text; shared parts count each time
FIELD_WIDTH_MAX = 1_000
DIGITS_MAX = 400  # `round(x, -n)` computes 10**n

LOG_BYTES_MAX = 16 * 1024
RESULT_BYTES_MAX = 256 * 1024
REPLY_BYTES_MAX = 384 * 1024  # result, log, detail and the frame around them
REQUEST_BYTES_MAX = 1024 * 1024
DETAIL_CHARS_MAX = 300
RESULT_DEPTH_MAX = 32
RESULT_VALUES_MAX = 20_000
SAFE_INTEGER = 2**53  # beyond it JSON readers disagree
ACTIONS_MAX = 32

MEMORY_BYTES_MAX = 256 * 1024 * 1024
TIMEOUT_MS_MAX = 30_000
CPU_SECONDS_MAX = TIMEOUT_MS_MAX // 1000 + 1  # behind the wall clock, should the engine be gone
FILES_OPEN_MAX = 16


def words(text: str) -> tuple[str, ...]:
    """Return the words of `text`: how the long lists of names are written here."""
    return tuple(text.split())
