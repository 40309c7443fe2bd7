"""What runs behind the client ports of a node: it wakes who waits, and follows the clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from dledger.requests.leader_locality import WINDOW_S
from dledger.server.wiring import ClientParts

logger = logging.getLogger(__name__)

_WATCH_S = 1.0


class ClientTasks:
    """Of one node.

    Life cycle: `start` before the servers; `drain` before they stop, so that waiting clients get
    their response and calls in progress can finish; `close` after they have stopped.
    """

    def __init__(self, parts: ClientParts) -> None:
        """Have the parts told what is applied from now on."""
        self._context, self._parts = parts.context, parts
        self._engine = parts.context.engine
        self._followers, self._turns = parts.context.queue_followers, parts.turns
        self._room = parts.messaging.room
        self._tasks: list[asyncio.Task[None]] = []
        self._engine.on_applied(self._on_applied, self._is_awaited)

    def start(self) -> None:
        """Start the tasks behind the handlers; call on the event loop."""
        self._context.relay.start()
        self._parts.messaging.clients.start()
        loop = asyncio.get_running_loop()
        works = self._watch(), self._follow_clients(), self._parts.messaging.checks.run()
        self._tasks = [loop.create_task(work) for work in works]

    def drain(self) -> None:
        """End Telemetry streams and long polls now; other calls are still served."""
        self._parts.messaging.telemetry.close()
        self._followers.close()
        self._room.close()
        self._turns.close()
        self._context.relay.cancel_streams()

    async def close(self) -> None:
        """Stop all tasks behind the handlers."""
        self.drain()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._parts.messaging.dead_letters.close()
        await self._parts.messaging.clients.close()
        await self._context.relay.close()

    def _is_awaited(self) -> bool:
        """Whether somebody waits here for what comes into a queue."""
        return bool(len(self._followers) or len(self._turns))

    def _on_applied(self) -> None:
        if self._engine.state.held.halves:
            self._parts.messaging.checks.wake()
        changes = self._engine.state.take_changes()
        self._context.resolver.notify(changes)
        self._followers.notify(changes)
        self._turns.notify(changes)
        self._room.notify(changes)
        self._parts.filters.notify(changes)

    async def _watch(self) -> None:
        """Wake waiting polls whenever leadership changes."""
        while True:
            await self._engine.wait_leader_change(_WATCH_S)
            if not self._engine.is_leader():
                self._followers.notify_all()
                self._turns.look_again()

    async def _follow_clients(self) -> None:
        """Transfer leadership to the node that clients use, if it is another one."""
        locality = self._context.locality
        while True:
            await asyncio.sleep(WINDOW_S)
            if not self._engine.is_leader() or not self._context.config.leader_follows_clients:
                locality.forget()
                continue
            favourite = locality.end_window()
            if favourite is not None and self._engine.hand_over(favourite):
                logger.info(
                    "group %s: nearly all requests come through %s: transferring leadership to it",
                    self._engine.group,
                    favourite,
                )
