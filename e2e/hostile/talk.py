"""Connections of a stranger that keeps to the protocol as far as he must not to be put out."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from e2e.hostile import frames
from e2e.hostile.scene import Scene

STREAMS: Final = 256
"""Calls of one connection, as the port announces."""
_AT_ONCE: Final = 32
"""Connections that are opened at once, so that none waits longer than a handshake may."""
_DIAL_S: Final = 5.0


class Talk(asyncio.Protocol):
    """One connection by hand: it answers PING and SETTINGS, and counts what it is told.

    Attributes:
        closed: Whether the other end, or the network, has ended it.
        seen: Frames by kind.
        reason: What its last GOAWAY said.
        ended: Streams that were reset, as those without a body are, since `take_ended`.
    """

    def __init__(self) -> None:
        self.closed, self.reason = False, b""
        self.seen = Counter[int]()
        self.ended = 0
        self._rest = bytearray()
        self._transport: asyncio.Transport | None = None
        self._room = asyncio.Event()
        self._room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the port."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.write(frames.PREFACE + frames.settings() + frames.frame(4, frames.ACK, 0))

    def connection_lost(self, exc: Exception | None) -> None:
        """Note it."""
        del exc
        self.closed = True
        self._room.set()

    def pause_writing(self) -> None:
        """Wait: the port takes no more for now."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Go on."""
        self._room.set()

    async def room(self) -> None:
        """Wait until the port takes more, or is gone."""
        await self._room.wait()

    def data_received(self, data: bytes) -> None:
        """Read frames; throw away all but their kinds."""
        self._rest += data
        for one in frames.read_frames(self._rest):
            self.seen[one.kind] += 1
            if one.kind == frames.PING and not one.flags & frames.ACK:
                self.write(frames.frame(frames.PING, frames.ACK, 0, one.payload))
            elif one.kind == frames.GOAWAY:
                self.reason = one.payload[8:]
            elif one.kind == frames.RST_STREAM:
                self.ended += 1
            self.on_frame(one)

    def on_frame(self, one: frames.Frame) -> None:
        """For those that want to know more."""

    def take_ended(self, most: int) -> int:
        """Return how many streams were ended, at most so many; they are not told again."""
        taken = min(self.ended, most)
        self.ended -= taken
        return taken

    def write(self, data: bytes) -> None:
        """Send, if there is anybody."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Drop it, with what was not sent."""
        if self._transport is not None:
            self._transport.abort()


async def dial(scene: Scene, node: int, number: int, make: Callable[[], Any] = Talk) -> Any | None:
    """Open the stranger's connection of that number to a node; None: it was not to be had."""
    host, port = scene.address(node)
    tls: dict[str, Any] = {}
    if scene.tls:
        tls = {"ssl": scene.tls_context(), "server_hostname": "x"}
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_DIAL_S):
            _, found = await loop.create_connection(
                make, host, port, local_addr=(scene.source(number), 0), **tls
            )
    except (OSError, TimeoutError):
        return None
    return found


async def dial_all(
    scene: Scene, nodes: Iterable[int], count: int, make: Callable[[], Any] = Talk
) -> list[Any]:
    """Open so many to each of the nodes; return those that were had."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(node: int, number: int) -> Any | None:
        async with gate:
            return await dial(scene, node, number, make)

    wanted = [one(node, number) for number in range(count) for node in nodes]
    return [each for each in await asyncio.gather(*wanted) if each is not None]


def close_all(talks: Iterable[Talk]) -> None:
    """Drop them."""
    for each in talks:
        each.close()


def by_talks(work: Callable[[Scene], Any]) -> Callable[[Scene], Any]:
    """Let an attack that awaits stand among those that do not."""

    @functools.wraps(work)
    def attack(scene: Scene) -> Any:
        return asyncio.run(work(scene))

    return attack


async def until(end_s: float) -> None:
    """Sleep until a time of the event loop."""
    with contextlib.suppress(ValueError):
        await asyncio.sleep(max(0.0, end_s - asyncio.get_running_loop().time()))
