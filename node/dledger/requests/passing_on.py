"""Answers of the leader that a follower passes on to its clients, and its word that it did.

A leader that has written an answer to a follower does not know whether a client has it: the
follower may die, or freeze, in between. So the follower gives each relayed call a number, and says
a moment later which numbers' answers are out (`PASSED_ON_PATH` of the leader's peer port: the
numbers as u64, little endian). Where that is lost, the messages of the answer come again unless
they are acked soon: see `gateway.clients`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from array import array
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from typing import Final

from dledger.common.byte_order import from_little_endian, little_endian
from dledger.common.limits import MAX_HELD_ANSWER_BYTES, MAX_HELD_ANSWERS_BYTES

PASSED_ON_PATH: Final = "/dledger.Peers/PassedOn"
_TELL_EVERY_S: Final = 1.0
_MAX_TOLD: Final = 4_096
"""Numbers in one call; what waits beyond is dropped."""
_TRIES: Final = 4
"""Then a leader is gone, or what it gave away has come again."""


class PassingOn:
    """The relayed answers of one node.

    Args:
        tell: Calls a unary method of a leader: its address, the method's path, the request.
            Returns whether it was answered, and does not raise.
    """

    def __init__(self, tell: Callable[[str, str, bytes], Awaitable[bool]]) -> None:
        self._tell = tell
        # By the number alone the leader could not tell this process from the one before it.
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
        """Return the number of a call that is about to be relayed."""
        return next(self._numbers)

    def passed_on(self, leader: str, number: int) -> None:
        """Note that the client has the whole answer to a call that went to this address."""
        numbers = self._out[leader]
        if len(numbers) < _MAX_TOLD:
            numbers.append(number)

    async def whole(self, answers: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield *answers* when the last of them is there; from a bounded size on, as they come."""
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
        """Tell every leader which answers are out; again at the next call where one is silent."""
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


def numbers_of(request: bytes) -> array[int]:
    """Return the numbers that a follower told; a last one that is cut short is left out."""
    told = request[: 8 * _MAX_TOLD]
    return from_little_endian("Q", told[: len(told) // 8 * 8])
