"""What the receives of a group were answered, for an attempt whose answer was lost and asks again.

It is given what it still holds. An attempt that holds nothing any more, because all was acked or
handed out again, never holds anything again: receive ids are not used twice. So it is forgotten,
and it does not show: neither in a snapshot nor in the digest, whenever its room is given back.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from dledger.broker.snapshot_codec import Reader, number, text
from dledger.common.byte_order import little_endian

MAX_ATTEMPTS_REMEMBERED = 1_024
"""Of a group, the newest; a poller needs only its own newest."""
_SWEPT_AT_LEAST: Final = 8
_QUEUE_BITS: Final = 16

QueuePosition = tuple[int, int]
"""(queue id, queue offset)."""
Holds = Callable[[str, int, QueuePosition], bool]
"""Whether a receive (topic, receive id) still has the lease of a position."""


class _Attempt(NamedTuple):
    """One answer.

    Attributes:
        number: The how manieth of its group's it is.
        receive_id: The RECEIVE that it was.
        positions: Offset << 16 | queue id of each message, in the order in which they were given.
    """

    number: int
    receive_id: int
    positions: array[int]


class Attempts:
    """The attempts of one group."""

    __slots__ = ("_known", "_made", "_sweep_at")

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Attempt] = {}
        self._made = 0
        self._sweep_at = _SWEPT_AT_LEAST

    def __len__(self) -> int:
        return len(self._known)

    def copy(self) -> Attempts:
        """Return the same attempts, to be changed by themselves."""
        other = Attempts()
        other._known, other._made = self._known.copy(), self._made
        other._sweep_at = self._sweep_at
        return other

    def remember(
        self,
        topic: str,
        attempt_id: str,
        receive_id: int,
        positions: Sequence[QueuePosition],
        holds: Holds,
    ) -> None:
        """Keep what an attempt was given; those with as many behind them as are kept go."""
        self._made += 1
        self._known.pop((topic, attempt_id), None)
        packed = array("Q", [offset << _QUEUE_BITS | queue_id for queue_id, offset in positions])
        self._known[topic, attempt_id] = _Attempt(self._made, receive_id, packed)
        while next(iter(self._known.values())).number <= self._made - MAX_ATTEMPTS_REMEMBERED:
            del self._known[next(iter(self._known))]
        if len(self._known) > self._sweep_at:
            self._known = dict(self._holding(holds))
            self._sweep_at = max(2 * len(self._known), _SWEPT_AT_LEAST)

    def recall(
        self, topic: str, attempt_id: str, holds: Holds
    ) -> tuple[int, list[QueuePosition]] | None:
        """Return the receive id of an earlier attempt and what it still holds; None: nothing."""
        found = self._known.get((topic, attempt_id))
        held = list(_held(topic, found, holds)) if found is not None else []
        return (found.receive_id, held) if found is not None and held else None

    def _holding(self, holds: Holds) -> Iterator[tuple[tuple[str, str], _Attempt]]:
        """Yield the attempts that hold anything, oldest first."""
        for (topic, attempt_id), attempt in self._known.items():
            if any(True for _ in _held(topic, attempt, holds)):
                yield (topic, attempt_id), attempt

    def encoded(self, holds: Holds) -> Iterator[bytes]:
        """Yield them for a snapshot."""
        holding = list(self._holding(holds))
        yield number(self._made)
        yield number(len(holding))
        for (topic, attempt_id), attempt in holding:
            yield text(topic)
            yield text(attempt_id)
            yield number(attempt.number)
            yield number(attempt.receive_id)
            yield number(len(attempt.positions))
            yield little_endian(attempt.positions)

    @classmethod
    def read(cls, source: Reader) -> Attempts:
        """Take attempts from a snapshot. Raises MalformedStateError."""
        attempts = cls()
        attempts._made = source.number()
        last = max(0, attempts._made - MAX_ATTEMPTS_REMEMBERED)
        for _ in range(source.number(high=MAX_ATTEMPTS_REMEMBERED)):
            key = source.text(), source.text()
            last = source.number(last + 1, attempts._made)
            attempts._known[key] = _Attempt(last, source.number(), source.column("Q"))
        return attempts

    def canonical(self, holds: Holds) -> list[object]:
        """Return them as plain values, equal on nodes that applied the same log."""
        known = [
            [*key, a.number, a.receive_id, list(a.positions)] for key, a in self._holding(holds)
        ]
        return [self._made, known]


def _held(topic: str, attempt: _Attempt, holds: Holds) -> Iterator[QueuePosition]:
    for packed in attempt.positions:
        position = packed & (1 << _QUEUE_BITS) - 1, packed >> _QUEUE_BITS
        if holds(topic, attempt.receive_id, position):
            yield position
