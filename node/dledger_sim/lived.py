"""What may be gone by its age, and what the log's time may say, when wall clocks are wrong.

Time is counted as a group lives it: while somebody leads. No clock of a node is asked.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from dledger.types import Entry, EntryKind
from dledger_sim.checkers import ViolationError
from dledger_sim.loop import MS, S
from dledger_sim.process import START_MS

_HOUR_US: Final = 3600 * S
_LEAST: Final = (7, 8)
"""The log's time may run slower than the group's, by this part of it at least."""
_LONGEST_LOOK_US: Final = 250 * MS
_AHEAD_MS: Final = 6000
"""5 s, and a round trip of a second."""


class LivedHours:
    """No message goes before it has lived through its hours, times 7/8, under a leader.

    Args:
        hours: At which age retention lets messages go; 0: nothing is checked.
    """

    def __init__(self, hours: int) -> None:
        self._least_us = hours * _HOUR_US * _LEAST[0] // _LEAST[1]
        self._led_us = self._looked_us = 0
        self._indexes: list[int] = []
        self._stored_us: list[int] = []
        self._first_index = 0

    def led(self, now_us: int) -> None:
        """Take note that somebody leads; each leader is looked at several times a second."""
        self._led_us += min(now_us - self._looked_us, _LONGEST_LOOK_US)
        self._looked_us = now_us

    def applied(self, entry: Entry, first_index: int) -> None:
        """Check what an entry has let go of, the first time that it is applied.

        Args:
            entry: Which.
            first_index: From which on messages are kept, then.
        """
        if entry.kind is EntryKind.DATA and (not self._indexes or entry.index > self._indexes[-1]):
            self._indexes.append(entry.index)
            self._stored_us.append(self._led_us)
        if not self._least_us or first_index <= self._first_index:
            return
        self._first_index = first_index
        newest = bisect_left(self._indexes, first_index) - 1
        if newest < 0:
            return
        age_us = self._led_us - self._stored_us[newest]
        if age_us < self._least_us:
            raise ViolationError(
                f"retention lets messages of entry {self._indexes[newest]} go, which have lived "
                f"{age_us / S:.1f} s; {self._least_us / _HOUR_US:g} h are the least"
            )


def check_not_ahead(entry: Entry, now_us: int) -> None:
    """Check that an entry that is applied now is not ahead of every right clock.

    Only where no more than a minority's clocks are wrong; nobody's else are early or late.
    """
    right_ms = START_MS + now_us // MS
    if entry.timestamp_ms > right_ms + _AHEAD_MS:
        raise ViolationError(
            f"entry {entry.index} is {(entry.timestamp_ms - right_ms) / 1000:.0f} s ahead of "
            "every right clock"
        )
