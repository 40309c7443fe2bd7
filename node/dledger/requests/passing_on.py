"""Tells the leader which of its responses have arrived at a follower's clients.

A leader that has written a response to a follower does not know whether the client received it: the
follower may die or freeze first, or the client's connection may end. So the follower numbers each
relayed call, has its own server find out (`door.proofs`), and soon after reports the numbers of the
responses that arrived, and of those that still move (`PASSED_ON_PATH` on the leader's peer port:
the numbers as u64, little-endian; with the highest bit set: it moves). If the report is lost, the
response's messages are delivered again unless they are acknowledged soon: see `rocketmq.arrivals`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from array import array
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from dledger.common.byte_order import from_little_endian, little_endian
from dledger.common.limits import MAX_HELD_ANSWER_BYTES, MAX_HELD_ANSWERS_BYTES

PASSED_ON_PATH: Final = "/dledger.Peers/PassedOn"
_TELL_EVERY_S: Final = 1.0
_MAX_TOLD: Final = 4_096
"""Numbers in one report; further ones are dropped."""
_TRIES: Final = 4
"""After this many attempts the leader is gone, or the messages were delivered again."""
_MOVES: Final = 1 << 63


class Told(NamedTuple):
    """A follower's report: the numbers of responses that arrived, and of those that still move."""

    arrived: Sequence[int]
    moving: Sequence[int]

    @classmethod
    def decode(cls, request: bytes) -> Told:
        """Return the report of a request; a truncated last number is left out."""
        told = request[: 8 * _MAX_TOLD]
        numbers = from_little_endian("Q", told[: len(told) // 8 * 8])
        return cls(
            [each for each in numbers if each < _MOVES],
            [each - _MOVES for each in numbers if each >= _MOVES],
        )


class PassingOn:
    """The relayed responses of one node.

    Args:
        tell: Calls a unary method of a leader: its address, the method's path, the request.
            Returns whether it was answered, and does not raise.
    """

    def __init__(self, tell: Callable[[str, str, bytes], Awaitable[bool]]) -> None:
        self._tell = tell
        # Random start: otherwise the leader would take a restarted follower's numbers for old ones.
        self._numbers = itertools.count(random.getrandbits(62))
        self._out: defaultdict[str, list[int]] = defaultdict(list)
        self._failures: Counter[str] = Counter()
        self._held_bytes = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start telling."""
        self._task = asyncio.get_running_loop().create_task(self._tell_for_ever())

    async def close(self) -> None:
        """Stop telling."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def next_number(self) -> int:
        """Return the number for a call that is about to be relayed."""
        return next(self._numbers)

    def arrived(self, leader: str, number: int) -> None:
        """Note that the client has the whole response to a call relayed to this leader."""
        self._note(leader, number)

    def moves(self, leader: str, number: int) -> None:
        """Note that the response to a call relayed to this leader is still on its way."""
        self._note(leader, number | _MOVES)

    def _note(self, leader: str, number: int) -> None:
        numbers = self._out[leader]
        if len(numbers) < _MAX_TOLD:
            numbers.append(number)

    async def whole(self, answers: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield *answers* once all have arrived; beyond a bounded size, yield as they arrive."""
        held: list[bytes] = []
        size_bytes = 0
        try:
            async for answer in answers:
                held.append(answer)
                size_bytes += len(answer)
                self._held_bytes += len(answer)
                too_large = size_bytes > MAX_HELD_ANSWER_BYTES
                if too_large or self._held_bytes > MAX_HELD_ANSWERS_BYTES:
                    for each in held:
                        yield each
                    held.clear()
            for each in held:
                yield each
        finally:
            self._held_bytes -= size_bytes

    async def tell(self) -> None:
        """Report the responses of every leader; retry at the next call if one is silent."""
        out, self._out = self._out, defaultdict(list)
        for leader, numbers in out.items():
            if await self._tell(leader, PASSED_ON_PATH, little_endian(array("Q", numbers))):
                del self._failures[leader]
                continue
            self._failures[leader] += 1
            if self._failures[leader] < _TRIES:
                self._out[leader] = [*numbers, *self._out[leader]][:_MAX_TOLD]
            else:
                del self._failures[leader]

    async def _tell_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_TELL_EVERY_S)
            await self.tell()


class Passage:
    """One response that this node passes on: a `contract.Arrival`.

    Args:
        answers: Where it is noted.
        leader: The address of the leader that it comes from.
        number: The call's number.
    """

    __slots__ = ("_answers", "_leader", "_number")

    def __init__(self, answers: PassingOn, leader: str, number: int) -> None:
        self._answers, self._leader, self._number = answers, leader, number

    def proved(self) -> None:
        """Report that it arrived."""
        self._answers.arrived(self._leader, self._number)

    def moves(self) -> None:
        """Report that it is still under way."""
        self._answers.moves(self._leader, self._number)

    def lost(self) -> None:
        """Report nothing."""
