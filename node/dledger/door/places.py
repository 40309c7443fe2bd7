"""Which connections a port has, with those in their handshake, and which goes for another.

While there are fewer than `Bounds.connections`, one address may have all of them. When there are as
many, the next still gets its place, from the address with most: an idle connection of it, else the
one that has waited longest for that; only who has most himself, all of them busy, is turned away.
So with handshakes, which are few, since each costs the node its time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from dledger.common.shares import Entry, Share
from dledger.door.addresses import Address, Addresses
from dledger.door.bounds import Bounds

_LOOKS: Final = 64
"""So many connections of an address are looked at for an idle one; each takes some 50 ns."""
PROMPT_S: Final = 1.0
"""A handshake that is older may be a stranger's, and goes for another of its own address. It takes
two round trips, and turns of a loop that may be busy with a crowd of them."""


class Place:
    """Of one connection.

    Attributes:
        address: Whose it is.
        taken: Whether a protocol has it, which closes it.
        end: Ends it, whatever it is now: a socket, a handshake, a connection.
        is_idle: Whether it has no call.
        since_s: When its handshake began.
        entry: What it has of all connections.
        greeting: The same, of all handshakes; None: it has none under way.
    """

    __slots__ = ("address", "end", "entry", "greeting", "is_idle", "since_s", "taken")
    entry: Entry[Place]

    def __init__(self, address: Address) -> None:
        self.address = address
        self.end: Callable[[], object] = _nothing
        self.is_idle: Callable[[], bool] = _yes
        self.since_s = 0.0
        self.taken = False
        self.greeting: Entry[Place] | None = None


class Places:
    """Of one port.

    Args:
        bounds: Its limits.
        addresses: What is known of callers.
    """

    def __init__(self, bounds: Bounds, addresses: Addresses) -> None:
        self._bounds, self._addresses = bounds, addresses
        self._open: Share[Place] = Share(bounds.connections, _end)
        self._greetings: Share[Place] = Share(bounds.handshakes, _end)
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return self._open.taken

    def enter(self, host: str, now_s: float) -> Place | None:
        """Return a place for a new connection; None: it gets none.

        Args:
            host: Where it comes from.
            now_s: Event-loop time.
        """
        address = self._addresses.of(host)
        if not address.may_connect(now_s):
            return None
        if self._open.taken >= self._open.limit and not self._make_room(address):
            return None
        place = Place(address)
        place.entry = self._open.enter(address.name, place)
        return place

    def leave(self, place: Place) -> None:
        """Note that a connection is gone; more than once does nothing."""
        self._open.leave(place.entry)
        self.end_greeting(place)
        place.end, place.is_idle = _nothing, _yes

    def _make_room(self, newcomer: Address) -> bool:
        """End a connection of the address with most, or return False if none may go."""
        first: Entry[Place] | None = None
        for _ in range(_LOOKS):
            entry = self._open.next()
            if entry is None or entry is first:
                break
            if entry.item.is_idle():
                return self._open.evict()
            first = first or entry
            self._open.resize(entry, entry.weight)  # it moves: the next is looked at
        entry = self._open.next()
        if entry is None or entry.item.address.name == newcomer.name:
            return False
        return self._open.evict()

    # -- handshakes ------------------------------------------------------------------------------

    async def greet(self, place: Place) -> None:
        """Begin a handshake, once there is room for it: `end_greeting` ends it.

        Beside others of its own address it waits, so that a crowd that comes back at once does not
        end its own; a stranger's gives way at once.
        """
        loop, greetings = asyncio.get_running_loop(), self._greetings
        stand = self._waiting.append
        while greetings.taken >= greetings.limit:
            oldest = greetings.next()
            if oldest is None:
                break
            wait_s = oldest.item.since_s + PROMPT_S - loop.time()
            if oldest.item.address.name != place.address.name or wait_s <= 0:
                greetings.evict()
                break
            turn = loop.create_future()
            stand(turn)
            await self._wait(turn, wait_s)
            stand = self._waiting.appendleft  # somebody was quicker: it is still the next
        place.since_s = loop.time()
        place.greeting = greetings.enter(place.address.name, place)

    async def _wait(self, turn: asyncio.Future[None], wait_s: float) -> None:
        """Wait for a turn, or so long; one that is no longer waited for is given to nobody."""
        try:
            await asyncio.wait((turn,), timeout=wait_s)
        except asyncio.CancelledError:
            if turn.done():
                self._give_turn()
            raise
        finally:
            turn.cancel()

    def end_greeting(self, place: Place) -> None:
        """Note that a handshake is over, in whatever way; more than once does nothing."""
        greeting, place.greeting = place.greeting, None
        if greeting is not None:
            self._greetings.leave(greeting)
            self._give_turn()

    def _give_turn(self) -> None:
        """Let the next go on that still waits."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break


def _end(place: Place) -> None:
    place.end()


def _nothing() -> None:
    """End what is gone."""


def _yes() -> bool:
    return True
