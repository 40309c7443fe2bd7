"""Accepts TLS connections with the certificates of the moment, for the replication port.

asyncio's own server shows one certificate for as long as it lives. A caller that does not finish
its handshake soon is closed; if there are too many of them, the oldest goes first.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from dledger.rpc.peer_tls import PeerTls

logger = logging.getLogger(__name__)

_HANDSHAKE_S: Final = 2.0
_MAX_HANDSHAKES: Final = 64
_NO_FILES_S: Final = 1.0


class TlsAcceptor:
    """Accepts from `start` until `close`; owns the listening socket in between.

    Args:
        tls: The certificates.
        protocol: Makes the protocol of a connection whose peer has shown a trusted certificate.
    """

    def __init__(self, tls: PeerTls, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self._tls, self._protocol = tls, protocol
        self._handshakes: dict[asyncio.Task[None], None] = {}  # oldest first
        self._task: asyncio.Task[None] | None = None

    def start(self, listening: socket.socket) -> None:
        """Accept connections to a bound socket."""
        listening.setblocking(False)
        self._task = asyncio.get_running_loop().create_task(self._run(listening))

    def close(self) -> None:
        """Stop accepting, and drop the handshakes under way."""
        for task in (self._task, *self._handshakes):
            if task is not None:
                task.cancel()

    async def _run(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:
                logger.error("cannot accept a peer: %s", error)
                await asyncio.sleep(_NO_FILES_S)
                continue
            if len(self._handshakes) >= _MAX_HANDSHAKES:
                oldest = next(iter(self._handshakes))
                oldest.cancel()
                self._done(oldest)
            task = loop.create_task(self._shake(connection))
            self._handshakes[task] = None
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)

    async def _shake(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                connection,
                ssl=self._tls.server_context,
                ssl_handshake_timeout=_HANDSHAKE_S,
            )
        except OSError as error:  # asyncio has closed the connection
            logger.info("refused a connection to the replication port: %s", error)
