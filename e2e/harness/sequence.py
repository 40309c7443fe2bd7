"""Messages that can be told apart, and what became of them: lost, doubled, out of order. Pure.

A body begins with its batch's number, its row there, and the batch's length; the rest fills it up.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_HEAD: Final = struct.Struct("<QHH")
HEAD_BYTES: Final = _HEAD.size
_ACKED: Final = 1
_SEEN: Final = 2


def lost(acked: Iterable[str], *places: Collection[str]) -> list[str]:
    """Return the acknowledged messages that one of *places* does not have."""
    return sorted(key for key in acked if not all(key in place for place in places))


def stored_twice(copies: Mapping[str, int]) -> list[str]:
    """Return the messages that are in the log more than once, by how often each is."""
    return sorted(key for key, count in copies.items() if count > 1)


def numbered(number: int, rows: int, filler: bytes) -> list[bytes]:
    """Return the bodies of batch *number*: each a head of 12 bytes, then *filler*."""
    return [_HEAD.pack(number, row, rows) + filler for row in range(rows)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceFindings:
    """What the audit says; batches, but for *messages*.

    Attributes:
        acked: Acknowledged ones.
        lost: Acknowledged, and not found.
        duplicates: Found more than once.
        out_of_order: Found behind a later one of the same queue, or with rows amiss.
        messages: How many were read.
    """

    acked: int
    lost: int
    duplicates: int
    out_of_order: int
    messages: int


class SequenceAudit:
    """Batches of one topic, as they are acknowledged and as they are read; a byte for each.

    Batches to one queue are numbered in the order in which they were given to the producer.
    """

    def __init__(self) -> None:
        self._states = bytearray()
        self._last: dict[int, tuple[int, int, int]] = {}
        self._duplicates = self._out_of_order = self._messages = 0

    def acked(self, number: int) -> None:
        """Take note that batch *number* was acknowledged."""
        self._mark(number, _ACKED)

    def read(self, queue_id: int, bodies: Sequence[bytes]) -> None:
        """Take the next messages of a queue, in its order."""
        self._messages += len(bodies)
        for body in bodies:
            self._read_one(queue_id, *_HEAD.unpack_from(body))

    def _read_one(self, queue_id: int, number: int, row: int, rows: int) -> None:
        last, last_row, last_rows = self._last.get(queue_id, (-1, 0, 1))
        self._last[queue_id] = (number, row, rows)
        if number == last and row == last_row + 1:
            pass
        elif row == 0 and self._state(number) & _SEEN:
            self._duplicates += 1
        elif row or number < last or last_row + 1 != last_rows:
            self._out_of_order += 1
        if row + 1 == rows:
            self._mark(number, _SEEN)

    def _state(self, number: int) -> int:
        return self._states[number] if number < len(self._states) else 0

    def _mark(self, number: int, flag: int) -> None:
        if number >= len(self._states):
            self._states.extend(bytes(number + 1 - len(self._states)))
        self._states[number] |= flag

    @property
    def missing(self) -> int:
        """How many acknowledged batches were not read yet."""
        return self._states.count(_ACKED)

    def found(self) -> SequenceFindings:
        """Return the verdict on what was acknowledged and read so far."""
        lost = self.missing
        return SequenceFindings(
            acked=lost + self._states.count(_ACKED | _SEEN),
            lost=lost,
            duplicates=self._duplicates,
            out_of_order=self._out_of_order,
            messages=self._messages,
        )
