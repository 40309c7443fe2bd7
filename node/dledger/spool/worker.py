"""Runs the spool's calls on one thread, so that the event loop never waits for a disk.

Appends that arrive during a sync share the next one (group commit). Used by the senders and the
replay of a producer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dledger.errors import DledgerError
from dledger.spool.payload import Message
from dledger.spool.spool import Kept, Spool

_T = TypeVar("_T")


class Worker:
    """Runs the spool's disk calls, one at a time."""

    def __init__(self, executor: ThreadPoolExecutor, spool: Spool) -> None:
        self.spool = spool
        self._executor = executor
        self._waiting: deque[tuple[Sequence[Message], asyncio.Future[Kept]]] = deque()
        self._flusher: asyncio.Task[None] | None = None

    async def run(self, call: Callable[[], _T]) -> _T:
        """Run *call* and return its result; calls run in the order in which they are made."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def append(self, messages: Sequence[Message]) -> Kept:
        """Write and sync messages, in a batch with other callers'. Raises like `Spool.append`."""
        kept: asyncio.Future[Kept] = asyncio.get_running_loop().create_future()
        self._waiting.append((messages, kept))
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush())
        return await kept

    async def _flush(self) -> None:
        try:
            while self._waiting:
                await self._append_waiting()
        finally:
            self._flusher = None

    async def _append_waiting(self) -> None:
        groups = list(self._waiting)
        self._waiting.clear()
        together = [message for messages, _ in groups for message in messages]
        try:
            kept = await self.run(lambda: self.spool.append(together))
        except BaseException as error:  # no caller may wait forever
            for _, future in groups:
                future.set_exception(error)
            if not isinstance(error, DledgerError):
                raise
        else:
            _tell(groups, kept)


def _tell(groups: list[tuple[Sequence[Message], asyncio.Future[Kept]]], kept: Kept) -> None:
    """Tell each caller how many of its messages were kept: the first ones were."""
    left = kept.messages
    for messages, future in groups:
        count = min(left, len(messages))
        left -= count
        future.set_result(Kept(count, None if count == len(messages) else kept.refusal))
