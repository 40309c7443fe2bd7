"""Looking for messages at the leader, while what they lie in is copied and dropped."""

from __future__ import annotations

import pytest

from dledger.errors import OffsetOutOfRange
from dledger.services.finding import Finder, Sought
from dledger.types import Entry
from tests.services.kept_disk import Disk

_SOUGHT = Sought(topic="orders", generation=0, queue_id=0, first=0, end=0)


class _Moving(Disk):
    """Copies all of the queue, and drops what it was copied from, before an entry is read.

    *times* is how often.
    """

    def __init__(self, times: int) -> None:
        super().__init__(entries=0)
        self.times = times
        for _ in range(2):
            self.produce(10, "x")

    async def read_entry(self, index: int) -> Entry:
        if self.times:
            self.times -= 1
            self.roll()
            self.retain()
        return await super().read_entry(index)

    async def read_index(self) -> int:
        return len(self.log.entries)

    async def wait_applied(self, index: int, timeout_s: float) -> None:
        """All is applied."""


async def test_what_is_copied_elsewhere_meanwhile_is_found_there() -> None:
    """Each message once, in order."""
    looked = await Finder(_Moving(times=1)).find(_SOUGHT)

    assert [each.offset for each in looked.found] == list(range(20))
    assert [each.message.body for each in looked.found] == [b"x %d" % n for n in range(20)]
    assert looked.next == looked.end == 20


async def test_what_moves_at_each_look_is_refused() -> None:
    """Whoever looks asks again; the leader is not kept busy by it."""
    with pytest.raises(OffsetOutOfRange):
        await Finder(_Moving(times=9)).find(_SOUGHT)
