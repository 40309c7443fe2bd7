"""What members' filters passed over, kept for the other filters of their group.

A member takes the messages that its filter names and passes over the rest. If another filter of the
group, one that is in use, names a message, then passing over it must not mean that it is done:
`KeptMessages` has these of one queue. There are two kinds. *Passed* messages were never delivered:
a queue's offset went past them. *Aside* are delivered ones whose lease has ended while a member
asked that does not name them; their leases stay with `QueueDeliveries`, only their turn is here.

Both lie under the tag's code. But what was passed, and no filter names by its tag while one for all
tags takes it, lies under `OTHERS`, however many tags there are: so there are no more columns of
passed messages than named tags, and what came before a filter's first use is not for it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace, nsmallest
from itertools import chain, pairwise
from operator import le, lt
from typing import Final, TypeAlias

from dledger.broker.filter_room import COLUMN_BYTES, RUN_BYTES, FilterRoom
from dledger.broker.snapshot_codec import Reader, ascends, column

MAX_KEPT_RUNS: Final = 65_536
"""Runs that are kept of a queue for a group; then the faster filter waits for the slower one."""
OTHERS: Final = -1
"""The key of what only a filter for all tags names; no tag has this code."""

Codes: TypeAlias = frozenset[int] | None
"""The tag codes that a filter names; None: it takes every message."""

_FREED_AT: Final = 1_024
"""Runs taken from a column before the memory of its front is freed."""


class _Column:
    """The passed runs of one key: ascending, apart or touching, and taken from the front only."""

    __slots__ = ("_at", "_ends", "_firsts", "messages")

    def __init__(self, firsts: Iterable[int] = (), ends: Iterable[int] = ()) -> None:
        self._firsts, self._ends = array("Q", firsts), array("Q", ends)
        self._at = 0
        self.messages = sum(self._ends) - sum(self._firsts)

    def __len__(self) -> int:
        return len(self._firsts) - self._at

    @property
    def first(self) -> int:
        """The lowest offset; there must be one."""
        return self._firsts[self._at]

    def copy(self) -> _Column:
        return _Column(self._firsts[self._at :], self._ends[self._at :])

    def add(self, first: int, end: int) -> bool:
        """Add a run behind all others; return False if it only made the last one longer."""
        self.messages += end - first
        if len(self) and self._ends[-1] == first:
            self._ends[-1] = end
            return False
        self._firsts.append(first)
        self._ends.append(end)
        return True

    def pop(self, limit: int) -> range:
        """Remove and return up to *limit* messages of the first run."""
        first = self.first
        taken = range(first, min(first + limit, self._ends[self._at]))
        self.drop_before(taken.stop)
        return taken

    def drop_before(self, first: int) -> None:
        """Remove what lies below *first*."""
        at, count = self._at, len(self._firsts)
        while at < count and self._ends[at] <= first:
            self.messages -= self._ends[at] - self._firsts[at]
            at += 1
        if at < count and self._firsts[at] < first:
            self.messages -= first - self._firsts[at]
            self._firsts[at] = first
        self._at = at
        if at >= _FREED_AT and 2 * at > count:
            del self._firsts[:at], self._ends[:at]
            self._at = 0

    def has(self, offset: int) -> bool:
        at = bisect_right(self._firsts, offset, self._at) - 1
        return at >= self._at and offset < self._ends[at]

    def runs(self) -> tuple[array[int], array[int]]:
        """Return the first offsets, and the offsets behind the last ones."""
        return self._firsts[self._at :], self._ends[self._at :]


class KeptMessages:
    """What is kept of one (group, topic, queue id). Attributes: runs: how many, of all keys."""

    __slots__ = ("_aside", "_code_of", "_passed", "_room", "runs")

    def __init__(self, room: FilterRoom) -> None:
        self._room = room
        self._passed: dict[int, _Column] = {}
        self._aside: dict[int, set[int]] = {}
        self._code_of: dict[int, int] = {}
        self.runs = 0

    def __bool__(self) -> bool:
        return bool(self._passed or self._aside)

    def copy(self) -> KeptMessages:
        """Return a copy to be changed, which takes the original's place in the sums."""
        other = KeptMessages(self._room)
        other._passed = {key: column.copy() for key, column in self._passed.items()}
        other._aside = {key: offsets.copy() for key, offsets in self._aside.items()}
        other._code_of, other.runs = self._code_of.copy(), self.runs
        return other

    def leave(self) -> None:
        """Take these out of the sums: their topic or group is deleted."""
        self._room.kept_bytes -= RUN_BYTES * self.runs + COLUMN_BYTES * len(self._passed)

    @property
    def has_room(self) -> bool:
        """Whether one more run may be kept."""
        return self.runs < MAX_KEPT_RUNS and not self._room.is_full

    @property
    def first(self) -> int | None:
        """The lowest passed offset; None if there is none."""
        return min((column.first for column in self._passed.values()), default=None)

    def passed(self, codes: Codes) -> int:
        """Return how many passed messages a filter names."""
        return sum(self._passed[key].messages for key in _named(self._passed, codes))

    def aside(self, codes: Codes) -> int:
        """Return how many messages that were put aside a filter names."""
        return sum(len(self._aside[key]) for key in _named(self._aside, codes))

    def passed_by_key(self) -> Iterator[tuple[int, int]]:
        """Yield (key, how many passed messages lie under it)."""
        for key, found in self._passed.items():
            yield key, found.messages

    def has_passed(self, offset: int) -> bool:
        """Whether a message was passed over and never delivered."""
        return any(column.has(offset) for column in self._passed.values())

    # -- putting in ------------------------------------------------------------------------------

    def keep(self, key: int, first: int, end: int) -> None:
        """Keep messages ``[first, end)``, all of which are newer than any that are kept."""
        found = self._passed.get(key)
        if found is None:
            found = self._passed[key] = _Column()
            self._room.kept_bytes += COLUMN_BYTES
        if found.add(first, end):
            self._count(1)

    def put_aside(self, code: int, offset: int) -> None:
        """Keep a message of a tag whose lease has ended."""
        self._aside.setdefault(code, set()).add(offset)
        self._code_of[offset] = code

    # -- taking out ------------------------------------------------------------------------------

    def take_back(self, offset: int) -> None:
        """Forget that a message was put aside, if it was: its lease goes on, or it is done."""
        code = self._code_of.pop(offset, None)
        if code is not None:
            self._aside[code].discard(offset)
            if not self._aside[code]:
                del self._aside[code]

    def first_aside(self, codes: Codes, limit: int) -> list[int]:
        """Return the lowest offsets, up to *limit*, that were put aside and a filter names."""
        named = [self._aside[key] for key in _named(self._aside, codes)]
        return nsmallest(limit, chain.from_iterable(named)) if named else []

    def take_passed(self, codes: Codes, limit: int) -> list[int]:
        """Remove and return the lowest passed offsets, up to *limit*, that a filter names."""
        heads = [(self._passed[key].first, key) for key in _named(self._passed, codes)]
        heapify(heads)
        taken: list[int] = []
        while heads and len(taken) < limit:
            _, key = heads[0]
            found = self._passed[key]
            before = len(found)
            taken += found.pop(limit - len(taken))
            self._count(len(found) - before)
            if found:
                heapreplace(heads, (found.first, key))
            else:
                heappop(heads)
                self._drop(key)
        return taken

    def drop_before(self, first: int) -> None:
        """Forget passed messages below *first*, which their queue has dropped."""
        for key, found in list(self._passed.items()):
            before = len(found)
            found.drop_before(first)
            self._count(len(found) - before)
            if not found:
                self._drop(key)

    def drop_unnamed(self, is_named: Callable[[int], bool]) -> tuple[int, list[int]]:
        """Forget passed messages whose key no filter names any more.

        Returns:
            How many they were, and the offsets of those put aside that no filter names, which the
            caller forgets.
        """
        gone = 0
        for key in [key for key in self._passed if not is_named(key)]:
            gone += self._passed[key].messages
            self._count(-len(self._passed[key]))
            self._drop(key)
        return gone, [o for key, found in self._aside.items() if not is_named(key) for o in found]

    def _drop(self, key: int) -> None:
        del self._passed[key]
        self._room.kept_bytes -= COLUMN_BYTES

    def _count(self, runs: int) -> None:
        self.runs += runs
        self._room.kept_bytes += RUN_BYTES * runs

    # -- as bytes and values ---------------------------------------------------------------------

    def encoded(self) -> Iterator[bytes]:
        """Yield the bytes for a snapshot: `OTHERS`, then by code: runs, and what was put aside."""
        keys = sorted({*self._passed, *self._aside} - {OTHERS})
        yield from column("Q", len(keys), keys)
        for key in (OTHERS, *keys):
            firsts, ends = self._passed[key].runs() if key in self._passed else _NONE
            aside = sorted(self._aside.get(key, ()))
            yield from column("Q", len(firsts), firsts)
            yield from column("Q", len(ends), ends)
            yield from column("Q", len(aside), aside)

    @classmethod
    def read(
        cls,
        source: Reader,
        room: FilterRoom,
        *,
        first: int,
        end: int,
        aside: set[int],
        is_named: Callable[[int], bool],
    ) -> KeptMessages:
        """Read what is kept from a snapshot.

        Args:
            source: The snapshot.
            room: What it counts in.
            first: The oldest offset that the queue keeps.
            end: The offset behind the newest that was passed over.
            aside: The offsets whose leases say that they were put aside.
            is_named: Whether a live filter names a key.

        Raises:
            MalformedStateError: It cannot be so.
        """
        kept, codes = cls(room), source.column("Q")
        if not ascends(codes, 1 << 64):
            raise source.malformed("codes of kept messages that do not ascend")
        for key in (OTHERS, *codes):
            firsts, ends = source.column("Q"), source.column("Q")
            offsets = source.column("Q")
            if (firsts or offsets) and not is_named(key):
                raise source.malformed(f"messages kept under {key}, which no filter names")
            if not _are_runs(firsts, ends, first, end):
                raise source.malformed(f"kept runs outside [{first}, {end})")
            if firsts:
                kept._passed[key] = _Column(firsts, ends)
                room.kept_bytes += COLUMN_BYTES
                kept._count(len(firsts))
            for offset in offsets:
                kept.put_aside(key, offset)
            is_empty = not firsts and not offsets
            if not ascends(offsets, end) or (offsets if key == OTHERS else is_empty):
                raise source.malformed(f"kept messages under {key} that are none, or no set")
        put_aside = sum(map(len, kept._aside.values()))
        if put_aside != len(aside) or kept._code_of.keys() != aside:
            raise source.malformed("leases and what was put aside do not agree")
        spans = sorted(chain.from_iterable(zip(*one.runs(), strict=True) for one in kept._columns))
        if kept.runs > MAX_KEPT_RUNS or not all(a[1] <= b[0] for a, b in pairwise(spans)):
            raise source.malformed(f"{kept.runs} kept runs, too many or some twice")
        return kept

    @property
    def _columns(self) -> Iterable[_Column]:
        return self._passed.values()

    def canonical(self) -> list[object]:
        """Return everything as plain values, in one order on every node."""
        passed = [[key, *map(list, found.runs())] for key, found in sorted(self._passed.items())]
        return [passed, [[key, sorted(found)] for key, found in sorted(self._aside.items())]]


_NONE: Final[tuple[array[int], array[int]]] = (array("Q"), array("Q"))


def _named(kept: dict[int, _Column] | dict[int, set[int]], codes: Codes) -> Iterable[int]:
    """Return the keys under which there is something that a filter names."""
    return tuple(kept) if codes is None else kept.keys() & codes


def _are_runs(firsts: array[int], ends: array[int], low: int, high: int) -> bool:
    """Whether these are runs, apart from each other, within ``[low, high)``."""
    return len(firsts) == len(ends) and (
        not firsts
        or (
            low <= firsts[0]
            and ends[-1] <= high
            and all(map(lt, firsts, ends))
            and all(map(le, ends, firsts[1:]))
        )
    )
