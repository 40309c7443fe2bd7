"""Which held messages are due next: an hour of them, opened by a leader. Pure.

What is replicated says where each held message is, by hour and slot, compressed (`broker.held`). A
leader opens the hours that come to an end, a piece at a time, and sorts their slots by the second
of their due times as it goes; slots ascend by themselves. A second that is due is sorted by its
milliseconds, in slices again: so no step grows with how many are due at once. Nothing here decides
what time it is, and what was opened can be thrown away and opened anew at any time.

Used by `firing`, which asks which of them are still held: a message that was recalled meanwhile, or
released by an earlier command, is passed over then.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from dledger.broker.held_bucket import CODES, PIECE
from dledger.broker.held_refs import Ref
from dledger.broker.queue_positions import Payload

SECOND_MS: Final = 1_000
SLICE: Final = 1_024
"""Slots that are sorted before anything else may run."""


class Due(NamedTuple):
    """A held message that is due.

    Attributes:
        ref: What it is called.
        due_ms: Since when, Unix milliseconds.
        payload: Where it lay when its hour was opened: it may have been copied elsewhere since.
        row: Its row there.
        generation: Its topic.
    """

    ref: Ref
    due_ms: int
    payload: Payload
    row: int
    generation: int


class _Slots:
    """Slots in the order in which they came; those before *at* are gone."""

    __slots__ = ("at", "slots")

    def __init__(self) -> None:
        self.slots, self.at = array("I"), 0

    def take(self, most: int) -> array[int]:
        """Return the first of them, which go."""
        taken = self.slots[self.at : self.at + most]
        self.at += len(taken)
        return taken

    @property
    def is_empty(self) -> bool:
        """Whether all are gone."""
        return self.at == len(self.slots)


class _Piece:
    """Where the slots of a piece lie, while some of them were not taken."""

    __slots__ = ("_columns", "_first", "_left")

    def __init__(self, first: int) -> None:
        self._first, self._left = first, 0
        self._columns: list[array[int]] = [array(code) for code in CODES]

    def open(self, columns: Sequence[array[int]]) -> None:
        """Take more of its slots."""
        for own, column in zip(self._columns, columns, strict=True):
            own.extend(column)
        self._left += len(columns[0])

    def due_ms(self, at: int) -> int:
        """Return when a slot is due."""
        return self._columns[0][at - self._first]

    def take(self, ref: Ref, at: int) -> Due:
        """Return what is known of a slot, and count it as taken."""
        self._left -= 1
        row_at = at - self._first
        due_ms, entry, start, end, row, generation = (each[row_at] for each in self._columns)
        return Due(ref, due_ms, Payload(entry, start, end), row, generation)

    @property
    def is_empty(self) -> bool:
        """Whether all that were opened are taken."""
        return not self._left


class _Sorted:
    """Slots by a part of their due times, of which the first comes first."""

    __slots__ = ("by_time", "order")

    def __init__(self) -> None:
        self.by_time: dict[int, _Slots] = {}
        self.order: list[int] = []

    def at(self, time: int) -> array[int]:
        """Return the slots of a time, to append to."""
        found = self.by_time.get(time)
        if found is None:
            found = self.by_time[time] = _Slots()
            heappush(self.order, time)
        return found.slots

    @property
    def first(self) -> int | None:
        """The first time that has any."""
        return self.order[0] if self.order else None

    def take(self, most: int) -> array[int]:
        """Return some slots of the first time, which go."""
        slots = self.by_time[self.order[0]]
        taken = slots.take(most)
        if slots.is_empty:
            del self.by_time[heappop(self.order)]
        return taken


class OpenHour:
    """The messages of one hour that were opened and not taken yet.

    Attributes:
        hour: Which.
        opened: How many of its slots were opened, from the first on.
        left: How many of those were not taken.
    """

    __slots__ = ("_millis", "_pieces", "_seconds", "hour", "left", "opened")

    def __init__(self, hour: int) -> None:
        self.hour = hour
        self.opened = self.left = 0
        self._pieces: dict[int, _Piece] = {}
        self._seconds, self._millis = _Sorted(), _Sorted()

    def open(self, columns: Sequence[array[int]]) -> None:
        """Take the next slots: what a held bucket has of the piece that they are in, or begin.

        The columns are: due times, entries, starts, ends, rows, and generations of topics.
        """
        number, skipped = divmod(self.opened, PIECE)
        piece = self._pieces.get(number)
        if piece is None:
            piece = self._pieces[number] = _Piece(skipped)
        piece.open([column[skipped:] for column in columns])
        at = self._seconds.at
        for slot, due_ms in enumerate(columns[0][skipped:], self.opened):
            at(due_ms // SECOND_MS).append(slot)
        count = len(columns[0]) - skipped
        self.opened += count
        self.left += count

    @property
    def next_ms(self) -> int | None:
        """Not before when any of them is due, Unix ms; None: there are none."""
        firsts = [] if self._millis.first is None else [self._millis.first]
        if self._seconds.first is not None:
            firsts.append(self._seconds.first * SECOND_MS)
        return min(firsts, default=None)

    def sort(self, date_ms: int) -> bool:
        """Sort a slice of what may be due at a date; return whether there was anything to sort."""
        first = self._seconds.first
        if first is None or first * SECOND_MS > date_ms:
            return False
        at = self._millis.at
        for slot in self._seconds.take(SLICE):
            at(self._pieces[slot // PIECE].due_ms(slot % PIECE)).append(slot)
        return True

    def take(self, date_ms: int, *, most: int) -> list[Due]:
        """Return, in due order, the first of what is due at a date; at most so many.

        They count as taken. Nothing is returned that is due after what `sort` has left.
        """
        found: list[Due] = []
        left = self._seconds.first
        before_ms = date_ms + 1 if left is None else min(date_ms + 1, left * SECOND_MS)
        while len(found) < most:
            first = self._millis.first
            if first is None or first >= before_ms:
                break
            found += map(self._taken, self._millis.take(most - len(found)))
        self.left -= len(found)
        return found

    def _taken(self, slot: int) -> Due:
        number, at = divmod(slot, PIECE)
        piece = self._pieces[number]
        due = piece.take(Ref(self.hour, slot), at)
        if piece.is_empty:
            del self._pieces[number]
        return due
