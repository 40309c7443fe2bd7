"""Which held messages are due now, in the order of their times: derived, for whoever leads.

Not replicated: a new leader makes it of the state in small steps. No object and no comparison is
needed to bring a million messages of one hour in order: their slots are put into arrays by the
second, those of a large second by the millisecond when it comes, and within one they are in the
order in which they were sent. So a step takes about a millisecond at most, and a message of an
open hour 12 bytes.
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
_SORTED: Final = 1 << 11
"""Slots that are sorted at once."""
_STEP: Final = 1 << 12
_TOLD: Final = 256
"""Messages that are told at once."""
_OPENED: Final = 1 << 10
"""Pieces of which the columns are kept, 32 KiB each."""


class _Hour:
    """One hour's slots that were not told yet, by the second that they are due."""

    __slots__ = ("due", "seconds")

    def __init__(self) -> None:
        self.due = array("Q")
        """Of each slot, when it is due, Unix milliseconds."""
        self.seconds: dict[int, array[int]] = {}

    def put(self, slot: int) -> None:
        second = self.due[slot] // 1000
        found = self.seconds.get(second)
        if found is None:
            found = self.seconds[second] = array("I")
        found.append(slot)

    def pop(self, second: int, until_ms: int) -> array[int]:
        """Return the slots of a second that are due, and keep the others."""
        slots, due = self.seconds.pop(second), self.due
        if second == until_ms // 1000:
            later = array("I", [slot for slot in slots if due[slot] > until_ms])
            if later:
                self.seconds[second] = later
                return array("I", [slot for slot in slots if due[slot] <= until_ms])
        return slots


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
        found = [
            (second, hour)
            for hour, its in self._hours.items()
            for second in its.seconds
            if second <= last
        ]
        for second, hour in sorted(found):
            its = self._hours[hour]
            for some in _in_order(its.pop(second, now_ms), its.due):
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
        yield ()
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


def _in_order(slots: array[int], due: array[int]) -> Iterator[Sequence[int]]:
    """Yield the slots of one second by their milliseconds, those of one as they are; in steps."""
    if len(slots) <= _SORTED:
        yield sorted(slots, key=due.__getitem__)
        return
    by_ms = [array("I") for _ in range(1000)]
    for first in range(0, len(slots), _STEP):
        for slot in slots[first : first + _STEP]:
            by_ms[due[slot] % 1000].append(slot)
        yield ()
    for each in by_ms:
        for first in range(0, len(each), _STEP):
            yield each[first : first + _STEP]
