"""Accepts connections, and decides by their first byte whether they speak TLS.

asyncio's own server shows one certificate for as long as it lives, and knows one kind of caller. A
caller that does not begin, or does not finish its handshake, soon is closed; if there are too many
of them, the oldest goes first. Used by the replication port, and by the peer port while plain text
is accepted there.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from dledger.common.accepting import accept, readable

logger = logging.getLogger(__name__)

GREETING_S: Final = 2.0
"""How long a caller may take for its first byte, and for its handshake."""
_MAX_GREETINGS: Final = 64
_NO_FILES_S: Final = 1.0
_TLS_HANDSHAKE: Final = b"\x16"
"""The type of the first TLS record (RFC 8446, 5.1). Neither HTTP/2's preface nor `plain_token`
begins with it."""


class Acceptor:
    """Accepts from `start` until `close`; owns the listening socket in between.

    Args:
        what: What is listened on, for the log.
        greet: Takes a new connection over, or raises OSError and closes it. It owns the connection
            in any case, and closes it if it is cancelled.
    """

    def __init__(self, what: str, greet: Callable[[socket.socket], Awaitable[None]]) -> None:
        self._what, self._greet = what, greet
        self._greetings: dict[asyncio.Task[None], list[socket.socket]] = {}  # oldest first
        self._task: asyncio.Task[None] | None = None

    def start(self, listening: socket.socket) -> None:
        """Accept connections to a bound socket."""
        listening.setblocking(False)
        self._task = asyncio.get_running_loop().create_task(self._run(listening))

    def close(self) -> None:
        """Stop accepting, and drop the greetings under way."""
        for task in (self._task, *self._greetings):
            if task is not None:
                task.cancel()

    async def _run(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0)  # while callers wait in line, `accept` never suspends
            try:
                connection, _ = await accept(listening)
            except OSError as error:
                logger.error("cannot accept a peer: %s", error)
                await asyncio.sleep(_NO_FILES_S)
                continue
            if len(self._greetings) >= _MAX_GREETINGS:
                oldest = next(iter(self._greetings))
                oldest.cancel()
                self._done(oldest)
            unclaimed = [connection]
            task = loop.create_task(self._serve(unclaimed))
            self._greetings[task] = unclaimed
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        for each in self._greetings.pop(task, ()):
            each.close()  # the task was cancelled before it began

    async def _serve(self, unclaimed: list[socket.socket]) -> None:
        try:
            await self._greet(unclaimed.pop())
        except OSError as error:
            logger.info("refused a connection to %s: %s", self._what, error)


def plain_token(size_bytes: int) -> bytes:
    """Return a secret that `begins_tls` tells from a TLS handshake."""
    while (token := secrets.token_bytes(size_bytes)).startswith(_TLS_HANDSHAKE):
        pass
    return token


async def begins_tls(connection: socket.socket) -> bool:
    """Whether a new connection begins with a TLS handshake; takes nothing out of it.

    Closes the connection if it raises.

    Raises:
        OSError: It ended or said nothing in time.
    """
    try:
        async with asyncio.timeout(GREETING_S):
            first = await _peek(connection)
        if not first:
            raise ConnectionAbortedError("it ended before its first byte")
    except BaseException:
        connection.close()
        raise
    return first == _TLS_HANDSHAKE


async def _peek(connection: socket.socket) -> bytes:
    """Return the first byte; empty at the end. Raises OSError."""
    while True:
        try:
            return connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            await readable(connection)
