"""What a held message is called, and what may become of it.

A held message is in the log and in no queue yet: its time has not come (a timer), or its producer
has not said yet whether it is to be delivered (a half of a transaction). It is called by the hour
of the time that it is due, and a *slot*: it is the slot-th message ever held for that hour. That is
said when PRODUCE_HELD is applied, is never said of another message, and stays true wherever the
message is copied to; so handles of clients and the deduplication window may keep it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from dledger.broker.queue_positions import Payload

HOUR_MS: Final = 3_600_000
HELD_QUEUE: Final = 0xFFFF
"""Where queue ids stand, that of a held message: its queue offset is its packed ref."""
SLOT_BITS: Final = 28
HOUR_BITS: Final = 20
"""Hours since 1970: up to the year 2089."""


class Kind(IntEnum):
    """Why a message is held; numbers are in the log."""

    TIMER = 1
    """It is delivered when it is due."""
    HALF = 2
    """It is delivered when its transaction is committed; when it is due, its producer is asked."""


class Fate(IntEnum):
    """What became of a held message."""

    HELD = 0
    """It is held now."""
    DELIVERED = 1
    """It was appended to a queue."""
    CANCELLED = 2
    """It was recalled, rolled back, or dropped, and nobody ever gets it."""
    UNKNOWN = 3
    """There never was one of this name, or nobody knows any more: its hour is long over."""


class Ref(NamedTuple):
    """The name of a held message: hours since 1970, and its number among those of that hour."""

    hour: int
    slot: int

    @property
    def number(self) -> int:
        """The name as one number of 48 bits."""
        return self.hour << SLOT_BITS | self.slot

    @classmethod
    def unpack(cls, number: int) -> Ref:
        """Return the name that was packed to *number*."""
        return cls(number >> SLOT_BITS, number & (1 << SLOT_BITS) - 1)


class HeldMessage(NamedTuple):
    """One held message.

    Attributes:
        ref: What it is called.
        kind: Why it is held.
        due_ms: When it is due, Unix milliseconds.
        payload: The PRODUCE payload that holds it now.
        row: Its row in that payload.
        generation: Its topic.
    """

    ref: Ref
    kind: Kind
    due_ms: int
    payload: Payload
    row: int
    generation: int
