"""What a peer gives of its log to one whose own is damaged."""

from __future__ import annotations

import struct

import pytest

from dledger.errors import WrongGroup
from dledger.peers.records import RecordsServicer
from tests.store.harness import Disk, entries


def request(first: int, last: int, group_id: str = "g", max_bytes: int = 1 << 20) -> bytes:
    return struct.pack("<QQI", first, last, max_bytes) + group_id.encode()


def servicer() -> RecordsServicer:
    """Return the servicer of a log of entries 22 to 100, of which [50, 52] are damaged."""
    log = Disk().with_entries(entries(1, 100, size=150))
    log.drop_before(40)
    assert log.first_index == 22
    log.mark_faulty(50, 52, "test")
    return RecordsServicer(lambda: ("g", log))


@pytest.mark.parametrize(
    ("first", "last", "given"),
    [
        (60, 62, range(60, 63)),
        (1, 23, range(22, 24)),
        (48, 60, range(48, 50)),
        (50, 55, range(53, 56)),
        (50, 52, range(0)),
        (99, 200, range(99, 101)),
        (1, 5, range(0)),
        (101, 200, range(0)),
    ],
)
async def test_a_peer_gives_what_is_whole(first: int, last: int, given: range) -> None:
    """From the first whole entry on, up to the next damaged one."""
    found = await servicer()._entries(request(first, last))

    assert [entry.index for entry in found] == list(given)


async def test_answers_are_bounded() -> None:
    """One entry at least."""
    assert len(await servicer()._entries(request(60, 90, max_bytes=300))) == 2
    assert len(await servicer()._entries(request(60, 90, max_bytes=0))) == 1


async def test_another_group_gets_nothing() -> None:
    """Indexes mean nothing across groups."""
    with pytest.raises(WrongGroup):
        await servicer()._entries(request(60, 90, "other"))
