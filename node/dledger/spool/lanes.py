"""The lanes of a spool, and how long its messages have waited: what is counted of them in memory.

A lane is the messages of one client and topic, in the order in which they came. The group keeps the
last sequence of each, and takes what is not above it for stored. So no place is given twice, also
where a directory was put back as it was before: a lane's number is drawn, and each opening draws
its own for what comes from then on. Owned by `Spool`.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dledger.spool.payload import Head, Message

_LANES: Final = (1 << 32) - 1
_STEP_MS: Final = 1_000
"""Ages are kept to a second, so that a million messages need no million of them."""


@dataclass(slots=True)
class Lane:
    """One of them.

    Attributes:
        number: Its name for the group; 0: of what was found on the disk, which has its own.
        last: The sequence in the lane that was given last.
        depth: How many of its messages wait.
    """

    number: int = 0
    last: int = 0
    depth: int = 0


class LaneBook:
    """The lanes that have messages waiting, by client id and topic."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, str], Lane] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[tuple[str, str, Lane]]:
        return iter([(*key, lane) for key, lane in self._lanes.items()])

    def place(self, message: Message) -> Message:
        """Return *message* with its place in its lane."""
        if not message.client_id:
            return message
        lane = self._lanes.setdefault((message.client_id, message.topic), Lane())
        lane.number = lane.number or 1 + secrets.randbelow(_LANES)
        lane.last += 1
        return replace(message, lane=lane.number, lane_sequence=lane.last)

    def count(self, messages: Iterable[Message]) -> None:
        """Count messages that were placed and are durable."""
        for message in messages:
            if message.client_id:
                self._lanes[message.client_id, message.topic].depth += 1

    def add_found(self, head: Head) -> None:
        """Count a message that was found on the disk."""
        if head.client_id:
            self._lanes.setdefault((head.client_id, head.topic), Lane()).depth += 1

    def forget(self, messages: Sequence[Message]) -> None:
        """Subtract messages that were replayed or rejected."""
        for message in messages:
            lane = self._lanes.get((message.client_id, message.topic))
            if lane is not None:
                lane.depth -= 1
        self.drop_empty(messages)

    def drop_empty(self, messages: Iterable[Message]) -> None:
        """Forget those of these messages' lanes that have none waiting."""
        for key in {(message.client_id, message.topic) for message in messages}:
            if key in self._lanes and not self._lanes[key].depth:
                del self._lanes[key]

    def clear(self) -> None:
        """Forget all: the spool is empty."""
        self._lanes.clear()


class Ages:
    """Since when messages wait, to a second."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int]] = deque()  # last sequence, Unix milliseconds

    def add(self, sequence: int, at_ms: int) -> None:
        """Note that the message of that sequence, the next one, waits since then."""
        if self._steps and at_ms - self._steps[-1][1] < _STEP_MS:
            at_ms = self._steps.pop()[1]
        self._steps.append((sequence, at_ms))

    def forget(self, replayed: int) -> None:
        """Forget messages up to that sequence."""
        while self._steps and self._steps[0][0] <= replayed:
            self._steps.popleft()

    @property
    def oldest_ms(self) -> int:
        """Since when the oldest waits, Unix milliseconds; 0: none does."""
        try:
            return self._steps[0][1]
        except IndexError:  # another thread may ask
            return 0


def age_s(since_ms: int) -> float:
    """Return how long what waits *since_ms*, Unix milliseconds, has waited; 0: nothing does."""
    return max(0.0, time.time() - since_ms / 1000) if since_ms else 0.0
