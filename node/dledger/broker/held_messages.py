"""All messages that are held, by the hours that they are due. Part of the replicated state.

Nothing here says that a message is to be delivered now: whoever leads goes by the group's date, and
proposes it (`due_slots`). The log's time only names a message. Its hour is that in which it is
due, but none that the log's time has long passed: of such an hour the slots may be forgotten, and
its names must not be given twice. So a clock that was once wrong fires nothing early, and loses
nothing.

An hour's bucket is freed an hour after it is over, and after the last message of it was held no
longer. Until then whoever is late is told what became of a message: recalls, ends of transactions,
also repeated ones, and what is sent again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from dledger.broker.editions import Edition
from dledger.broker.held_bucket import NO_ENTRY, Bucket, Place
from dledger.broker.held_refs import HOUR_BITS, HOUR_MS, SLOT_BITS, Fate, HeldMessage, Kind, Ref
from dledger.broker.open_halves import OpenHalves
from dledger.broker.queue_positions import Payload
from dledger.broker.snapshot_codec import Encoded, Reader, number, text
from dledger.errors import LimitReached

MAX_HELD: Final = 1 << 24
_NOT_FREED_HOURS: Final = 1
_LAST_HOUR: Final = (1 << HOUR_BITS) - 1


class HeldMessages:
    """What is held.

    Attributes:
        count: How many messages are held.
        halves: How many of them are halves of transactions.
        size_bytes: What they take in the log, about.
        pause_id: What the newest pause was called; empty: there was none.
        is_paused: Whether what was held at the newest pause waits for a word.
        pauses: How often a pause began or ended since this node began: not replicated.
        open_halves: What is known of the halves that are held.
        full: Why the leader holds no more messages; empty: it does. Not replicated.
    """

    def __init__(self, edition: Edition) -> None:
        self._edition = edition
        self._buckets: dict[int, Bucket] = {}
        self.count = self.halves = self.size_bytes = 0
        self.pause_id, self.is_paused = "", False
        self._freed_hour = 0
        self.pauses, self.full = 0, ""
        self.open_halves = OpenHalves(edition)

    @property
    def is_used(self) -> bool:
        """Whether there is anything to say of it in a snapshot."""
        return bool(self._buckets or self.pause_id or self._freed_hour)

    def _own(self, hour: int) -> Bucket:
        """Return the bucket of an hour, to be changed."""
        bucket = self._buckets.get(hour)
        if bucket is None:
            bucket = self._buckets[hour] = Bucket(hour, self._edition.number)
        elif bucket.edition != self._edition.number:
            bucket = self._buckets[hour] = bucket.copy(self._edition.number)
        return bucket

    # -- what is held ------------------------------------------------------------------------------

    def fate(self, ref: Ref) -> Fate:
        """Return what became of a message."""
        bucket = self._buckets.get(ref.hour)
        return Fate.UNKNOWN if bucket is None else bucket.fate(ref.slot)

    def holds(self, ref: Ref) -> bool:
        """Whether it is held now."""
        return self.fate(ref) is Fate.HELD

    def kind(self, ref: Ref) -> Kind | None:
        """Return why a message is held, or was; None if nobody knows of it."""
        bucket = self._buckets.get(ref.hour)
        return bucket.kind(ref.slot) if bucket is not None and ref.slot < bucket.count else None

    def find(self, ref: Ref) -> HeldMessage | None:
        """Return a message that is held, and where it lies; None if it is not held now."""
        return self._buckets[ref.hour].message(ref.slot) if self.holds(ref) else None

    def is_waiting(self, ref: Ref) -> bool:
        """Whether a message waits for a word, since it was held when all were paused."""
        bucket = self._buckets.get(ref.hour)
        return self.is_paused and bucket is not None and ref.slot < bucket.paused

    @property
    def waiting(self) -> int:
        """How many messages that are held wait for a word."""
        return sum(bucket.live_paused for bucket in self._buckets.values() if bucket.paused)

    def buckets(self) -> Mapping[int, Bucket]:
        """Return the buckets by hour, to be read."""
        return self._buckets

    # -- changes -----------------------------------------------------------------------------------

    def check_room(self, hours: Sequence[int]) -> None:
        """Refuse one more message for each of *hours* (`hour_of`) if they are too many.

        Raises:
            LimitReached: Too many would be held, or have been held for one hour.
        """
        if self.count + len(hours) > MAX_HELD:
            raise LimitReached(
                f"{self.count} messages are held, and {len(hours)} more are above the limit of "
                f"{MAX_HELD}"
            )
        for hour, more in Counter(hours).items():
            bucket = self._buckets.get(hour)
            if bucket is not None and bucket.count + more > 1 << SLOT_BITS:
                raise LimitReached(
                    f"{bucket.count} messages were held for one hour; {more} more are above the "
                    f"limit of {1 << SLOT_BITS}"
                )

    def hour_of(self, due_ms: int, log_ms: int) -> int:
        """Return the hour that a message is called by which comes at a time of the log."""
        return min(max(due_ms // HOUR_MS, log_ms // HOUR_MS - _NOT_FREED_HOURS), _LAST_HOUR)

    def add(
        self,
        hour: int,
        due_ms: int,
        place: Place,
        *,
        generation: int,
        kind: Kind,
        size_bytes: int,
    ) -> Ref:
        """Hold one more message, and return what it is called."""
        slot = self._own(hour).add(due_ms, place, generation, kind, size_bytes)
        self.count += 1
        self.halves += kind is Kind.HALF
        self.size_bytes += size_bytes
        return Ref(hour, slot)

    def remove(self, ref: Ref, fate: Fate) -> Fate:
        """Hold a message no longer, if it is held: it has this fate now; return the one before."""
        before = self.fate(ref)
        if before is Fate.HELD:
            bucket = self._own(ref.hour)
            self.count -= 1
            if bucket.kind(ref.slot) is Kind.HALF:
                self.halves -= 1
                self.open_halves.remove(ref)
            self.size_bytes -= bucket.remove(ref.slot, fate)
            bucket.ended_hour = self._freed_hour + _NOT_FREED_HOURS
        return before

    def move(self, refs: Sequence[Ref], payload: Payload) -> int:
        """Let those of *refs* that are held lie in the rows of *payload*; return how many."""
        by_hour: dict[int, dict[int, Place]] = {}
        for row, ref in enumerate(refs):
            if self.holds(ref):
                place = Place(payload.index, payload.start, payload.end, row)
                by_hour.setdefault(ref.hour, {})[ref.slot] = place
        for hour, places in by_hour.items():
            self._own(hour).move(places)
        return sum(map(len, by_hour.values()))

    def pass_to(self, log_ms: int) -> None:
        """Free the buckets of hours that are long over at a time of the log and hold nothing.

        Called before each command that holds messages or lets them go.
        """
        hour = min(log_ms // HOUR_MS - _NOT_FREED_HOURS, _LAST_HOUR)
        if hour <= self._freed_hour:
            return
        self._freed_hour = hour
        over = [b for b in self._buckets.values() if max(b.hour, b.ended_hour) < hour]
        for each in [bucket.hour for bucket in over if not bucket.live]:
            del self._buckets[each]

    def pause(self, pause_id: str) -> int:
        """Let what is held wait for a word; return how many. A pause that was does nothing."""
        if pause_id == self.pause_id:
            return 0
        self.pause_id, self.is_paused = pause_id, True
        self.pauses += 1
        for hour in list(self._buckets):
            bucket = self._own(hour)
            bucket.paused = bucket.count
        return self.count

    def resume(self, *, cancels: bool) -> int:
        """End the pause; cancel what has waited if that is said; return how many had waited."""
        waited = self.waiting if self.is_paused else 0
        self.is_paused = False
        self.pauses += 1
        for hour in [each for each, bucket in self._buckets.items() if bucket.paused]:
            bucket = self._own(hour)
            if cancels:
                messages, halves, size_bytes = bucket.cancel_paused()
                self.count -= messages
                self.halves -= halves
                self.size_bytes -= size_bytes
                self.open_halves.remove_below(hour, bucket.paused)
                bucket.ended_hour = self._freed_hour + _NOT_FREED_HOURS
            bucket.paused = 0
        return waited

    # -- what keeps the log ------------------------------------------------------------------------

    @property
    def first_entry(self) -> int:
        """An entry that nothing that is held lies below; `NO_ENTRY`: nothing is held.

        RETAIN drops nothing from there on: a leader copies forward what stands in its way.
        """
        firsts = (bucket.first_entry for bucket in self._buckets.values() if bucket.live)
        return min(firsts, default=NO_ENTRY)

    def pieces_below(self, index: int) -> Iterator[tuple[int, int]]:
        """Yield the hours and pieces that may hold something in entries below *index*."""
        for hour in sorted(self._buckets):
            bucket = self._buckets[hour]
            if bucket.live and bucket.first_entry < index:
                for piece in range(bucket.pieces):
                    if bucket.first_entry_of(piece) < index:
                        yield hour, piece

    def drop_before(self, index: int) -> int:
        """Cancel what lies in entries below *index*, which are lost; return how many."""
        gone = [
            message.ref
            for hour, piece in list(self.pieces_below(index))
            for message in self._buckets[hour].messages(piece)
            if message.payload.index < index
        ]
        for ref in gone:
            self.remove(ref, Fate.CANCELLED)
        return len(gone)

    # -- snapshots ---------------------------------------------------------------------------------

    def freeze(self) -> Encoded:
        """Return a function that encodes the present state; it may be called from any thread."""
        head = text(self.pause_id), number(self.is_paused), number(self._freed_hour)
        buckets = [self._buckets[hour] for hour in sorted(self._buckets)]
        return partial(_encode, head, buckets, self.open_halves.freeze())

    def read(self, source: Reader) -> None:
        """Read everything from a snapshot into this empty object. Raises MalformedStateError."""
        self.pause_id, self.is_paused = source.text(), bool(source.number(high=1))
        self._freed_hour = source.number(high=1 << HOUR_BITS)
        last = -1
        for _ in range(source.number(high=1 << HOUR_BITS)):
            bucket = Bucket.read(source)
            if not last < bucket.hour < 1 << HOUR_BITS or bucket.count > 1 << SLOT_BITS:
                raise source.malformed(f"{bucket.count} messages held for the hour {bucket.hour}")
            last = bucket.hour
            self._buckets[bucket.hour] = bucket
            self.count += bucket.live
            self.halves += bucket.live_halves
            self.size_bytes += bucket.size_bytes
        if self.count > MAX_HELD:
            raise source.malformed(f"{self.count} messages are held, {MAX_HELD} at most")
        self.open_halves.read(source)
        known = sum(
            self.holds(ref) and self.kind(ref) is Kind.HALF for ref, _ in self.open_halves.items()
        )
        if not known == len(self.open_halves) == self.halves:
            raise source.malformed(
                f"{self.halves} halves are held, and {len(self.open_halves)} are open"
            )

    def canonical(self) -> list[object]:
        """Return everything as plain values, in one order on every node."""
        buckets = [self._buckets[hour].canonical() for hour in sorted(self._buckets)]
        halves = self.open_halves.canonical()
        return [self.pause_id, self.is_paused, self._freed_hour, buckets, halves]


def _encode(
    head: Sequence[bytes], buckets: Sequence[Bucket], open_halves: Encoded
) -> Iterator[bytes]:
    yield b"".join((*head, number(len(buckets))))
    for bucket in buckets:
        yield from bucket.encode()
    yield from open_halves()
