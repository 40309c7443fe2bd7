"""What Admin.Compact lets go, and whether what its caller says is true: pure.

A caller has read the keys of all that the group keeps up to some entry, and says of one queue which
offsets stay. `find_going` cuts that with what is there: it can only let go, and only of what its
caller has seen and is old enough; of tombstones `hold_alone` lets those go whose time is over. Of
that a sample is proved before anything is done (`sample_of`, `judge`), and `due_of` says what is
copied at once; the rest goes when it is next copied. Called by `compactor`.

Why it can do no harm, late, doubled, or half done: a message that has lost to a newer one of its
key has lost for ever, and an offset is never given to another one. What lies in an entry up to the
caller's was there for it to read; what was copied since, it may have missed, and that stays. Of a
tombstone that is the only one of its key this needs one thing of the caller: that it reads from the
oldest entry that the log had when it chose its newest, so that it has missed nothing older.

Who has read a value and goes on reading must find its tombstone, so that has a time of its own to
stay, and this begins when the last older message of its key is gone, not when it was stored. The
log remembers it: the first copy that is made after a caller found a tombstone alone says since when
that is known, and later copies say it again (`rekeep.alone_since`). It stays true: no older message
can come back, and by a newer one a tombstone is beaten like any message.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import nsmallest
from typing import Final, NamedTuple

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.kept_blocks import KeptBlock
from dledger.broker.message import DELETES, TOMBSTONE, is_tombstone
from dledger.broker.produce import ProduceFrame
from dledger.broker.queue_part import QueuePart
from dledger.broker.queue_positions import Position
from dledger.broker.rekeep import alone_since, origins
from dledger.common.offset_set import OffsetSet
from dledger.errors import InvalidArgument
from dledger.replica.rolling import FEW, Alone, Due, loses_half_soon, soon_due
from dledger.types import Entry

MAX_OFFSETS: Final = 1 << 23
"""That one call decides: a bitmap of 1 MiB."""
MAX_SAMPLE: Final = 256
"""Messages that are proved for one call, at most."""
_ONE_IN: Final = 100
_NUMBERS: Final = struct.Struct("<32H")
_BELOW: Final = (1 << 16) // _ONE_IN


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a caller says of a queue.

    Attributes:
        as_of_index, as_of_chain: The entry up to which it has seen all that the group keeps, and
            that record's chain CRC.
        first, to: Queue offsets ``[first, to)`` are decided.
        stays: Which of them stay, as `OffsetSet.unpack` reads it.
        alone: Which of the others are tombstones and the only messages of their keys, likewise;
            empty: none.
        again_in_ms: It comes again in so much time; 0: that is not known.
        proofs: Of each offset that is to go, the newer one of its key; itself, if it is alone.
    """

    as_of_index: int
    as_of_chain: int
    topic: str
    generation: int
    queue_id: int
    first: int
    to: int
    stays: bytes
    alone: bytes = b""
    again_in_ms: int = 0
    proofs: Mapping[int, int] = field(default_factory=dict)

    def check(self) -> None:
        """Raise InvalidArgument if its numbers cannot be right, whatever the group has."""
        if not 0 <= self.first < self.to:
            raise InvalidArgument(f"[{self.first}, {self.to}) is no range of queue offsets")
        if self.to - self.first > MAX_OFFSETS:
            raise InvalidArgument(
                f"{self.to - self.first} offsets in one call, of {MAX_OFFSETS} at most: say it in "
                "parts"
            )
        for name, value in (
            ("as_of_index", self.as_of_index),
            ("again_in_ms", self.again_in_ms),
        ):
            if value < 0:
                raise InvalidArgument(f"{name} is {value}, must not be negative")

    def digest(self, secret: bytes) -> bytes:
        """Return a keyed hash of all but the proofs."""
        said = (
            *(self.as_of_index, self.as_of_chain, self.topic, self.generation, self.queue_id),
            *(self.first, self.to, self.again_in_ms, self.stays, self.alone),
        )
        return blake2b(repr(said).encode(), key=secret).digest()

    def lone_offsets(self) -> OffsetSet:
        """Return the offsets that are said to be alone. Raises InvalidArgument."""
        if not self.alone:
            return OffsetSet(self.first, self.to)
        return OffsetSet.unpack(self.first, self.to, self.alone)


# -- what goes -----------------------------------------------------------------------------------


def may_be_copied(claim: Claim, stays: OffsetSet, block: KeptBlock, reached: int) -> bool:
    """Whether this call may copy a block; told without opening it, which costs most of a call.

    It loses no more rows than its offsets are said to go: what has gone already may be among them.
    One that by that is not due soon, and keeps more than a few rows, is neither due (`due_of`) nor
    goes along with a neighbour.

    Args:
        claim: What is said; *stays* is its bitmap.
        stays: The offsets that stay.
        block: The block.
        reached: The entry that retention comes to before the caller does.
    """
    gone = stays.count_missing(block.first, block.end)
    return (
        loses_half_soon(block, gone)
        or block.length - gone <= FEW
        or block.entry < soon_due(reached, claim.as_of_index)
    )


def find_going(
    claim: Claim,
    stays: OffsetSet,
    blocks: Iterable[KeptBlock],
    part: QueuePart | None,
    *,
    read: Callable[[int], Entry],
    is_old: Callable[[int], bool],
) -> OffsetSet:
    """Return the offsets that go. May be called from any thread.

    Args:
        claim: What is said; *stays* is its bitmap.
        stays: The offsets that stay.
        blocks: The queue's blocks.
        part: The queue's messages in the log, of entries up to the claim's at most.
        read: Returns an entry.
        is_old: Whether a message that was stored then (Unix ms) is old enough to go.

    Raises:
        DledgerError: An entry cannot be read.
    """
    going = OffsetSet(claim.first, claim.to)
    for block in blocks:
        is_seen = block.entry <= claim.as_of_index
        if is_seen and block.first < claim.to and block.end > claim.first:
            _add_of_block(going, stays, block, read=read, is_old=is_old)
    if part is not None:
        low, high = part.entries
        end = end_below(part, first_young(low, high + 1, read=read, is_old=is_old))
        going.add_missing(part.first, end, stays)
    return going


def _add_of_block(
    going: OffsetSet,
    stays: OffsetSet,
    block: KeptBlock,
    *,
    read: Callable[[int], Entry],
    is_old: Callable[[int], bool],
) -> None:
    offsets = block.offsets()
    said = stays.rows_missing(offsets)
    if said and not is_old(block.newest_ms):
        rows = origins(read(block.entry), block.start, block.stop)
        said = [row for row in said if is_old(rows[row].stored_at_ms)]
    for row in said:
        going.add(offsets[row])


def hold_alone(
    going: OffsetSet,
    alone: OffsetSet,
    blocks: Iterable[KeptBlock],
    *,
    read: Callable[[int], Entry],
    is_over: Callable[[int], bool],
) -> OffsetSet:
    """Take those lone tombstones out of *going* whose time is not over; return the new ones.

    These are the ones of which no copy says yet that they are alone: their time begins with the
    next copy. May be called from any thread.

    Args:
        going: What may go by what was said.
        alone: What is said to be a lone tombstone.
        blocks: The queue's blocks. What lies in the log's runs was never copied, so it is new.
        read: Returns an entry.
        is_over: Whether a tombstone that is known to be alone since then (Unix ms) may go.

    Raises:
        DledgerError: An entry cannot be read.
    """
    new = OffsetSet(going.first, going.to, (offset for offset in alone if offset in going))
    for offset in new:
        going.discard(offset)
    for block in blocks:
        if not new.count(block.first, block.end):
            continue
        offsets = block.offsets()
        for row, since_ms in alone_since(read(block.entry), block.start, block.stop).items():
            offset = offsets[row]
            if offset not in new:
                continue
            new.discard(offset)
            if is_over(since_ms):
                going.add(offset)
    return new


def first_young(
    low: int, high: int, *, read: Callable[[int], Entry], is_old: Callable[[int], bool]
) -> int:
    """Return the first entry in ``[low, high)`` whose messages are too young; *high* if none is.

    The log's time never goes back. Raft's own entries have none, and no messages.
    """
    while low < high:
        middle = at = (low + high) // 2
        while not (stored_at_ms := read(at).timestamp_ms) and at > low:
            at -= 1
        if not stored_at_ms or is_old(stored_at_ms):
            low = middle + 1
        else:
            high = at
    return low


def end_below(part: QueuePart, index: int) -> int:
    """Return the offset behind the last message in entries below *index*; `first` if none is."""
    end = part.first
    for columns in part.columns():
        at = bisect_left(columns.indexes, index)
        if at < len(columns.indexes):
            return columns.firsts[at]
        end = columns.end
    return end


def due_of(
    claim: Claim,
    going: OffsetSet,
    blocks: Iterable[KeptBlock],
    part: QueuePart | None,
    reached: int,
    *,
    new: Alone,
) -> Due:
    """Return what is copied at once of a queue, and goes with it. May be called from any thread.

    Blocks that lose at least half of their rows, which stand for their bytes; blocks, and the
    log's front, that retention reaches before the caller comes again: it would copy them whole, and
    say of none of the tombstones that they are alone.

    Args:
        claim: What is said.
        going: What of it goes.
        blocks: The queue's blocks.
        part: Its messages in the log, of entries up to the claim's at most.
        reached: The entry that retention comes to before the caller does.
        new: The lone tombstones of which no copy says it yet.
    """
    gone_of, due = dict[KeptBlock, int](), set[KeptBlock]()
    for block in blocks:
        gone = going.count(block.first, block.end)
        if gone:
            gone_of[block] = gone
        is_reached = block.entry < reached and (gone or new.offsets.count(block.first, block.end))
        if is_reached or (gone and 2 * gone >= block.length):
            due.add(block)
    to = last = 0
    if part is not None:
        end = end_below(part, reached)
        found = (each.last(part.first, end) for each in (going, new.offsets))
        last = max((each + 1 for each in found if each is not None), default=0)
        to = last or part.first
        going = going.below(to)
    return Due(
        is_block=due.__contains__,
        before=reached,
        soon=soon_due(reached, claim.as_of_index),
        to=to,
        goes=going,
        gone_of=gone_of,
        alone=new if due or last else Alone(),
    )


# -- whether it is true ----------------------------------------------------------------------------


def sample_of(claim: Claim, going: OffsetSet, secret: bytes) -> list[int]:
    """Return the messages that are to be proved, ascending: 1 %, at least one if any goes.

    The same of the same claim, whatever has gone since; nobody without the *secret* knows them
    before. May be called from any thread.
    """
    seed = claim.digest(secret)
    numbered = _number_each(going, seed)
    chosen = nsmallest(MAX_SAMPLE, numbered)
    few = [offset for number, offset in chosen if number < _BELOW]
    return sorted(few or [offset for _, offset in chosen[:1]])


def _number_each(going: OffsetSet, seed: bytes) -> Iterable[tuple[int, int]]:
    """Yield a keyed hash of 16 bits of each offset, and the offset: a digest has 32 of them."""
    numbers, of = tuple[int, ...](), -1
    for offset in going:
        if offset >> 5 != of:
            of = offset >> 5
            numbers = _NUMBERS.unpack(blake2b(of.to_bytes(8, "little"), key=seed).digest())
        yield numbers[offset & 31], offset


class Row(NamedTuple):
    """What a stored message says of itself: its keys, and whether it is a tombstone."""

    keys: tuple[str, ...]
    is_tombstone: bool


def read_row(position: Position, read: Callable[[int], Entry]) -> Row | None:
    """Return what a message says; None if it cannot be decoded. May be called from any thread.

    Raises:
        DledgerError: Its entry cannot be read.
    """
    index, start, end = position.payload.index, position.payload.start, position.payload.end
    entry = read(index)
    try:
        message = ProduceFrame(entry.data, start, end).message(position.row)
    except MalformedCommandError:
        return None
    return Row(message.keys, is_tombstone(message.properties))


def judge(
    claim: Claim,
    stays: OffsetSet,
    alone: OffsetSet,
    sample: Sequence[int],
    rows: Mapping[int, Row | None],
    *,
    end: int,
) -> list[int]:
    """Return those of the sampled messages that are not proved: they stay.

    Args:
        claim: What is said, with a proof of each sampled message.
        stays: Its bitmap of what stays.
        alone: Its bitmap of lone tombstones.
        sample: What `sample_of` returned.
        rows: Each message that is there of the sampled ones and of those that are said to be newer.
            Of others nothing is known: one that is gone by now is no lie, and proves nothing.
        end: The offset that the queue's next message gets.

    Raises:
        InvalidArgument: The first lie, by name.
    """
    unproved = []
    for offset in sample:
        by = claim.proofs[offset]
        lie = _false_order(offset, by, stays, end, is_alone=offset in alone) or _false_rows(
            rows.get(offset), rows.get(by), is_alone=offset in alone
        )
        if lie:
            raise InvalidArgument(
                f"what is said of topic {claim.topic!r}, queue {claim.queue_id} is not true, and "
                f"nothing was done: offset {offset} is to go for offset {by}, but {lie}"
            )
        if rows.get(offset) is None or rows.get(by) is None:
            unproved.append(offset)
    return unproved


def _false_order(offset: int, by: int, stays: OffsetSet, end: int, *, is_alone: bool) -> str:
    """Return what is wrong with the offsets of a proof; empty: nothing."""
    if not offset <= by < end:
        return f"offset {by} is not newer, or there is none"
    if is_alone != (by == offset):
        return f"it is {'' if is_alone else 'not '}said to be the only message of its key"
    if by != offset and stays.first <= by < stays.to and by not in stays:
        return f"offset {by} is to go as well, so that nothing of its key is left"
    return ""


def _false_rows(mine: Row | None, newer: Row | None, *, is_alone: bool) -> str:
    """Return what is wrong with the messages of a proof; empty: nothing, or they are gone."""
    if mine is None or newer is None:
        return ""
    if len(mine.keys) != 1 or mine.keys != newer.keys:
        return f"their keys are {list(mine.keys)} and {list(newer.keys)}"
    if is_alone and not mine.is_tombstone:
        return f"it is no tombstone: its property {TOMBSTONE} is not {DELETES!r}"
    return ""
