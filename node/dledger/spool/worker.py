"""The spool behind one thread: the event loop never waits on a disk.

Appends that arrive while a sync runs share the next one, so a sync costs many senders one wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dledger.errors import DledgerError
from dledger.spool.format import Message
from dledger.spool.spool import Kept, Spool

_T = TypeVar("_T")


class Worker:
    """Runs the spool's disk calls one after the other."""

    def __init__(self, executor: ThreadPoolExecutor, spool: Spool) -> None:
        self.spool = spool
        self._executor = executor
        self._waiting: deque[tuple[Sequence[Message], asyncio.Future[Kept]]] = deque()
        self._flusher: asyncio.Task[None] | None = None

    async def run(self, call: Callable[[], _T]) -> _T:
        """Return what *call* returns; calls run in the order in which they are made."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def append(self, messages: Sequence[Message]) -> Kept:
        """Write and sync messages, together with those of others. Raises as `Spool.append`."""
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
        except BaseException as error:  # nobody shall wait for what will not come
            for _, future in groups:
                future.set_exception(error)
            if not isinstance(error, DledgerError):
                raise
        else:
            _tell(groups, kept)


def _tell(groups: list[tuple[Sequence[Message], asyncio.Future[Kept]]], kept: Kept) -> None:
    """Give each appender its share of what was kept: the first messages were."""
    left = kept.messages
    for messages, future in groups:
        count = min(left, len(messages))
        left -= count
        future.set_result(Kept(count, None if count == len(messages) else kept.refusal))
