"""Bounds the responses being written to clients: room is reserved before they are built.

A client that does not read makes gRPC keep what was last written to it, until the call ends. So if
such writes have taken all the room and others wait, the connection that holds most is closed: its
calls end with UNAVAILABLE, and its client opens another.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import re
import socket
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from dledger.common.window import Window

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 16 << 20
STUCK_S: Final = 5.0
"""How long a write may take while others wait for room."""
_OPEN_FILES: Final = Path("/proc/self/fd")
_PEER: Final = re.compile(r"ipv[46]:(?P<host>.+):(?P<port>\d+)")


def close_connection(peer: str) -> bool:
    """Shut down this process' socket that is connected to *peer*; return whether there is one.

    Args:
        peer: What ``context.peer()`` says, such as ``ipv4:10.0.0.7:40312``.

    gRPC then ends the connection's calls and frees their memory. This scans every open file of the
    process, so it is too slow to call per request.
    """
    wanted = _address(peer)
    if wanted is None:
        return False
    for path in _OPEN_FILES.iterdir():
        with contextlib.suppress(OSError):  # not a socket, not connected, or closed meanwhile
            copy = os.dup(int(path.name))
            try:
                if _shut_down(copy, wanted):
                    return True
            finally:
                os.close(copy)
    return False


def _shut_down(file: int, wanted: tuple[str, int]) -> bool:
    connection = socket.socket(fileno=file)
    try:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        host, port = connection.getpeername()[:2]
        if (_plain(host), port) != wanted:
            return False
        connection.shutdown(socket.SHUT_RDWR)
    finally:
        connection.detach()
    return True


def _address(peer: str) -> tuple[str, int] | None:
    match = _PEER.fullmatch(peer.replace("%5B", "[").replace("%5D", "]"))
    return (_plain(match["host"].strip("[]")), int(match["port"])) if match else None


def _plain(host: str) -> str:
    """Return an address in canonical form; an IPv4-mapped IPv6 address as IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


class Outflow:
    """The room for responses that are larger than a call's own overhead.

    Args:
        close: Closes a connection, by its name.
    """

    def __init__(self, close: Callable[[str], bool] = close_connection) -> None:
        self._window, self._close = Window(MAX_BYTES), close
        self._held: OrderedDict[object, tuple[str, int, float]] = OrderedDict()
        self._look: asyncio.TimerHandle | None = None

    @property
    def taken(self) -> int:
        """Bytes being written, or being built to be written."""
        return self._window.taken

    def has_room(self, size_bytes: int) -> bool:
        """Whether *size_bytes* would be admitted at once."""
        return self._window.has_room(size_bytes)

    @contextlib.asynccontextmanager
    async def room(self, connection: str, size_bytes: int) -> AsyncIterator[None]:
        """Hold room for *size_bytes* while the response is built and written inside the block.

        A connection without a name is a peer's: the peer counts its responses itself.
        """
        if not connection:
            yield
            return
        if not self._window.take_now(size_bytes):
            self._watch()
            await self._window.take(size_bytes)
        key, now_s = object(), asyncio.get_running_loop().time()
        self._held[key] = (connection, size_bytes, now_s)
        try:
            yield
        finally:
            del self._held[key]
            self._window.give(size_bytes)

    def _watch(self) -> None:
        if self._look is None:
            loop = asyncio.get_running_loop()
            oldest_s = next((since_s for _, _, since_s in self._held.values()), loop.time())
            due_s = max(oldest_s + STUCK_S, loop.time() + STUCK_S / 10)
            self._look = loop.call_at(due_s, self._close_who_holds_most)

    def _close_who_holds_most(self) -> None:
        """While anything waits, look for a connection whose writes are stuck, and close it."""
        self._look = None
        if not self._window.waiting:
            return
        stuck_s = asyncio.get_running_loop().time() - STUCK_S
        bytes_of: Counter[str] = Counter()
        for connection, size_bytes, since_s in self._held.values():
            if since_s <= stuck_s:
                bytes_of[connection] += size_bytes
        if bytes_of:
            connection, size_bytes = bytes_of.most_common(1)[0]
            if self._close(connection):
                logger.warning(
                    "closed %s: it left %d bytes unread while others waited", connection, size_bytes
                )
        self._watch()
