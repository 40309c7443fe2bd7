"""Which held messages are due now, in the order of their times: derived, for whoever leads.

Not replicated: a new leader makes it of the state in small steps. No object and no comparison is
needed to bring a million messages of one hour in order: their slots are put into arrays by the
second, those of a large second by the millisecond when it comes, and within one they are in the
order in which they were sent. So a step takes about a millisecond at most, and a message 12 bytes.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dledger.broker.held_bucket import PIECE, Bucket, Columns, Piece
from dledger.broker.held_messages import HeldMessages
from dledger.broker.held_refs import HOUR_MS, Fate, HeldMessage, Kind, Ref
from dledger.broker.queue_positions import Payload

_AHEAD_MS: Final = 60_000
"""How long before it begins an hour is opened."""
_STEP: Final = 1 << 12
"""Slots that are sorted at once."""
_TOLD: Final = 256
"""Messages that are told at once."""
_OPENED: Final = 1 << 10
"""Pieces of which the columns are kept, 32 KiB each."""


class _Hour:
    """One hour's slots that were not told yet, by the second that they are due."""

    __slots__ = ("begin_ms", "due", "hour", "millis", "seconds")

    def __init__(self, hour: int) -> None:
        self.hour, self.begin_ms = hour, hour * HOUR_MS
        self.due = array("I")
        """Of each slot, how many milliseconds after the hour began; 0 if before."""
        self.seconds: dict[int, array[int]] = {}
        self.millis: dict[int, array[int]] = {}
        """Those of seconds that have begun, by what `due` says of them."""

    def put(self, slot: int) -> None:
        _put(self.seconds, self.due[slot] // 1000, slot)

    def sort(self, second: int) -> Iterator[Sequence[int]]:
        """Bring a second that has begun in order, and yield nothing for each step."""
        slots, due, millis = self.seconds.pop(second), self.due, self.millis
        for first in range(0, len(slots), _STEP):
            for slot in slots[first : first + _STEP]:
                _put(millis, due[slot], slot)
            yield ()

    def take(self, until: int) -> Iterator[Sequence[int]]:
        """Yield those of seconds that have begun which are due by a time, in order and in steps."""
        for each in sorted(ms for ms in self.millis if ms <= until):
            slots = self.millis.pop(each)
            for first in range(0, len(slots), _STEP):
                yield slots[first : first + _STEP]


def _put(arrays: dict[int, array[int]], at: int, slot: int) -> None:
    found = arrays.get(at)
    if found is None:
        found = arrays[at] = array("I")
    found.append(slot)


class DueSlots:
    """What is due of one kind; used while its node leads, from one task.

    What was told is not told again: whoever does not get it released gives it back (`put_back`),
    or begins with a new object.
    """

    def __init__(self, held: HeldMessages, kind: Kind = Kind.TIMER) -> None:
        self._held, self._kind = held, kind
        self._hours: dict[int, _Hour] = {}
        self._opened: OrderedDict[tuple[int, int], tuple[Piece, Columns]] = OrderedDict()
        self._pauses = held.pauses

    def until(self, now_ms: int) -> Iterator[Sequence[HeldMessage]]:
        """Yield what is due by a time (Unix ms) and not told yet, by time, in small parts.

        A part may be empty: each is a step of a millisecond at most, behind which the caller lets
        others run. What waits for a word (PAUSE_HELD) is told when that came. The caller goes on to
        the end, or throws the object away.
        """
        if self._pauses != self._held.pauses:
            self._pauses = self._held.pauses
            self._hours.clear()
        buckets = self._held.buckets()
        for hour in [each for each in self._hours if each not in buckets]:
            del self._hours[hour]
        for hour in sorted(each for each in buckets if each * HOUR_MS <= now_ms + _AHEAD_MS):
            while self._take_in(hour):
                yield ()
        for hour in sorted(self._hours):
            yield from self._of_hour(self._hours[hour], now_ms)

    def put_back(self, messages: Iterable[HeldMessage]) -> None:
        """Tell these again, which were told and not released."""
        for message in messages:
            hour = self._hours.get(message.ref.hour)
            if hour is not None:
                hour.put(message.ref.slot)

    def _take_in(self, number: int) -> bool:
        """Take in one piece of an hour, or the rest of one; return False if there is none."""
        bucket = self._held.buckets().get(number)
        hour = self._hours.get(number)
        if bucket is None or bucket.count == (0 if hour is None else len(hour.due)):
            return False
        if hour is None:
            hour = self._hours[number] = _Hour(number)
        slot = len(hour.due)
        due, put, begin_ms = hour.due, hour.put, hour.begin_ms
        for due_ms in bucket.columns(slot // PIECE)[0][slot % PIECE :]:
            due.append(max(due_ms - begin_ms, 0))
            if bucket.fate(slot) is Fate.HELD and bucket.kind(slot) is self._kind:
                put(slot)
            slot += 1
        return True

    def _of_hour(self, hour: _Hour, now_ms: int) -> Iterator[Sequence[HeldMessage]]:
        until = now_ms - hour.begin_ms
        for second in sorted(each for each in hour.seconds if each <= until // 1000):
            for _ in hour.sort(second):
                yield ()
            for some in hour.take(min(until, 1000 * second + 999)):
                yield from self._told(hour.hour, some)
        for some in hour.take(until):
            yield from self._told(hour.hour, some)

    def _told(self, hour: int, slots: Sequence[int]) -> Iterator[Sequence[HeldMessage]]:
        for first in range(0, len(slots), _TOLD):
            bucket = self._held.buckets().get(hour)
            if bucket is None:
                return
            some = slots[first : first + _TOLD]
            paused = bucket.paused if self._held.is_paused else 0
            yield [
                self._message(bucket, slot)
                for slot in some
                if slot >= paused and bucket.fate(slot) is Fate.HELD
            ]

    def _message(self, bucket: Bucket, slot: int) -> HeldMessage:
        columns, at = self._columns(bucket, slot // PIECE), slot % PIECE
        due_ms, entry, start, end, row, generation = (column[at] for column in columns)
        ref, payload = Ref(bucket.hour, slot), Payload(entry, start, end)
        return HeldMessage(ref, self._kind, due_ms, payload, row, generation)

    def _columns(self, bucket: Bucket, piece: int) -> Columns:
        sealed, key = bucket.sealed(piece), (bucket.hour, piece)
        if sealed is None:
            return bucket.columns(piece)
        found = self._opened.get(key)
        if found is None or found[0] is not sealed:
            found = self._opened[key] = sealed, bucket.columns(piece)
            if len(self._opened) > _OPENED:
                self._opened.popitem(last=False)
        self._opened.move_to_end(key)
        return found[1]
