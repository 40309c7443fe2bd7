"""One direction of a connection, and what has arrived at one end of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from dledger_sim.loop import MS, Clock, ProcessLoop

_ANY_ROOM: Final = 1 << 30
_LOOK_US: Final = 50 * MS


class Way:
    """One direction: in order, each message some time after it was sent, few at a time.

    Args:
        clock: The time.
        delay_us: Draws how long a message is on its way.
        arrive: Gets each message.
        room: Messages that were not read yet; then their sender waits.
        passes: Whether anything gets through at the moment; what does not waits until it does.
    """

    def __init__(
        self,
        clock: Clock,
        delay_us: Callable[[], int],
        arrive: Callable[[Any], None],
        *,
        room: int = _ANY_ROOM,
        passes: Callable[[], bool] = lambda: True,
    ) -> None:
        self._clock, self._delay_us, self._arrive = clock, delay_us, arrive
        self._most, self._passes = room, passes
        self._newest_us = 0
        self._on_way: deque[Any] = deque()
        self.unread = 0
        self.dead = False
        self._room: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        """Whether its sender has to wait."""
        return self.unread >= self._most

    def send(self, what: Any) -> None:
        """Send a message."""
        at_us = max(self._clock.now_us + self._delay_us(), self._newest_us)
        self._newest_us = at_us
        self.unread += 1
        self._on_way.append(what)
        self._clock.after(at_us - self._clock.now_us, self._pass)

    def _pass(self) -> None:
        """Let the oldest message arrive, as soon as anything does."""
        if self.dead:
            return
        if self._passes():
            self._arrive(self._on_way.popleft())
        else:
            self._clock.after(_LOOK_US, self._pass)

    def read(self) -> None:
        """Note that one was read; whoever waits for room hears of it."""
        self.unread -= 1
        waiting, self._room = self._room, []
        for wake in waiting:
            wake()

    def when_room(self, wake: Callable[[], None]) -> None:
        """Call *wake* once there is room."""
        self._room.append(wake)


class Inbox:
    """What has arrived at one end and was not taken yet."""

    def __init__(self, loop: ProcessLoop) -> None:
        self._loop = loop
        self._items: deque[Any] = deque()
        self._arrived = loop.create_future()

    def put(self, item: Any) -> None:
        """Take what arrives, from outside of any loop."""
        self._items.append(item)
        self._loop.run(self._wake)

    def _wake(self) -> None:
        if not self._arrived.done():
            self._arrived.set_result(None)

    async def get(self) -> Any:
        """Return the next one, once there is one."""
        while not self._items:
            self._arrived = self._loop.create_future()
            await self._arrived
        return self._items.popleft()
