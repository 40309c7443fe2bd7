"""The halves of transactions that have no end yet: since when, and when their producers are asked.

A half is a held message (`held_messages`). Whoever leads asks a producer of its topic what became
of the transaction; how often that was, and when it is next, is part of the replicated state
(CHECK_HELD), so that a new leader goes on where the last one was. A half that nobody ends stays,
and is told of; it is never dropped.

Kept in parts of neighbouring slots, which snapshots share (`editions`). Owned by `held_messages`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from dledger.broker.editions import Edition
from dledger.broker.held_refs import Ref
from dledger.broker.snapshot_codec import Encoded, Reader, column, number
from dledger.errors import LimitReached

MAX_OPEN: Final = 1 << 16
"""Of one topic."""
MAX_OPEN_IN_ALL: Final = 1 << 20
"""Of all topics together; some 200 MB."""
_PART_BITS: Final = 10
_MOST_CHECKS: Final = (1 << 32) - 1


class OpenHalf(NamedTuple):
    """One half without an end.

    Attributes:
        generation: Its topic.
        since_ms: When it was held, in the log's time, Unix milliseconds.
        checks: How often its producers were asked.
        next_ms: When they are asked next, by the group's date.
    """

    generation: int
    since_ms: int
    checks: int
    next_ms: int


_Key: TypeAlias = tuple[int, int]


class _Part:
    """Those of neighbouring slots of one hour, by slot, in the order in which they were held."""

    __slots__ = ("edition", "halves")

    def __init__(self, edition: int, halves: dict[int, OpenHalf]) -> None:
        self.edition, self.halves = edition, halves


class OpenHalves:
    """All of them, by name; `len` is their number."""

    def __init__(self, edition: Edition) -> None:
        self._edition = edition
        self._parts: dict[_Key, _Part] = {}
        self._of: Counter[int] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, ref: Ref) -> OpenHalf | None:
        """Return a half; None: it has an end, or never was."""
        part = self._parts.get(_key(ref))
        return None if part is None else part.halves.get(ref.slot)

    def items(self) -> Iterator[tuple[Ref, OpenHalf]]:
        """Yield all of them, by name."""
        for hour, part in sorted(self._parts):
            for slot, half in self._parts[hour, part].halves.items():
                yield Ref(hour, slot), half

    def of_topic(self, generation: int) -> int:
        """Return how many there are of a topic."""
        return self._of[generation]

    @property
    def oldest_ms(self) -> int | None:
        """Since when the oldest is open, Unix milliseconds; None: there is none."""
        firsts = (next(iter(part.halves.values())) for part in self._parts.values())
        return min((half.since_ms for half in firsts), default=None)

    # -- changes -----------------------------------------------------------------------------------

    def check_room(self, generation: int, more: int) -> None:
        """Refuse *more* of a topic if they are too many.

        Raises:
            LimitReached: So many have no end.
        """
        of_topic = self._of[generation]
        if of_topic + more > MAX_OPEN:
            raise LimitReached(
                f"{of_topic} transactions of the topic have no end yet, and {more} more are above "
                f"the limit of {MAX_OPEN}"
            )
        if self._count + more > MAX_OPEN_IN_ALL:
            raise LimitReached(
                f"{self._count} transactions have no end yet, and {more} more are above the limit "
                f"of {MAX_OPEN_IN_ALL}"
            )

    def add(self, ref: Ref, half: OpenHalf) -> None:
        """Note a half that is held from now on, behind those of its hour."""
        self._own(_key(ref)).halves[ref.slot] = half
        self._of[half.generation] += 1
        self._count += 1

    def remove(self, ref: Ref) -> None:
        """Forget a half that has an end."""
        key = _key(ref)
        halves = self._own(key).halves
        generation = halves.pop(ref.slot).generation
        if not halves:
            del self._parts[key]
        self._of[generation] -= 1
        if not self._of[generation]:
            del self._of[generation]
        self._count -= 1

    def remove_below(self, hour: int, slot: int) -> None:
        """Forget those of an hour below a slot."""
        keys = [key for key in self._parts if key[0] == hour and key[1] << _PART_BITS < slot]
        for key in keys:
            for each in [each for each in self._parts[key].halves if each < slot]:
                self.remove(Ref(hour, each))

    def check(self, ref: Ref, next_ms: int) -> int:
        """Note that producers are asked about a half now; return how often that was by now.

        0: it is none without an end.
        """
        half = self.get(ref)
        if half is None:
            return 0
        checks = min(half.checks + 1, _MOST_CHECKS)
        self._own(_key(ref)).halves[ref.slot] = half._replace(checks=checks, next_ms=next_ms)
        return checks

    def _own(self, key: _Key) -> _Part:
        """Return a part, to be changed."""
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = _Part(self._edition.number, {})
        elif part.edition != self._edition.number:
            part = self._parts[key] = _Part(self._edition.number, part.halves.copy())
        return part

    # -- snapshots ---------------------------------------------------------------------------------

    def freeze(self) -> Encoded:
        """Return a function that encodes the present ones; it may be called from any thread."""
        return partial(_encode, {key: part.halves for key, part in self._parts.items()})

    def read(self, source: Reader) -> None:
        """Read all from a snapshot into this empty object. Raises MalformedStateError."""
        count, last = source.number(high=MAX_OPEN_IN_ALL), -1
        names, generations = source.column("Q", count), source.column("I", count)
        since, checks = source.column("Q", count), source.column("I", count)
        for name, *half in zip(
            names, generations, since, checks, source.column("Q", count), strict=True
        ):
            if name <= last:
                raise source.malformed("open halves that do not ascend")
            last = name
            self.add(Ref.unpack(name), OpenHalf(*half))

    def canonical(self) -> list[object]:
        """Return everything as plain values, in one order on every node."""
        return [[ref.number, *half] for ref, half in self.items()]


def _key(ref: Ref) -> _Key:
    return ref.hour, ref.slot >> _PART_BITS


def _encode(parts: dict[_Key, dict[int, OpenHalf]]) -> Iterator[bytes]:
    rows = [
        (Ref(key[0], slot).number, *half)
        for key in sorted(parts)
        for slot, half in parts[key].items()
    ]
    names, generations, since, checks, next_ms = zip(*rows, strict=True) if rows else ([],) * 5
    yield number(len(rows))
    yield from column("Q", len(rows), names)
    yield from column("I", len(rows), generations)
    yield from column("Q", len(rows), since)
    yield from column("I", len(rows), checks)
    yield from column("Q", len(rows), next_ms)
