"""The port that receives Raft messages as frames on plain TCP.

A gRPC message costs 150 to 200 us of CPU and several thread switches at either end, and each entry
needs two per follower: that was most of an entry's cost (ADR 13). So each member has two plain
connections on the event loop, one for entries and one for votes and heartbeats. What else goes
between nodes without gRPC begins with a token of its own (`ReplicationPort.admitted_as`)::

    connection := token (16 bytes) | (length u32 | `peer_codec` frame)*

The handshake on a gRPC stream decides who may connect: its response has this port and a connect
token, which is valid for as long as that stream.

Anyone can open a connection. One that sends no token within a second is closed; if there are too
many of them, the oldest is closed first, because a member sends its token at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from dledger.common.features import LOWEST_LEVEL
from dledger.common.limits import MAX_PEER_FRAME_BYTES
from dledger.errors import InvalidArgument, MemberRemoved, NewerCommand, NotMember
from dledger.peers.acceptor import GREETING_S, Acceptor, begins_tls, plain_token
from dledger.peers.framing import BadFraming, FrameReader
from dledger.peers.handshake import MAX_LEVEL, ClientAddress, Handshake
from dledger.peers.peer_codec import BadFrame
from dledger.rpc import callers
from dledger.rpc.peer_tls import PeerTls

logger = logging.getLogger(__name__)

CONNECT_TOKEN_KEY: Final = "dledger-replication"  # noqa: S105, the name of a header
"""Initial metadata of an accepted handshake: the connect token."""
TOKEN_BYTES: Final = 16
_TOKEN_WITHIN_S: Final = 1.0
_MAX_UNAUTHENTICATED: Final = 64
"""Connections that have not sent a token yet. Beyond that, the oldest one from the address with the
most of them is closed."""
_OTHERS_BYTES: Final = 256 << 10
"""What is read at once of a connection that is not for replication."""
_MAX_OF_TOKEN: Final = 4
"""Connections with one token: a member has two, and may reopen them before this node notices that
the old ones broke. Beyond that, the oldest is closed."""
_MAX_CONNECT_TOKEN_CHARS: Final = 256
_PARTS_WITHOUT_CLIENTS: Final = 3


@dataclass(frozen=True, slots=True)
class ConnectToken:
    """The port to connect to, on the host that was called, and the token to send there.

    A token may have more parts than these, from a newer version; they are ignored.

    Attributes:
        feature_level: The feature level of the node that issued it; the lowest if it sends none.
        clients: Where clients reach that node; None if it sends none.
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
        take: Handles one frame of the node with that handshake; the view is valid during the call
            only. If it raises BadFrame, MemberRemoved or NewerCommand, the connection is closed.
        lost: Called when a connection of that node ended while its control stream lasts.
        feature_level: This node's feature level, sent in its connect tokens.
        clients: Where clients reach this node, sent in its connect tokens.
        tls: The certificates; None: plain text.
    """

    def __init__(
        self,
        take: Callable[[Handshake, memoryview], None],
        lost: Callable[[Handshake], None],
        *,
        feature_level: int = LOWEST_LEVEL,
        clients: ClientAddress | None = None,
        tls: PeerTls | None = None,
    ) -> None:
        self._take, self._lost = take, lost
        self._tls = tls
        self._acceptor = Acceptor("the replication port", self._greet) if tls else None
        self._feature_level, self._clients = feature_level, clients
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._handshakes: dict[bytes, tuple[Handshake, str | None]] = {}
        self._others: dict[bytes, tuple[str | None, Callable[[], asyncio.Protocol]]] = {}
        self._connections: dict[_Connection, None] = {}  # oldest first

    @property
    def group(self) -> callers.Group:
        """Whose callers are believed."""
        return self._tls.group if self._tls is not None else callers.Group()

    @property
    def number(self) -> int:
        """The number of the bound port."""
        return int(self._bound().getsockname()[1])

    def bind(self, host: str, port: int) -> None:
        """Bind the port; 0 binds any free one. Raises OSError naming the address."""
        try:
            self._socket = socket.create_server((host, port))
        except OSError as error:
            raise OSError(f"cannot listen on {host}:{port}: {error}") from error

    async def start(self) -> None:
        """Accept connections."""
        if self._acceptor is not None:
            self._acceptor.start(self._bound())
            return
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=self._bound())

    def close(self) -> None:
        """Stop accepting, and close all connections."""
        if self._acceptor is not None:
            self._acceptor.close()
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        for connection in tuple(self._connections):
            connection.end()

    def refuse_plain(self) -> None:
        """End the connections in plain text; `tls` takes no new ones any more."""
        for connection in tuple(self._connections):
            if connection.role is None:
                connection.end()

    @contextlib.contextmanager
    def admitted(self, handshake: Handshake, role: str | None = None) -> Iterator[ConnectToken]:
        """Let the node with that handshake connect inside the block; then close its connections.

        With the *role* that it has proved, over TLS only and to whoever has it; None: it has proved
        none, and may connect in plain text.
        """
        token = plain_token(TOKEN_BYTES)
        self._handshakes[token] = handshake, role
        try:
            yield ConnectToken(self.number, token, self._feature_level, self._clients)
        finally:
            del self._handshakes[token]
            self._end_of(token)

    @contextlib.contextmanager
    def admitted_as(
        self, build: Callable[[], asyncio.Protocol], role: str | None = None
    ) -> Iterator[bytes]:
        """Let who has the token connect once for something else inside the block; then end that.

        Args:
            build: Returns what gets the bytes behind the token.
            role: As in `admitted`.
        """
        token = plain_token(TOKEN_BYTES)
        self._others[token] = role, build
        try:
            yield token
        finally:
            self._others.pop(token, None)
            self._end_of(token)

    def _end_of(self, token: bytes) -> None:
        for connection in tuple(self._connections):
            if connection.token == token:
                connection.end()

    async def _greet(self, connection: socket.socket) -> None:
        """Take a connection over: over TLS, or in plain text where that is accepted."""
        tls = self._tls
        is_tls = tls is None or not tls.takes_plain or await begins_tls(connection)
        secure: dict[str, Any] = {}
        if tls is not None and (is_tls or not tls.takes_plain):
            secure = {"ssl": tls.server_context, "ssl_handshake_timeout": GREETING_S}
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: _Connection(self), connection, **secure)

    def _bound(self) -> socket.socket:
        if self._socket is None:
            raise RuntimeError("the replication port is not bound")
        return self._socket

    # -- calls from connections ------------------------------------------------------------------

    def opened(self, connection: _Connection) -> None:
        """Count a connection; if too many are unauthenticated, close an old one."""
        self._connections[connection] = None
        waiting = [each for each in self._connections if each.is_unauthenticated]
        if len(waiting) > _MAX_UNAUTHENTICATED:
            by_host = Counter(each.host for each in waiting)
            most = max(by_host.values())
            next(each for each in waiting if by_host[each.host] == most).give_way()

    def authenticated(self, token: bytes, role: str | None) -> Handshake | None:
        """Return the handshake of a token; None if unknown, or if it is not of who has *role*.

        A role of None is plain text. Closes the oldest of too many.
        """
        handshake, proved = self._handshakes.get(token, (None, None))
        if handshake is None:
            return None
        if role != (proved if role is None else callers.member(handshake.sender_name)):
            logger.warning("refused the token of %r from %r", handshake.sender_name, role)
            return None
        same = [c for c in self._connections if c.token == token and not c.is_superseded]
        for each in same[:-_MAX_OF_TOKEN]:
            each.supersede()
        return handshake

    def other(self, token: bytes, role: str | None) -> asyncio.Protocol | None:
        """Return what takes the bytes of a connection that is not for replication."""
        proved, build = self._others.get(token, (None, None))
        if build is None or role != proved:
            return None
        del self._others[token]
        return build()

    def received(self, handshake: Handshake, frame: memoryview) -> None:
        """Pass on a frame from an authenticated connection."""
        self._take(handshake, frame)

    def closed(self, connection: _Connection) -> None:
        """Remove a connection; if its token is still valid, report its node as lost."""
        self._connections.pop(connection, None)
        handshake, _ = self._handshakes.get(connection.token, (None, None))
        if handshake is not None and not connection.is_superseded:
            self._lost(handshake)


class _Connection(asyncio.BufferedProtocol):
    """One connection: unauthenticated until it has sent a token.

    Attributes:
        role: The one in its certificate; None in plain text.
    """

    def __init__(self, port: ReplicationPort) -> None:
        self.token = b""
        self.host = ""
        self.role: str | None = None
        self.is_superseded = self.is_unauthenticated = False
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._space = memoryview(bytearray(TOKEN_BYTES))
        self._frames: FrameReader | None = None
        self._other: asyncio.Protocol | None = None
        self._name = "an unauthenticated connection"
        self._patience: asyncio.TimerHandle | None = None

    def give_way(self) -> None:
        """Close it, to make room for newer unauthenticated ones."""
        self.is_unauthenticated = False
        self.end()

    def supersede(self) -> None:
        """Close it for a newer one of the same node; this does not count as a loss."""
        self.is_superseded = True
        self.end()

    def end(self) -> None:
        """Close it now."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.host = str((transport.get_extra_info("peername") or ("",))[0])
        if transport.get_extra_info("sslcontext") is not None:
            peer = transport.get_extra_info("peercert")
            self.role = callers.role_of_certificate(peer, self._port.group)
        self.is_unauthenticated = True
        self._patience = asyncio.get_running_loop().call_later(
            _TOKEN_WITHIN_S, self._token_timed_out
        )
        self._port.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._transport = None
        if self._frames is not None:
            self._frames.close()  # frees the buffer now, not when the collector breaks the cycle
        if self._other is not None:
            self._other.connection_lost(error)
        self._port.closed(self)

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.pause_writing()

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        return self._space if self._frames is None else self._frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        if self._other is not None:
            self._other.data_received(bytes(self._space[:nbytes]))
            return
        if self._frames is None:
            self._read_token(nbytes)
            return
        try:
            self._frames.filled(nbytes)
        except (BadFrame, BadFraming) as error:
            logger.error("replication from %r: %s", self._name, error)
            self.end()
        except (MemberRemoved, NotMember, NewerCommand):
            self.end()  # the control stream reports the reason, or this node stops

    def _read_token(self, count: int) -> None:
        self.token += self._space[:count]
        self._space = self._space[count:]
        if self._space:
            return
        other = self._port.other(self.token, self.role)
        if other is not None and self._transport is not None:
            self.is_unauthenticated = False
            self._other, self._space = other, memoryview(bytearray(_OTHERS_BYTES))
            other.connection_made(self._transport)
            return
        handshake = self._port.authenticated(self.token, self.role)
        if handshake is None:
            self.end()
            return

        def received(frame: memoryview) -> None:
            if self._transport is not None:
                self._port.received(handshake, frame)

        self._name, self.is_unauthenticated = handshake.sender_name, False
        self._frames = FrameReader(received, max_frame_bytes=MAX_PEER_FRAME_BYTES)

    def _token_timed_out(self) -> None:
        if self.is_unauthenticated:
            self.end()
