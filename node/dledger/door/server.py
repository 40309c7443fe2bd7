"""One client port: accepts connections within its bounds, and ends them when it stops.

Connections are accepted here and not by `asyncio.Server`, so that those in their TLS handshake
count, too, and each handshake shows the newest certificate.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import socket
from functools import partial
from typing import Any, Final

from dledger.common.accepting import accept
from dledger.common.listening import BACKLOG, bound_address, listening
from dledger.door.bounds import Bounds, Held
from dledger.door.connection import Connection
from dledger.door.contract import ClientServer, Handlers
from dledger.door.places import Place, Places
from dledger.door.port import Port
from dledger.door.tls import TlsCertificate
from dledger.door.tls_transport import TlsTransport

logger = logging.getLogger(__name__)

_ACCEPTED_AT_ONCE: Final = 16
_NO_FILES_S: Final = 0.5
"""The pause after a failed accept; without one, the loop would do nothing else."""
_LAST_BYTES_S: Final = 2.0


class DoorServer(ClientServer):
    """By libnghttp2, on the event loop that starts it.

    Args:
        address: ``HOST:PORT`` to listen on; an IPv6 host in brackets; port 0: any. Or a socket of
            `listening`, which other processes may have, too: each connection goes to one of them.
        handlers: What is served, by path.
        bounds: The limits.
        tls: The certificate; None: plain text.

    Raises:
        OSError: The address, which the message names, is taken or not this machine's.
    """

    def __init__(
        self,
        address: str | socket.socket,
        handlers: Handlers,
        *,
        bounds: Bounds | None = None,
        tls: TlsCertificate | None = None,
    ) -> None:
        self._bounds = bounds = bounds or Bounds()
        self._tls = tls
        self._port = Port(
            handlers={path.encode(): handler for path, handler in handlers.items()},
            bounds=bounds,
            held=Held(bounds.held_bytes),
            needs_alpn=tls is not None,
        )
        self._places = Places(bounds, self._port.addresses)
        self._connections: set[Connection] = set()
        self._handshakes: set[TlsTransport] = set()
        self._greetings: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._listening = listening(address) if isinstance(address, str) else address

    @property
    def address(self) -> str:
        """``HOST:PORT`` as it is bound."""
        return bound_address(self._listening)

    @property
    def held_bytes(self) -> int:
        """What requests that have arrived and are not consumed take."""
        return self._port.held.bytes

    @property
    def calls(self) -> int:
        """How many calls are under way, of all connections."""
        return self._port.calls

    @property
    def connections(self) -> int:
        """How many connections are open, handshakes included."""
        return len(self._places)

    async def start(self) -> None:
        """Accept connections, on the running event loop. Raises OSError if the port is taken."""
        self._listening.listen(BACKLOG)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def stop(self, grace_s: float) -> None:
        """Refuse new connections and calls; see `contract.ClientServer`."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait((self._accepting,))
        self._listening.close()
        for greeting in self._greetings:
            greeting.cancel()
        if self._greetings:
            await asyncio.wait(tuple(self._greetings))
        for handshake in tuple(self._handshakes):
            handshake.abort()
        for connection in tuple(self._connections):
            connection.drain()
        await self._empty(grace_s)
        for connection in tuple(self._connections):
            connection.end()
        await self._empty(_LAST_BYTES_S)
        for connection in tuple(self._connections):
            connection.abort()
        await self._empty(_LAST_BYTES_S)
        if self._port.tasks:
            await asyncio.wait(tuple(self._port.tasks), timeout=_LAST_BYTES_S)

    async def _empty(self, timeout_s: float) -> None:
        """Wait until no connection is left, but not for longer."""
        if self._is_empty:
            return
        self._emptied = asyncio.get_running_loop().create_future()
        await asyncio.wait((self._emptied,), timeout=timeout_s)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for number in itertools.count(1):
            if not number % _ACCEPTED_AT_ONCE:
                await asyncio.sleep(0)  # while callers wait in line, `accept` never suspends
            try:
                connection, address = await accept(self._listening)
            except OSError as error:
                if error.errno in _OF_THE_CALLER:
                    continue
                logger.error("cannot accept a client: %s", error)
                await asyncio.sleep(_NO_FILES_S)
                continue
            place = self._places.enter(_host(address), loop.time())
            if place is None:
                connection.close()
                continue
            task = loop.create_task(self._greet(connection, place, _peer(address)))
            place.end = task.cancel
            self._greetings.add(task)
            task.add_done_callback(partial(self._on_greeted, connection, place))

    def _on_greeted(
        self, connection: socket.socket, place: Place, task: asyncio.Task[None]
    ) -> None:
        """Close what no protocol has taken over; the task may have ended before it began."""
        self._greetings.discard(task)
        if not place.taken:
            connection.close()
            self._places.leave(place)

    async def _greet(self, connection: socket.socket, place: Place, peer: str) -> None:
        """Hand a connection over to its protocol, which may be TLS in front of it."""

        def build() -> asyncio.Protocol:
            protocol = self._protocol(place, peer)
            place.taken = True
            return protocol

        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                await self._places.greet(place)
            await asyncio.get_running_loop().connect_accepted_socket(build, connection)
        except OSError as error:
            logger.debug("no connection with %s: %s", peer, error)

    def _protocol(self, place: Place, peer: str) -> asyncio.Protocol:
        """Return what gets a connection's bytes: its protocol, or TLS in front of it."""

        def begin(protocol: Connection) -> None:
            self._connections.add(protocol)
            place.end, place.is_idle = protocol.make_room, lambda: protocol.is_idle

        def secure(protocol: TlsTransport) -> None:
            self._handshakes.discard(protocol)
            self._places.end_greeting(place)

        def lose(protocol: Connection | TlsTransport) -> None:
            self._connections.discard(protocol)
            self._handshakes.discard(protocol)
            self._places.leave(place)
            if self._is_empty and self._emptied and not self._emptied.done():
                self._emptied.set_result(None)

        if self._tls is None:
            return Connection(self._port, peer, on_made=begin, on_lost=lose)
        forget = self._connections.discard
        secured = TlsTransport(
            self._tls.context,
            Connection(self._port, peer, on_made=begin, on_lost=forget),
            handshake_s=self._bounds.handshake_s,
            on_open=secure,
            on_lost=lose,
        )
        place.end = secured.abort
        self._handshakes.add(secured)
        return secured

    @property
    def _is_empty(self) -> bool:
        return not (self._connections or self._handshakes)


_OF_THE_CALLER: Final = (errno.ECONNABORTED, errno.EPROTO, errno.EPERM)
"""The connection that was to be accepted is gone; the next one may be sound (Linux, accept(2))."""


def _host(address: tuple[Any, ...]) -> str:
    """Return the host of a socket's address; of one in both families, as IPv4."""
    return str(address[0]).removeprefix("::ffff:")


def _peer(address: tuple[Any, ...]) -> str:
    """Return an address as gRPC names it, which keeps brackets out of what it takes for a URI."""
    host, port = _host(address), address[1]
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
