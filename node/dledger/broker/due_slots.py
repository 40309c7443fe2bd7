"""Which held messages are due now, in the order of their times: derived, for whoever leads.

Not replicated: a new leader makes it of the state in small steps. No object and no comparison is
needed to bring a million messages of one hour in order: their slots are put into arrays by the
second, those of a large second by the millisecond when it comes, and within one they are in the
order in which they were sent. So a step takes half a millisecond, with a million due in one second
five at most (`make growth`), and a message of an open hour 12 bytes.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dledger.broker.held_bucket import PIECE, Bucket, Columns, Piece
from dledger.broker.held_messages import HeldMessages
from dledger.broker.held_refs import HeldMessage, Kind, Ref
from dledger.broker.queue_positions import Payload

_AHEAD_MS: Final = 60_000
"""How long before it begins an hour is opened."""
_SORTED: Final = 1 << 11
"""Slots that are sorted at once."""
_STEP: Final = 1 << 12
_TOLD: Final = 256
"""Messages that are told at once."""
_OPENED_A_STEP: Final = 16
_OPENED: Final = 1 << 10
"""Pieces of which the columns are kept, 32 KiB each."""


class _Hour:
    """One hour's slots that were not told yet, by the second that they are due.

    A second that has come and has many is cut into its milliseconds.
    """

    __slots__ = ("cut", "due", "seconds")

    def __init__(self) -> None:
        self.due = array("Q")
        """Of each slot, when it is due, Unix milliseconds."""
        self.seconds: dict[int, array[int]] = {}
        self.cut: dict[int, list[array[int]]] = {}

    def put(self, slot: int) -> None:
        second, ms = divmod(self.due[slot], 1000)
        if second in self.cut:
            self.cut[second][ms].append(slot)
            return
        found = self.seconds.get(second)
        if found is None:
            found = self.seconds[second] = array("I")
        found.append(slot)

    def take(self, second: int, until_ms: int) -> Iterator[Sequence[int]]:
        """Take out the slots of a second that are due, in their order; in steps, some of nothing.

        Those of one millisecond are as they came.
        """
        slots, due = self.seconds.get(second, _NONE), self.due
        if second not in self.cut and len(slots) <= _SORTED:
            del self.seconds[second]
            later = array("I", [slot for slot in slots if due[slot] > until_ms])
            if later:
                self.seconds[second] = later
            yield sorted([slot for slot in slots if due[slot] <= until_ms], key=due.__getitem__)
            return
        if second not in self.cut:
            del self.seconds[second]
            self.cut[second] = [array("I") for _ in range(1000)]
            for first in range(0, len(slots), _STEP):
                for slot in slots[first : first + _STEP]:
                    self.put(slot)
                yield ()
        cut = self.cut[second]
        for ms in range(min(until_ms - 1000 * second, 999) + 1):
            some, cut[ms] = cut[ms], _NONE[:]
            if some:
                yield some
        if not any(cut):
            del self.cut[second]


_NONE: Final = array("I")


class DueSlots:
    """What is due of one kind; used while its node leads, from one task.

    What was told is not told again: whoever does not get it released gives it back (`put_back`),
    or begins with a new object.
    """

    def __init__(self, held: HeldMessages, kind: Kind = Kind.TIMER) -> None:
        self._held, self._kind = held, kind
        self._hours: dict[int, _Hour] = {}
        self._opened: OrderedDict[tuple[int, int], tuple[Piece, Columns]] = OrderedDict()
        self._pauses, self._left = held.pauses, 0

    def until(self, now_ms: int) -> Iterator[Sequence[HeldMessage]]:
        """Yield what is due by a time (Unix ms) and not told yet, by time, in small parts.

        A part may be empty: each is a step of a few milliseconds at most, behind which the caller
        lets others run. What waits for a word (PAUSE_HELD) is told when that came. The caller goes
        on to the end, or throws the object away.
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
            for second in (*its.seconds, *its.cut)
            if second <= last
        ]
        for second, hour in sorted(found):
            for some in self._hours[hour].take(second, now_ms):
                yield from self._tell(hour, some)

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
        slot, due = len(hour.due), hour.due
        due.extend(bucket.columns(slot // PIECE)[0][slot % PIECE :])
        for each in bucket.live_among(bucket.of_kind(range(slot, len(due)), self._kind)):
            hour.put(each)
        return True

    def _tell(self, hour: int, slots: Sequence[int]) -> Iterator[Sequence[HeldMessage]]:
        yield ()
        for first in range(0, len(slots), _TOLD):
            bucket = self._held.buckets().get(hour)
            if bucket is None:
                return
            paused = bucket.paused if self._held.is_paused else 0
            some, self._left = list[HeldMessage](), _OPENED_A_STEP
            for slot in bucket.live_among(slots[first : first + _TOLD]):
                if slot >= paused:
                    some.append(self._message(bucket, slot))
                if not self._left:
                    yield some
                    some, self._left = [], _OPENED_A_STEP
            yield some

    def _message(self, bucket: Bucket, slot: int) -> HeldMessage:
        piece, at = divmod(slot, PIECE)
        dues, entries, starts, ends, rows, topics = self._columns(bucket, piece)
        payload = Payload(entries[at], starts[at], ends[at])
        ref = Ref(bucket.hour, slot)
        return HeldMessage(ref, self._kind, dues[at], payload, rows[at], topics[at])

    def _columns(self, bucket: Bucket, piece: int) -> Columns:
        sealed, key = bucket.sealed_piece(piece), (bucket.hour, piece)
        if sealed is None:
            return bucket.columns(piece)
        found = self._opened.get(key)
        if found is None or found[0] is not sealed:
            found = self._opened[key] = sealed, bucket.columns(piece)
            self._left -= 1
            if len(self._opened) > _OPENED:
                self._opened.popitem(last=False)
        self._opened.move_to_end(key)
        return found[1]
