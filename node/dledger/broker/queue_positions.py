"""Where the messages of a queue lie: what `consume_queue` answers with.

A message lies in a row of a payload. What lies together is told together: a slice is consecutive
rows of one payload, a run is consecutive messages with one tag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Payload:
    """The position of a PRODUCE payload: bytes ``[start, end)`` of the entry at *index*."""

    index: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Position:
    """The position of one message: a row of a payload."""

    payload: Payload
    row: int


class Stretch(NamedTuple):
    """*length* messages from queue offset *first* on, in consecutive rows of one payload.

    Attributes:
        first: The queue offset of the first one.
        length: How many there are.
        row: The row of the first one.
        entry: The index of the entry that holds the payload, at bytes ``[start, end)`` of its data.
        start: The payload's first byte.
        end: The byte after it.
    """

    first: int
    length: int
    row: int
    entry: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Queue offsets ``[first, end)``, all with one tag."""

    first: int
    end: int
    code: int
