"""Accepting connections on the event loop, none of which a cancellation loses.

`loop.sock_accept` has accepted already when its caller is told: cancelled in that turn, it drops
the socket, and its client hangs until the garbage collector comes by.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any


async def accept(listening: socket.socket) -> tuple[socket.socket, Any]:
    """Return the next connection, which does not block, and its address. Raises OSError."""
    while True:
        try:
            connection, address = listening.accept()
        except BlockingIOError:  # or another process was faster
            await readable(listening)
        else:
            connection.setblocking(False)
            return connection, address


async def readable(waiting: socket.socket) -> None:
    """Return when there may be something to take out of a socket."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    number = waiting.fileno()  # who cancels this may have closed it by then
    loop.add_reader(number, told.set)
    try:
        await told.wait()
    finally:
        loop.remove_reader(number)
