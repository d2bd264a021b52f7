"""A block in which a bit has flipped is refused, or the bit was none that is read."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.errors import RecordingError
from resilience.sources.importers import import_paths, save
from resilience.sources.tsdb import find_blocks, read_block

GOLDEN = next((Path(__file__).parents[2] / "golden" / "sources" / "blocks").iterdir())
FLIPS = 60


@pytest.fixture
def block(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "blocks" / GOLDEN.name))


def contents(block: Path) -> list[tuple[object, bytes, bytes]]:
    found = find_blocks(block)[0]
    return [
        (s.labels, s.times_ms.tobytes(), s.values.tobytes()) for s in read_block(found[0])[0]
    ]


def flipped(file: Path, at: int, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1 << bit
    file.write_bytes(data)


def places(size: int, seed: int) -> Iterator[tuple[int, int]]:
    rng = random.Random(seed)
    for at in sorted({0, size - 1, *(rng.randrange(size) for _ in range(FLIPS))}):
        yield at, rng.randrange(8)


@pytest.mark.parametrize("name", ["index", "chunks/000001", "tombstones"])
def test_no_flipped_bit_changes_what_is_read(block: Path, name: str) -> None:
    good, refused = contents(GOLDEN), 0
    file = block / name
    for at, bit in places(file.stat().st_size, 7):
        flipped(file, at, bit)
        try:
            assert contents(block) == good, (name, at, bit)
        except RecordingError as error:
            refused += 1
            assert name in str(error) and "\n" not in str(error)
        flipped(file, at, bit)
    assert refused > 5


@pytest.mark.parametrize(
    ("name", "at", "reason"),
    [
        ("index", -10, "wrong checksum of the table of contents at byte"),
        ("index", 14, "wrong checksum of the symbols at byte 9"),
        ("chunks/000001", 40, "wrong checksum of a chunk at byte"),
        ("tombstones", -1, "wrong checksum of the deletions at byte 5"),
    ],
)
def test_the_error_names_file_and_place_and_nothing_is_written(
    block: Path, tmp_path: Path, name: str, at: int, reason: str
) -> None:
    flipped(block / name, at, 0)
    with pytest.raises(RecordingError, match=f"{name}` is damaged: {reason}"):
        save(tmp_path / "r.parquet", import_paths([block.parent]))
    assert not (tmp_path / "r.parquet").exists()
