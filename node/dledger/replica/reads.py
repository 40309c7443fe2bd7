"""Linearizable reads in progress at one node. Owned by the driver; on the event loop only.

A read asks the leader's core for an index (thesis 6.4) and waits until the node that serves it has
applied that index. Both kinds of wait are bounded in number; the caller chooses the timeout.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Iterable
from typing import Final

from dledger.errors import DledgerError, Overloaded, Unavailable
from dledger.raft.ready import ConfirmedRead

MAX_WAITING_READS: Final = 4096


class PendingReads:
    """Reads that wait for a quorum to confirm this node's leadership."""

    def __init__(self) -> None:
        self._contexts = itertools.count(1)
        self._by_context: dict[int, asyncio.Future[int]] = {}

    def begin(self) -> tuple[int, asyncio.Future[int]]:
        """Return a new read's context, and the future of its index."""
        context = next(self._contexts)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._by_context[context] = future
        return context, future

    def end(self, context: int) -> None:
        """Remove a read, whether or not it was confirmed."""
        self._by_context.pop(context, None)

    def confirmed(self, reads: Iterable[ConfirmedRead]) -> None:
        """Deliver the indexes that a quorum has confirmed; a read may have been cancelled."""
        for read in reads:
            future = self._by_context.get(read.context)
            if future is not None and not future.done():
                future.set_result(read.index)

    def fail_all(self, error: DledgerError) -> None:
        """Fail all waiting reads: leadership ended, so none will be confirmed."""
        for future in self._by_context.values():
            if not future.done():
                future.set_exception(error)


class AppliedWaiters:
    """Callers waiting for an index to be applied; at most `MAX_WAITING_READS`."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []

    async def wait(self, index: int, timeout_s: float) -> None:
        """Return when *index* is applied.

        Raises:
            Overloaded: Too many callers are waiting already.
            Unavailable: It was not applied in time.
        """
        if self._full:
            self._forget_cancelled()
        if self._full:
            raise Overloaded(f"{len(self._heap)} reads wait to be served; back off and retry")
        applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._heap, (index, next(self._numbers), applied))
        try:
            async with asyncio.timeout(max(timeout_s, 0)):
                await applied
        except TimeoutError:
            raise Unavailable(f"this node has not applied entry {index} in time") from None

    def __bool__(self) -> bool:
        """Whether somebody waits; perhaps somebody who has given up."""
        return bool(self._heap)

    def applied(self, index: int) -> None:
        """Wake the callers that wait for *index* or below."""
        while self._heap and self._heap[0][0] <= index:
            waiter = heapq.heappop(self._heap)[2]
            if not waiter.done():
                waiter.set_result(None)

    def _forget_cancelled(self) -> None:
        self._heap = [item for item in self._heap if not item[2].done()]
        heapq.heapify(self._heap)

    @property
    def _full(self) -> bool:
        return len(self._heap) >= MAX_WAITING_READS
