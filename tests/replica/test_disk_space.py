"""Whether there is room for user data: what refuses it, and what takes it again."""

from __future__ import annotations

import pytest

from dledger.errors import DiskFull
from dledger.replica.persistence import DiskSpaceGuard


def refused(room: DiskSpaceGuard) -> bool:
    """Return whether user data is refused; both ways to ask agree."""
    try:
        room.check()
    except DiskFull:
        assert room.refusal is not None
        return True
    assert room.refusal is None
    return False


def test_user_data_leaves_a_reserve_free() -> None:
    """It is refused below the reserve, and taken again by itself."""
    room = DiskSpaceGuard(100)
    seen = []
    for free_bytes in (100, 99, 0, 100):
        room.measured(free_bytes, retrying=False)
        seen.append(refused(room))

    assert seen == [False, True, True, False]


def test_who_is_refused_is_told_how_much_room_there_is() -> None:
    """And what to do about it."""
    room = DiskSpaceGuard(100)
    room.measured(99, retrying=False)

    with pytest.raises(DiskFull, match="99 bytes free and keeps 100 in reserve; free some space"):
        room.check()


def test_a_write_that_waits_for_room_keeps_user_data_out() -> None:
    """However much is free by another count: until it has been written, or nothing waits."""
    room = DiskSpaceGuard(100)
    room.write_refused(DiskFull("no room"))

    room.measured(1_000, retrying=True)
    room.write_succeeded(retrying=True)
    assert refused(room)

    room.write_succeeded(retrying=False)
    assert not refused(room)


def test_room_that_came_back_is_enough_once_no_write_waits() -> None:
    """What waited may have been given up with the entries behind it."""
    room = DiskSpaceGuard(100)
    room.write_refused(DiskFull("no room"))

    room.measured(1_000, retrying=False)

    assert not refused(room)
