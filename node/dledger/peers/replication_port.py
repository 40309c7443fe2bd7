"""Where Raft's messages come in: frames on plain TCP.

A gRPC message costs 150 to 200 us of CPU and several changes of thread at either end, and each
entry needs two to a follower and back: most of what an entry cost (ADR 13). So these have
connections of the event loop's own, one for entries and one for votes and heartbeats::

    connection := token (16 bytes) | (length u32 | `peer_codec` frame)*

Who may open one was decided by the greeting of a gRPC stream, which is answered with this port and
a token. That is good for as long as the stream.

Anyone can connect. Who has shown no token within a second goes, and where there are too many of
them, the oldest goes before a newer one: a member shows its token at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, cast

from dledger.common.features import LOWEST_LEVEL
from dledger.common.limits import MAX_PEER_FRAME_BYTES
from dledger.errors import InvalidArgument, MemberRemoved, NewerCommand, NotMember
from dledger.peers.framing import BadFraming, FrameReader
from dledger.peers.handshake import MAX_LEVEL, ClientAddress, Handshake
from dledger.peers.peer_codec import BadFrame

logger = logging.getLogger(__name__)

CONNECT_TOKEN_KEY: Final = "dledger-replication"  # noqa: S105, the name of a header
"""Initial metadata of an accepted greeting: the connect token."""
TOKEN_BYTES: Final = 16
_GREETS_WITHIN_S: Final = 1.0
_MAX_STRANGERS: Final = 64
"""Connections that have not shown a token yet; where there are more, the oldest goes, of those
from the address with the most."""
_MAX_OF_TOKEN: Final = 4
"""Connections with one token: a member has two, and may open them anew before this node knows that
the old ones broke. Where there are more, the oldest goes."""
_MAX_CONNECT_TOKEN_CHARS: Final = 256
_PARTS_WITHOUT_CLIENTS: Final = 3


@dataclass(frozen=True, slots=True)
class ConnectToken:
    """The port to connect to, at the host that was called, and what to show there.

    A token may have more than these parts: those of a newer version, which are ignored.

    Attributes:
        feature_level: What the node that gave it knows; who does not say it is of the lowest.
        clients: Where clients reach that node; None if it did not say.
    """

    port: int
    token: bytes
    feature_level: int = LOWEST_LEVEL
    clients: ClientAddress | None = None

    def encode(self) -> str:
        """Return the metadata value."""
        own = f"{self.port}:{self.token.hex()}:{self.feature_level}"
        clients = self.clients
        return f"{own}:{clients.host}:{clients.port}:{clients.tls_port}" if clients else own

    @classmethod
    def decode(cls, text: str) -> ConnectToken:
        """Parse a metadata value. Raises InvalidArgument."""
        parts = text.split(":") if len(text) <= _MAX_CONNECT_TOKEN_CHARS else []
        port, token, level, *more = *parts, "", "", ""
        with contextlib.suppress(ValueError, InvalidArgument):
            clients = _clients(*more[:3]) if len(parts) > _PARTS_WITHOUT_CLIENTS else None
            connect_token = cls(
                int(port), bytes.fromhex(token), int(level or LOWEST_LEVEL), clients
            )
            whole = 0 < connect_token.port < 1 << 16 and len(connect_token.token) == TOKEN_BYTES
            if whole and LOWEST_LEVEL <= connect_token.feature_level <= MAX_LEVEL:
                return connect_token
        raise InvalidArgument(f"not a connect token for the replication port: {text[:80]!r}")


def _clients(host: str, port: str, tls_port: str) -> ClientAddress:
    return ClientAddress.checked(host=host, port=int(port), tls_port=int(tls_port))


class ReplicationPort:
    """The listening end.

    Args:
        take: Takes one frame of the node that greeted so; the view is good for that call only.
            BadFrame, MemberRemoved and NewerCommand, raised by it, end the connection.
        lost: Told when a connection of that node ended while its greeted stream lasts.
        feature_level: This node's, which its tickets say.
        clients: Where clients reach this node, which they say, too.
    """

    def __init__(
        self,
        take: Callable[[Handshake, memoryview], None],
        lost: Callable[[Handshake], None],
        *,
        feature_level: int = LOWEST_LEVEL,
        clients: ClientAddress | None = None,
    ) -> None:
        self._take, self._lost = take, lost
        self._feature_level, self._clients = feature_level, clients
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._handshakes: dict[bytes, Handshake] = {}
        self._connections: dict[_Connection, None] = {}  # oldest first

    @property
    def number(self) -> int:
        """The port that was bound."""
        return int(self._bound().getsockname()[1])

    def bind(self, host: str, port: int) -> None:
        """Take the port; 0: any that is free. Raises OSError naming the address."""
        try:
            self._socket = socket.create_server((host, port))
        except OSError as error:
            raise OSError(f"cannot listen on {host}:{port}: {error}") from error

    async def start(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=self._bound())

    def close(self) -> None:
        """Accept no more, and end all."""
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        for connection in tuple(self._connections):
            connection.end()

    @contextlib.contextmanager
    def admitted(self, handshake: Handshake) -> Iterator[ConnectToken]:
        """Let the node that greeted so connect while this lasts; then its connections end."""
        token = secrets.token_bytes(TOKEN_BYTES)
        self._handshakes[token] = handshake
        try:
            yield ConnectToken(self.number, token, self._feature_level, self._clients)
        finally:
            del self._handshakes[token]
            for connection in tuple(self._connections):
                if connection.token == token:
                    connection.end()

    def _bound(self) -> socket.socket:
        if self._socket is None:
            raise RuntimeError("the replication port is not bound")
        return self._socket

    # -- what connections tell -------------------------------------------------------------------

    def opened(self, connection: _Connection) -> None:
        """Count a connection; where there are too many strangers, an old one is ended."""
        self._connections[connection] = None
        strangers = [each for each in self._connections if each.is_unauthenticated]
        if len(strangers) > _MAX_STRANGERS:
            crowds = Counter(each.host for each in strangers)
            most = max(crowds.values())
            next(each for each in strangers if crowds[each.host] == most).give_way()

    def greeted(self, token: bytes) -> Handshake | None:
        """Return whose token this is; None: nobody's. Of too many with it, the oldest goes."""
        handshake = self._handshakes.get(token)
        if handshake is not None:
            same = [c for c in self._connections if c.token == token and not c.is_superseded]
            for each in same[:-_MAX_OF_TOKEN]:
                each.supersede()
        return handshake

    def received(self, handshake: Handshake, frame: memoryview) -> None:
        """Pass on a frame."""
        self._take(handshake, frame)

    def closed(self, connection: _Connection) -> None:
        """Forget a connection; while its token is good, the node at its other end is lost."""
        self._connections.pop(connection, None)
        handshake = self._handshakes.get(connection.token)
        if handshake is not None and not connection.is_superseded:
            self._lost(handshake)


class _Connection(asyncio.BufferedProtocol):
    """One connection: a stranger's, until it has shown a token."""

    def __init__(self, port: ReplicationPort) -> None:
        self.token = b""
        self.host = ""
        self.is_superseded = self.is_unauthenticated = False
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._greeting = memoryview(bytearray(TOKEN_BYTES))
        self._frames: FrameReader | None = None
        self._name = "a stranger"
        self._patience: asyncio.TimerHandle | None = None

    def give_way(self) -> None:
        """Close it, for newer strangers."""
        self.is_unauthenticated = False
        self.end()

    def supersede(self) -> None:
        """Close it, for newer ones of the same node: that is no loss."""
        self.is_superseded = True
        self.end()

    def end(self) -> None:
        """Close it now."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.host = str((transport.get_extra_info("peername") or ("",))[0])
        self.is_unauthenticated = True
        self._patience = asyncio.get_running_loop().call_later(_GREETS_WITHIN_S, self._impatient)
        self._port.opened(self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        if self._patience is not None:
            self._patience.cancel()
        self._transport = None
        if self._frames is not None:
            self._frames.close()  # now: what it holds is a ring that the collector finds late
        self._port.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        return self._greeting if self._frames is None else self._frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        if self._frames is None:
            self._greeted(nbytes)
            return
        try:
            self._frames.filled(nbytes)
        except (BadFrame, BadFraming) as error:
            logger.error("replication from %r: %s", self._name, error)
            self.end()
        except (MemberRemoved, NotMember, NewerCommand):
            self.end()  # its greeted stream is told so, or this node stops

    def _greeted(self, count: int) -> None:
        self.token += self._greeting[:count]
        self._greeting = self._greeting[count:]
        if self._greeting:
            return
        handshake = self._port.greeted(self.token)
        if handshake is None:
            self.end()
            return

        def received(frame: memoryview) -> None:
            if self._transport is not None:
                self._port.received(handshake, frame)

        self._name, self.is_unauthenticated = handshake.sender_name, False
        self._frames = FrameReader(received, max_frame_bytes=MAX_PEER_FRAME_BYTES)

    def _impatient(self) -> None:
        if self.is_unauthenticated:
            self.end()
