"""Something between a client and its node that forwards bytes, until it does so no more."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from e2e.harness.ports import HOST

_PIECE_BYTES: Final = 64 << 10
_SWALLOWS_S: Final = 2.0
RESTS_S: Final = 3.0


@dataclass
class Wall:
    """A proxy that knows nothing of HTTP/2: a NAT, a load balancer, a network.

    Attributes:
        target: The port behind it.
        port: Its own.
        swallows: Whether it takes what the node sends, and throws it away.
        deaf: The same of what clients send.
        slowly: While it is set, what the node sends goes on only as `allowed`.
        dropped: Bytes of the node that it threw away.
    """

    target: int
    port: int = 0
    swallows: bool = False
    deaf: bool = False
    slowly: bool = False
    dropped: int = 0
    _allowed: int = 0
    _more: asyncio.Event = field(default_factory=asyncio.Event)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def allow(self, size_bytes: int) -> None:
        """Let so much go on."""
        self._allowed += size_bytes
        self._more.set()

    def cut(self) -> None:
        """Reset all connections, on both sides."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def end(self) -> None:
        """Reset all connections, and forward nothing more."""
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()

    async def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        sock = socket.socket()
        # What waits on a slow line waits at the node, and not in this process.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE_BYTES // 2)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (HOST, self.target))
        to_node, node = await asyncio.open_connection(sock=sock)
        self._writers += [writer, node]
        for work in (self._down(to_node, writer), self._up(reader, node)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _up(self, reader: asyncio.StreamReader, node: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_PIECE_BYTES):
                if not self.deaf:
                    node.write(data)
                    await node.drain()
            node.close()

    async def _down(self, node: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await node.read(_PIECE_BYTES):
                if self.swallows:
                    self.dropped += len(data)
                    continue
                while self.slowly and self._allowed < len(data):
                    self._more.clear()
                    await self._more.wait()
                self._allowed = max(self._allowed - len(data), 0)
                writer.write(data)
                await writer.drain()
            writer.close()


@contextlib.asynccontextmanager
async def wall(target: int, at: tuple[str, int] = (HOST, 0)) -> AsyncIterator[Wall]:
    """Stand *at* an address, before a port of the loopback."""
    made = Wall(target)
    server = await asyncio.start_server(made.begin, *at)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.end()


async def swallowing(walls: Sequence[Wall], times: int) -> None:
    """Swallow what nodes send for two seconds of each five, and reset all connections then."""
    for _ in range(times):
        for each in walls:
            each.swallows = True
        await asyncio.sleep(_SWALLOWS_S)
        for each in walls:
            each.cut()
            each.swallows = False
        await asyncio.sleep(RESTS_S)
