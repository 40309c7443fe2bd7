"""Damage to data directories: it hits the kind of file that was asked for, and says so."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from e2e.chaos.files import (
    CHUNK_BYTES,
    REPLACEABLE,
    Part,
    back_in_time,
    chunks_now,
    files_of,
    flip,
    put_back,
    truncate,
)

NAMES = {
    Part.SEGMENT: "log/00000000000000000001.seg",
    Part.INDEX: "log/00000000000000000001.idx",
    Part.SNAPSHOT: "snapshots/00000000000000000001.snap",
    Part.WATERMARK: "log/watermark",
    Part.HARD_STATE: "hard_state",
    Part.IDENTITY: "identity.json",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a directory that has one file of each kind, with room behind what it holds."""
    for number, name in enumerate(NAMES.values(), 1):
        path = tmp_path / "node" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * 5000 + bytes(5000))
    return tmp_path / "node"


def contents(data: Path) -> dict[Part, bytes]:
    """Return what the files hold."""
    return {part: (data / name).read_bytes() for part, name in NAMES.items()}


@pytest.mark.parametrize("part", Part)
def test_two_bits_of_one_kind_of_file_flip_where_it_holds_something(data: Path, part: Part) -> None:
    """And no other file changes."""
    before = contents(data)

    assert flip(data, part, random.Random(3))

    after = contents(data)
    changed = [at for at in range(10_000) if before[part][at] != after[part][at]]
    assert len(changed) == 2
    assert max(changed) < 5000
    assert all(before[other] == after[other] for other in Part if other is not part)


@pytest.mark.parametrize("part", REPLACEABLE)
def test_a_file_loses_its_end_by_little_or_all_of_it(data: Path, part: Part) -> None:
    """Over many draws: a byte at times, everything at times."""
    sizes = set()
    for seed in range(60):
        (data / NAMES[part]).write_bytes(b"." * 10_000)
        assert truncate(data, part, random.Random(seed))
        sizes.add((data / NAMES[part]).stat().st_size)

    assert min(sizes) == 0
    assert max(sizes) > 9900


def test_a_kind_of_which_there_is_no_file_is_not_hit(tmp_path: Path) -> None:
    """The episode then says that it did not fire."""
    assert not flip(tmp_path, Part.SNAPSHOT, random.Random(1))
    assert not truncate(tmp_path, Part.SNAPSHOT, random.Random(1))


def test_files_that_are_not_finished_are_left_alone(data: Path) -> None:
    """A spare has nothing in it, and a temporary file is thrown away."""
    (data / "hard_state.new").write_bytes(b"x")
    (data / "log/00000000000000000002.seg").write_bytes(b"")

    assert [path.name for path in files_of(data, Part.HARD_STATE)] == ["hard_state"]
    assert [path.name for path in files_of(data, Part.SEGMENT)] == ["00000000000000000001.seg"]


def test_about_half_of_the_chunks_go_back_in_time(data: Path) -> None:
    """Each to exactly what it was; those that were the same do not count."""
    segment = data / NAMES[Part.SEGMENT]
    segment.write_bytes(b"a" * 100 * CHUNK_BYTES)
    before = chunks_now(data)
    segment.write_bytes(b"b" * 101 * CHUNK_BYTES)

    changed = back_in_time(before, random.Random(1))

    now = segment.read_bytes()
    chunks = [now[at : at + CHUNK_BYTES] for at in range(0, len(now), CHUNK_BYTES)]
    assert set(map(bytes, chunks)) == {b"a" * CHUNK_BYTES, b"b" * CHUNK_BYTES}
    assert chunks.count(b"a" * CHUNK_BYTES) == changed
    assert 30 < changed < 70
    assert chunks[-1] == b"b" * CHUNK_BYTES


def test_a_directory_is_put_back_to_its_image(data: Path) -> None:
    """What came later is gone, and what was removed is there again."""
    image = data.with_suffix(".image")
    (image / "log").mkdir(parents=True)
    (image / "log/watermark").write_bytes(b"old")

    put_back(data, image)

    assert [path.relative_to(data).as_posix() for path in data.rglob("*") if path.is_file()] == [
        "log/watermark"
    ]
    assert (data / "log/watermark").read_bytes() == b"old"
