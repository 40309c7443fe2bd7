"""Waiting for a change of what a node is. Owned by the driver; used on the event loop only."""

from __future__ import annotations

import asyncio


class ChangeSignal:
    """Wakes everyone who waits for the next change."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}  # in order, unlike a set

    async def wait(self, timeout_s: float) -> None:
        """Return at the next change, or after *timeout_s*."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            # Not wait_for: until Python 3.12 it loses a cancellation that comes with the result.
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return
        finally:
            del self._waiters[waiter]

    def notify(self) -> None:
        """Wake all that wait now."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
