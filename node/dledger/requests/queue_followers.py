"""Wakes readers that follow a queue: each wants every message, so all of them are woken."""

from __future__ import annotations

import asyncio
from functools import partial

from dledger.broker.state_changes import StateChanges
from dledger.common.herd import Herd
from dledger.errors import Unavailable


class QueueFollowers:
    """Readers that wait for messages of (topic, queue id); single-threaded, on the event loop.

    Consumers' polls compete for each message, and wait in `rocketmq.long_polls` instead.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int], set[asyncio.Future[None]]] = {}
        self._over = Herd()
        self._count = 0
        self._closed = False

    def __len__(self) -> int:
        return self._count

    def notify(self, changes: StateChanges) -> None:
        """Wake the readers of queues that got messages, or that were deleted."""
        for key in self._waiting.keys() & changes.arrived:
            self._wake(key)
        for topic, queues in changes.topics_gone:
            for queue_id in range(queues):
                waiting = self._waiting.get((topic, queue_id), ())
                self._over.wake([partial(_finish, future) for future in waiting])

    def notify_all(self) -> None:
        """Wake all readers: leadership changed, or the node is shutting down."""
        for key in tuple(self._waiting):
            self._wake(key)

    @property
    def closed(self) -> bool:
        """Whether the node is shutting down, so that no reader may wait any more."""
        return self._closed

    def close(self) -> None:
        """Wake all readers, and let none wait any more."""
        self._closed = True
        self.notify_all()

    async def wait(self, topic: str, queue_id: int, timeout_s: float) -> None:
        """Return when the queue changes, or after *timeout_s*."""
        if timeout_s <= 0:
            return
        if self._closed:
            raise Unavailable("this node is shutting down")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(timeout_s, _finish, future)
        waiting = self._waiting.setdefault((topic, queue_id), set())
        waiting.add(future)
        self._count += 1
        try:
            await future
        finally:
            timer.cancel()
            self._count -= 1
            waiting.discard(future)
            if not waiting and self._waiting.get((topic, queue_id)) is waiting:
                del self._waiting[topic, queue_id]

    def _wake(self, key: tuple[str, int]) -> None:
        for future in self._waiting.get(key, ()):
            _finish(future)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
