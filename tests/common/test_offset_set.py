"""Queue offsets as bits, on the wire and in memory; equal to Python's own sets."""

from __future__ import annotations

import random
import zlib

import pytest

from dledger.common.offset_set import OffsetSet
from dledger.errors import InvalidArgument


def test_it_is_a_set_of_a_range() -> None:
    """Whatever bits its range begins and ends in the middle of."""
    rng = random.Random(1)
    for _ in range(300):
        first = rng.randrange(40)
        to = first + rng.randint(1, 70)
        plain = {o for o in range(first, to) if rng.random() < 0.5}
        found = OffsetSet(first, to, plain)
        low, high = sorted((rng.randrange(120), rng.randrange(120)))
        others = OffsetSet(first, to, (o for o in range(first, to) if rng.random() < 0.5))

        assert list(found) == sorted(plain)
        assert len(found) == len(plain)
        assert [o for o in range(120) if o in found] == sorted(plain)
        assert found.count(low, high) == len(plain & set(range(low, high)))
        assert found.last(low, high) == max(plain & set(range(low, high)), default=None)
        assert list(OffsetSet.unpack(first, to, found.pack())) == sorted(plain)
        found.add_missing(low, high, others)
        plain |= (set(range(low, high)) & set(range(first, to))) - set(others)
        assert list(found) == sorted(plain)
        gone = rng.randrange(120)
        found.discard(gone)
        assert set(found) == plain - {gone}


def test_bits_behind_the_last_offset_count_for_nothing() -> None:
    """Whoever says them may have made them all at once."""
    found = OffsetSet.unpack(3, 6, zlib.compress(b"\xff"))

    assert list(found) == [3, 4, 5]


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (b"", "has 0, or does not end"),
        (b"abc", "that zlib cannot read"),
        (zlib.compress(b"\xff"), "this one has 1"),
        (zlib.compress(b"\xff" * 3), "this one has more"),
        (zlib.compress(b"\xff" * 2)[:-1], "does not end there"),
        (zlib.compress(b"\xff" * 2) + b"x", "in one zlib stream"),
        (zlib.compress(bytes(100 << 20)), "this one has more"),
    ],
)
def test_what_is_not_the_bitmap_of_its_range_is_refused(packed: bytes, said: str) -> None:
    """A bomb of 100 MiB, too, without being blown up."""
    with pytest.raises(InvalidArgument, match=said):
        OffsetSet.unpack(10, 26, packed)
