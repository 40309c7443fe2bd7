"""The messages that were ever held for one hour: where they lie, and what became of each.

Slots are given out in order and never again. The newest up to `PIECE` are open columns; each
`PIECE` older ones are sealed: compressed and immutable, so that snapshots share them (`editions`).
What became of a message is two bits beside them, so that releasing and recalling it, and telling
who comes too late, open no piece. Owned by `held_messages`.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from dledger.broker.held_refs import Fate, HeldMessage, Kind, Ref
from dledger.broker.queue_positions import Payload
from dledger.broker.snapshot_codec import MalformedStateError, Reader, number
from dledger.common.byte_order import TypeCode, from_little_endian, little_endian
from dledger.types import MAX_NUMBER

PIECE: Final = 1024
"""A multiple of 8."""
NO_ENTRY: Final = MAX_NUMBER
"""Where the lowest entry stands: there is none."""
CODES: Final[Sequence[TypeCode]] = ("Q", "Q", "I", "I", "I", "I")
_DUE, _ENTRY, _START, _END, _ROW, _GENERATION = range(6)
_WIDTH: Final = sum(array(code).itemsize for code in CODES)
_FASTEST: Final = 1

Columns: TypeAlias = "Sequence[array[int]]"
"""Due, Unix milliseconds; entry, start and end of the payload, and row; generation of the topic."""


class Place(NamedTuple):
    """Where a message lies: entry, start and end of a payload in it, and row."""

    entry: int
    start: int
    end: int
    row: int


class Piece:
    """`PIECE` slots, one after the other, compressed; immutable.

    Attributes:
        first_entry: The lowest entry that one of them lay in when it was sealed or moved.
        generations: The lowest and the highest topic of them.
        columns: Compressed, in the order of `CODES`.
    """

    __slots__ = ("columns", "first_entry", "generations")

    def __init__(
        self, columns: Sequence[bytes], first_entry: int, generations: tuple[int, int]
    ) -> None:
        self.columns, self.first_entry = tuple(columns), first_entry
        self.generations = generations

    @classmethod
    def of(cls, columns: Columns) -> Piece:
        """Return these columns, sealed."""
        packed = [zlib.compress(little_endian(column), _FASTEST) for column in columns]
        topics = columns[_GENERATION]
        return cls(packed, min(columns[_ENTRY]), (min(topics), max(topics)))

    def open(self) -> list[array[int]]:
        """Return the columns. Raises MalformedStateError: a snapshot had others."""
        return [
            from_little_endian(code, _inflate(column, PIECE * array(code).itemsize))
            for code, column in zip(CODES, self.columns, strict=True)
        ]


def _inflate(column: bytes, size_bytes: int) -> bytes:
    try:
        found = zlib.decompressobj().decompress(column, size_bytes + 1)
    except zlib.error as error:
        raise MalformedStateError(f"a piece of held messages: {error}") from error
    if len(found) != size_bytes:
        raise MalformedStateError(f"a piece of held messages with {len(found)} bytes of a column")
    return found


class Bucket:
    """What was ever held for one hour.

    Attributes:
        hour: Hours since 1970.
        edition: Which edition of the state this is of; see `editions`.
        ended_hour: The hour in which the last message went that was held.
        first_due_ms: When the first of all that were ever held was due, Unix milliseconds.
        count: How many slots were given out.
        live: How many of them are held now.
        live_halves: How many of those are halves.
        size_bytes: What the messages that are held now take, about: each that went counted as the
            mean of those that were left.
        paused: Slots below it were held when all were paused, and wait for a word (PAUSE_HELD).
    """

    __slots__ = (
        "_committed",
        "_first_entry",
        "_gone",
        "_halves",
        "_open",
        "_pieces",
        "count",
        "edition",
        "ended_hour",
        "first_due_ms",
        "hour",
        "live",
        "live_halves",
        "paused",
        "size_bytes",
    )

    def __init__(self, hour: int, edition: int = 0) -> None:
        self.hour, self.edition = hour, edition
        self.count = self.live = self.live_halves = self.size_bytes = self.paused = 0
        self.first_due_ms, self.ended_hour = MAX_NUMBER, 0
        self._gone, self._committed, self._halves = bytearray(), bytearray(), bytearray()
        self._pieces: list[Piece] = []
        self._open: list[array[int]] = [array(code) for code in CODES]
        self._first_entry: int | None = NO_ENTRY

    def copy(self, edition: int) -> Bucket:
        """Return a copy, to be changed in place of this one."""
        other = Bucket(self.hour, edition)
        other.count, other.live, other.live_halves = self.count, self.live, self.live_halves
        other.size_bytes, other.paused = self.size_bytes, self.paused
        other.first_due_ms, other.ended_hour = self.first_due_ms, self.ended_hour
        other._gone, other._committed = self._gone[:], self._committed[:]
        other._halves, other._pieces = self._halves[:], self._pieces[:]
        other._open = [column[:] for column in self._open]
        other._first_entry = self._first_entry
        return other

    def add(self, due_ms: int, place: Place, generation: int, kind: Kind, size_bytes: int) -> int:
        """Hold one more message; return its slot."""
        slot = self.count
        for column, value in zip(self._open, (due_ms, *place, generation), strict=True):
            column.append(value)
        self.first_due_ms = min(self.first_due_ms, due_ms)
        self.count += 1
        self.live += 1
        self.size_bytes += size_bytes
        if not slot & 7:
            self._gone.append(0)
            self._committed.append(0)
            if self._halves:
                self._halves.append(0)
        if kind is Kind.HALF:
            if not self._halves:
                self._halves = bytearray(len(self._gone))
            self._halves[slot >> 3] |= 1 << (slot & 7)
            self.live_halves += 1
        if self._first_entry is not None:
            self._first_entry = min(self._first_entry, place.entry)
        if len(self._open[0]) == PIECE:
            self._pieces.append(Piece.of(self._open))
            self._open = [array(code) for code in CODES]
        return slot

    def fate(self, slot: int) -> Fate:
        """Return what became of a slot."""
        if slot >= self.count:
            return Fate.UNKNOWN
        at, bit = slot >> 3, 1 << (slot & 7)
        if not self._gone[at] & bit:
            return Fate.HELD
        return Fate.DELIVERED if self._committed[at] & bit else Fate.CANCELLED

    def kind(self, slot: int) -> Kind:
        """Return why a slot that was given out is held, or was."""
        is_half = self._halves and self._halves[slot >> 3] >> (slot & 7) & 1
        return Kind.HALF if is_half else Kind.TIMER

    def live_among(self, slots: Iterable[int]) -> list[int]:
        """Return those of some slots that are held, in their order."""
        gone = self._gone
        return [slot for slot in slots if not gone[slot >> 3] >> (slot & 7) & 1]

    def of_kind(self, slots: Iterable[int], kind: Kind) -> list[int]:
        """Return those of some slots that were held for this, in their order."""
        halves = self._halves
        if not halves:
            return [*slots] if kind is Kind.TIMER else []
        bit = kind is Kind.HALF
        return [slot for slot in slots if halves[slot >> 3] >> (slot & 7) & 1 == bit]

    def remove(self, slot: int, fate: Fate) -> int:
        """Hold a slot that is held no longer, since it was delivered or cancelled.

        Returns how many bytes it counted.
        """
        at, bit = slot >> 3, 1 << (slot & 7)
        self._gone[at] |= bit
        if fate is Fate.DELIVERED:
            self._committed[at] |= bit
        self.live_halves -= self.kind(slot) is Kind.HALF
        return self._let_go(1)

    def _let_go(self, messages: int) -> int:
        size_bytes = self.size_bytes * messages // self.live
        self.live -= messages
        self.size_bytes -= size_bytes
        self._first_entry = None
        return size_bytes

    def cancel_paused(self) -> tuple[int, int, int]:
        """Cancel the messages that are paused; return how many, how many halves, how many bytes."""
        mask = (1 << self.paused) - 1
        gone = int.from_bytes(self._gone, "little")
        messages = (mask & ~gone).bit_count()
        halves = (mask & ~gone & int.from_bytes(self._halves, "little")).bit_count()
        self.live_halves -= halves
        size_bytes = self._let_go(messages) if messages else 0
        self._gone[:] = (gone | mask).to_bytes(len(self._gone), "little")
        return messages, halves, size_bytes

    @property
    def live_paused(self) -> int:
        """How many messages that are held are paused."""
        mask = (1 << self.paused) - 1
        return (mask & ~int.from_bytes(self._gone, "little")).bit_count()

    # -- where they lie ----------------------------------------------------------------------------

    @property
    def pieces(self) -> int:
        """How many pieces there are; the last one is open, and may be empty."""
        return len(self._pieces) + 1

    def columns(self, piece: int) -> Columns:
        """Return the columns of a piece, which must not be changed."""
        return self._pieces[piece].open() if piece < len(self._pieces) else self._open

    def sealed_piece(self, piece: int) -> Piece | None:
        """Return a piece if it is sealed: as long as it is this one, its columns are the same."""
        return self._pieces[piece] if piece < len(self._pieces) else None

    def message(self, slot: int) -> HeldMessage:
        """Return what a slot says that is held."""
        columns, at = self.columns(slot // PIECE), slot % PIECE
        due_ms, entry, start, end, row, generation = (column[at] for column in columns)
        ref, payload = Ref(self.hour, slot), Payload(entry, start, end)
        return HeldMessage(ref, self.kind(slot), due_ms, payload, row, generation)

    def messages(self, piece: int) -> Iterator[HeldMessage]:
        """Yield what is held in a piece."""
        for slot, row in enumerate(zip(*self.columns(piece), strict=True), piece * PIECE):
            if not self._gone[slot >> 3] >> (slot & 7) & 1:
                due_ms, entry, start, end, number_, generation = row
                ref, payload = Ref(self.hour, slot), Payload(entry, start, end)
                yield HeldMessage(ref, self.kind(slot), due_ms, payload, number_, generation)

    def move(self, places: Mapping[int, Place]) -> None:
        """Let slots that are held lie elsewhere.

        What is gone and lies in the same pieces says from now on that it lies there, too: else it
        would keep its entry from being dropped for ever.
        """
        newest = max(place.entry for place in places.values())
        for piece in sorted({slot // PIECE for slot in places}):
            columns, base = self.columns(piece), piece * PIECE
            for at in range(len(columns[0])):
                place = places.get(base + at)
                if place is not None:
                    for column, value in zip(columns[_ENTRY:_GENERATION], place, strict=True):
                        column[at] = value
                elif self.fate(base + at) is not Fate.HELD:
                    columns[_ENTRY][at] = newest
            if piece < len(self._pieces):
                self._pieces[piece] = Piece.of(columns)
        self._first_entry = None

    def first_entry_of(self, piece: int) -> int:
        """Return an entry that nothing that is held in a piece lies below; `NO_ENTRY`: nothing is.

        It may be lower than need be, by what is gone.
        """
        first = piece * PIECE >> 3
        if piece < len(self._pieces):
            size_bytes = PIECE >> 3
            gone = self._gone.count(0xFF, first, first + size_bytes)
            return NO_ENTRY if gone == size_bytes else self._pieces[piece].first_entry
        rest = len(self._open[0])
        gone = sum(map(int.bit_count, self._gone[first:]))
        return NO_ENTRY if gone == rest else min(self._open[_ENTRY])

    @property
    def first_entry(self) -> int:
        """An entry that nothing that is held lies below, as `first_entry_of` all pieces."""
        if self._first_entry is None:
            self._first_entry = min(map(self.first_entry_of, range(self.pieces)))
        return self._first_entry

    def generations(self, piece: int) -> tuple[int, int]:
        """Return the lowest and the highest topic of a piece; of an empty one 0, 0."""
        if piece < len(self._pieces):
            return self._pieces[piece].generations
        topics = self._open[_GENERATION]
        return (min(topics), max(topics)) if topics else (0, 0)

    # -- snapshots ---------------------------------------------------------------------------------

    def encode(self) -> Iterator[bytes]:
        """Yield the bytes for a snapshot."""
        numbers = self.hour, self.ended_hour, self.first_due_ms, self.count, self.size_bytes
        pieces, halves = len(self._pieces), len(self._halves)
        yield b"".join(map(number, (*numbers, self.paused, pieces, halves)))
        yield bytes(self._gone)
        yield bytes(self._committed)
        yield bytes(self._halves)
        for piece in self._pieces:
            sizes = map(len, piece.columns)
            yield b"".join(map(number, (piece.first_entry, *piece.generations, *sizes)))
            yield from piece.columns
        yield from map(little_endian, self._open)

    @classmethod
    def read(cls, source: Reader) -> Bucket:
        """Read a bucket from a snapshot; pieces stay sealed. Raises MalformedStateError."""
        found = cls(source.number())
        found.ended_hour, found.first_due_ms = source.number(), source.number()
        found.count, found.size_bytes = source.number(1), source.number()
        found.paused, pieces = source.number(high=found.count), source.number()
        halves, bits = source.number(), found.count + 7 >> 3
        if halves not in (0, bits) or not 0 <= found.count - pieces * PIECE < PIECE:
            raise source.malformed(f"{found.count} held messages in {pieces} pieces")
        found._gone, found._committed = bytearray(source.raw(bits)), bytearray(source.raw(bits))
        found._halves = bytearray(source.raw(halves))
        gone, committed, half = (
            int.from_bytes(each, "little")
            for each in (found._gone, found._committed, found._halves)
        )
        if (gone | committed | half) >> found.count or committed & ~gone:
            raise source.malformed(f"{found.count} held messages of which more are gone")
        found.live = found.count - gone.bit_count()
        found.live_halves = (half & ~gone).bit_count()
        for _ in range(pieces):
            first, low, high, *sizes = (source.number() for _ in range(3 + len(CODES)))
            found._pieces.append(Piece([source.raw(size) for size in sizes], first, (low, high)))
        rest = found.count - pieces * PIECE
        found._open = [source.items(code, rest) for code in CODES]
        found._first_entry = None
        return found

    def canonical(self) -> list[object]:
        """Return everything as plain values, equal on nodes that applied the same log."""
        rows = [
            [*message[1:3], *_plain(message.payload), *message[4:]]
            for piece in range(self.pieces)
            for message in self.messages(piece)
        ]
        firsts = [self.first_entry_of(piece) for piece in range(self.pieces)]
        bits = [each.hex() for each in (self._gone, self._committed, self._halves)]
        numbers = self.hour, self.ended_hour, self.first_due_ms, self.count, self.size_bytes
        return [*numbers, self.paused, *bits, firsts, rows]


def _plain(payload: Payload) -> tuple[int, int, int]:
    return payload.index, payload.start, payload.end
