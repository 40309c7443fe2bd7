"""The log's time, and how much of it was lived under a leader: what messages and leases age by.

The timestamps of entries go on by the leader's monotonic time, which is time under a leader by
definition. A LEAP moves them to the date, after an outage of the whole group or a step of all
clocks, and nobody lived through what it skipped. So *lived time* is the log's time less all leaps.
It decides what cannot be undone: a message is dropped, and a lease ends, after so much of it. Part
of the replicated state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise
from operator import itemgetter
from typing import Final, TypeAlias

from dledger.broker.snapshot_codec import Reader, ascends, column, number
from dledger.errors import InvalidArgument

MAX_LEAPS: Final = 128
"""Leaps that are told apart. Beyond it the time between two of them counts as lived later than it
was, where that is the shortest: with 72 lived hours between first and last, by half an hour."""
_Row: TypeAlias = tuple[int, int]
"""A leap: the log's time right behind it, and the lived time then. Unix milliseconds."""
_log_ms, _lived_ms = itemgetter(0), itemgetter(1)


class LivedTime:
    """The log's time with its leaps; all times are Unix milliseconds.

    Before the first leap, lived time is the log's time. Later it is a Unix time that the group
    would have had if it had slept through none: a number to subtract from, not a date.

    Attributes:
        log_ms: The newest timestamp of an entry; never goes back.
        leaps: The leaps, oldest first. A tuple that is replaced: any thread may keep it.
    """

    __slots__ = ("_before_ms", "leaps", "log_ms")

    def __init__(self) -> None:
        self.log_ms = self._before_ms = 0
        self.leaps: tuple[_Row, ...] = ()

    @property
    def leapt_ms(self) -> int:
        """How much of the log's time all leaps have skipped."""
        return self.leaps[-1][0] - self.leaps[-1][1] if self.leaps else 0

    @property
    def lived_ms(self) -> int:
        """The lived time at the newest entry; never goes back."""
        return self.log_ms - self.leapt_ms

    def advance(self, log_ms: int) -> None:
        """Advance to the timestamp of an entry, before its commands are applied."""
        self._before_ms, self.log_ms = self.log_ms, max(self.log_ms, log_ms)

    def leap(self, from_ms: int, to_ms: int) -> int:
        """Count what the entry being applied skipped as not lived; return how much that is.

        Never more than the log's time advanced by with this entry, whatever the command says.

        Raises:
            InvalidArgument: It does not lead forward.
        """
        if not 0 <= from_ms < to_ms:
            raise InvalidArgument(f"a leap from {from_ms} to {to_ms} does not lead forward")
        skipped_ms = min(to_ms, self.log_ms) - max(from_ms, self._before_ms)
        if skipped_ms <= 0:
            return 0
        self.leaps = _bounded((*self.leaps, (self.log_ms, self.lived_ms - skipped_ms)))
        self._before_ms = self.log_ms
        return skipped_ms

    def lived_at(self, log_ms: int) -> int:
        """Return the lived time at a time of the log; never less than it was.

        So what happened then is never taken for older than it is.
        """
        return lived_at(self.leaps, log_ms)

    def encoded(self) -> Iterator[bytes]:
        """Yield the bytes for a snapshot."""
        yield number(self.log_ms)
        yield from column("q", len(self.leaps), map(_log_ms, self.leaps))
        yield from column("q", len(self.leaps), map(_lived_ms, self.leaps))

    def read(self, source: Reader) -> None:
        """Read everything from a snapshot. Raises MalformedStateError."""
        self.log_ms = self._before_ms = source.number()
        log = source.column("q")
        lived = source.column("q", len(log))
        self.leaps = tuple(zip(log, lived, strict=True))
        skipped = [at - left for at, left in self.leaps]
        if (
            len(log) > MAX_LEAPS
            or not ascends(log, self.log_ms + 1)
            or sorted(lived) != list(lived)
            or not ascends(skipped, self.log_ms + 1)
            or (lived and (lived[0] < 0 or skipped[0] <= 0))
        ):
            raise source.malformed(f"{len(log)} leaps that are none")

    def canonical(self) -> list[object]:
        """Return everything as plain values."""
        return [self.log_ms, self.leaps]


def lived_at(leaps: tuple[_Row, ...], log_ms: int) -> int:
    """Return the lived time (Unix ms) at a time of the log, never less than it was."""
    behind = bisect_right(leaps, log_ms, key=_log_ms)
    at_ms, lived_ms = leaps[behind - 1] if behind else (0, 0)
    found_ms = lived_ms + log_ms - at_ms
    return min(found_ms, leaps[behind][1]) if behind < len(leaps) else found_ms


def older_than(age_ms: int, *, leaps: tuple[_Row, ...], lived_ms: int) -> Callable[[int], bool]:
    """Return whether what was stored at a time of the log (Unix ms) has been there for *age_ms*.

    In lived time, which is *lived_ms* now. May be called from any thread.
    """
    return lambda stored_at_ms: lived_ms - lived_at(leaps, stored_at_ms) >= age_ms


def _bounded(leaps: tuple[_Row, ...]) -> tuple[_Row, ...]:
    """Return the leaps without the one behind which the least was lived, if they are too many.

    What was stored between it and the next counts as stored at the next.
    """
    if len(leaps) <= MAX_LEAPS:
        return leaps
    lived = [later[1] - earlier[1] for earlier, later in pairwise(leaps)]
    least = lived.index(min(lived))
    return leaps[:least] + leaps[least + 1 :]
