"""Which held messages are due now, in the order of their times: derived, for whoever leads.

Not replicated: a new leader makes it of the state in small steps. No object and no comparison is
needed to bring a million messages of one hour in order: their slots are put into arrays by the
second, those of a second by the millisecond when it has begun, and within one they are in the order
in which they were sent. So a step takes about a millisecond at most, and a message of an open hour
12 bytes.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dledger.broker.held_bucket import PIECE, Bucket, Columns, Piece
from dledger.broker.held_messages import HeldMessages
from dledger.broker.held_refs import Fate, HeldMessage, Kind, Ref
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

    __slots__ = ("due", "millis", "seconds")

    def __init__(self) -> None:
        self.due = array("Q")
        """Of each slot, when it is due, Unix milliseconds."""
        self.seconds: dict[int, array[int]] = {}
        self.millis: dict[int, array[int]] = {}
        """Those of seconds that have begun, by the millisecond."""

    def put(self, slot: int) -> None:
        _put(self.seconds, self.due[slot] // 1000, slot)

    def begun(self, last: int) -> set[int]:
        """Return the seconds up to one of which there is something."""
        return {
            each for each in (*self.seconds, *(ms // 1000 for ms in self.millis)) if each <= last
        }

    def sort(self, second: int) -> Iterator[Sequence[int]]:
        """Bring a second that has begun in order; yield nothing for each step."""
        slots, due, millis = self.seconds.pop(second, array("I")), self.due, self.millis
        for first in range(0, len(slots), _STEP):
            for slot in slots[first : first + _STEP]:
                _put(millis, due[slot], slot)
            yield ()

    def take(self, until_ms: int) -> Iterator[Sequence[int]]:
        """Yield the slots of seconds that have begun which are due by a time, in order."""
        for each in sorted(ms for ms in self.millis if ms <= until_ms):
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
        soon_ms = now_ms + _AHEAD_MS
        for hour in sorted(each for each, b in buckets.items() if b.first_due_ms <= soon_ms):
            while self._take_in(hour):
                yield ()
        last = now_ms // 1000
        found = [(second, hour) for hour, its in self._hours.items() for second in its.begun(last)]
        for second, hour in sorted(found):
            its = self._hours[hour]
            for _ in its.sort(second):
                yield ()
            for some in its.take(min(now_ms, 1000 * second + 999)):
                yield from self._told(hour, some)

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
            hour = self._hours[number] = _Hour()
        slot = len(hour.due)
        due, put = hour.due, hour.put
        due.extend(bucket.columns(slot // PIECE)[0][slot % PIECE :])
        for each in range(slot, len(due)):
            if bucket.fate(each) is Fate.HELD and bucket.kind(each) is self._kind:
                put(each)
        return True

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
