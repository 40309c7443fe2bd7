"""Results of a group's recent receives, so that a client whose response was lost can ask again.

An attempt that is repeated gets the messages that it still holds. Receive ids are never reused, so
an attempt whose messages were all acked or redelivered can never hold any again. It is dropped, and
appears neither in a snapshot nor in the digest, whenever its memory is freed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from dledger.broker.snapshot_codec import Reader, number, text
from dledger.common.byte_order import little_endian

MAX_ATTEMPTS_REMEMBERED = 1_024
"""How many of its newest attempts a group keeps; a poller only ever repeats its last one."""
_SWEPT_AT_LEAST: Final = 8
_QUEUE_BITS: Final = 16

QueuePosition = tuple[int, int]
"""(queue id, queue offset)."""
Holds = Callable[[str, int, QueuePosition], bool]
"""Returns whether a receive (topic, receive id) still holds the lease of a position."""


class _Attempt(NamedTuple):
    """The result of one receive.

    Attributes:
        number: Its sequence number within the group.
        receive_id: The id of the RECEIVE.
        positions: Offset << 16 | queue id of each message, in the order of delivery.
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
        """Return an independent copy."""
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
        """Keep the messages given to an attempt; drop attempts beyond the newest ones kept."""
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
        """Return an earlier attempt's receive id and what it still holds; None if nothing."""
        found = self._known.get((topic, attempt_id))
        held = list(_held(topic, found, holds)) if found is not None else []
        return (found.receive_id, held) if found is not None and held else None

    def _holding(self, holds: Holds) -> Iterator[tuple[tuple[str, str], _Attempt]]:
        """Yield the attempts that still hold messages, oldest first."""
        for (topic, attempt_id), attempt in self._known.items():
            if any(True for _ in _held(topic, attempt, holds)):
                yield (topic, attempt_id), attempt

    def encoded(self, holds: Holds) -> Iterator[bytes]:
        """Yield the attempts' bytes for a snapshot."""
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
        """Read attempts from a snapshot. Raises MalformedStateError."""
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
