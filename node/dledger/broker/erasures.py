"""What was erased and may still lie in the log: remembered until retention has passed it.

The log stays as it was written, byte for byte, so an ERASE takes messages out of sight at once, but
their bytes go with the segments. All that a key ever had lies in entries below the ERASE: also what
compaction let go before, copies of it, and what a producer sent twice. So an erasure is remembered
until the log begins at its own entry, and says that nothing is left when it is gone from here.

It says nothing of the key, nor of the queue that the key has chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from dledger.broker.snapshot_codec import Reader, number, text

MAX_ERASURES: Final = 4_096
"""Erasures that are remembered; beyond, the two oldest become one, which lasts as the later."""


class Erasure(NamedTuple):
    """Messages that one ERASE let go, or several of which only the sum is known any more.

    Attributes:
        entry: The entry of the ERASE: the bytes lie below it.
        at_ms: Its timestamp, Unix milliseconds.
        topic: The topic's name; empty if there were several.
        messages: How many went.
        first_entry: The lowest entry that stored one of them.
    """

    entry: int
    at_ms: int
    topic: str
    messages: int
    first_entry: int


class Erasures:
    """The erasures of which bytes may lie in the log, oldest first; part of `state.BrokerState`."""

    def __init__(self) -> None:
        self._all: tuple[Erasure, ...] = ()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Erasure]:
        return iter(self._all)

    def remember(self, erasure: Erasure) -> None:
        """Add the newest one."""
        self._all = (*self._all, erasure)
        if len(self._all) > MAX_ERASURES:
            oldest, later, *rest = self._all
            self._all = (_join(oldest, later), *rest)

    def forget_before(self, index: int) -> None:
        """Forget those whose bytes lie in entries below *index*: these are gone."""
        self._all = tuple(each for each in self._all if each.entry > index)

    def freeze(self) -> tuple[bytes, ...]:
        """Return the bytes for a snapshot."""
        return tuple(self._encode())

    def _encode(self) -> Iterator[bytes]:
        yield number(len(self._all))
        for entry, at_ms, topic, messages, first_entry in self._all:
            yield number(entry) + number(at_ms) + text(topic)
            yield number(messages) + number(first_entry)

    def read(self, source: Reader, *, first_index: int, applied_index: int) -> None:
        """Read everything from a snapshot into this empty object. Raises MalformedStateError."""
        self._all = tuple(
            Erasure(
                entry=source.number(first_index + 1, applied_index),
                at_ms=source.number(),
                topic=source.text(),
                messages=source.number(1),
                first_entry=source.number(),
            )
            for _ in range(source.number(1, MAX_ERASURES))
        )
        if any(one.entry > later.entry for one, later in pairwise(self._all)):
            raise source.malformed("erasures that are not in the order of their entries")

    def canonical(self) -> list[object]:
        """Return everything as plain values, equal on nodes that applied the same log."""
        return [list(each) for each in self._all]


def _join(oldest: Erasure, later: Erasure) -> Erasure:
    """Return one for both that says no less of either: it lasts longer, and lies in more."""
    return Erasure(
        entry=later.entry,
        at_ms=later.at_ms,
        topic=later.topic if later.topic == oldest.topic else "",
        messages=oldest.messages + later.messages,
        first_entry=min(oldest.first_entry, later.first_entry),
    )
