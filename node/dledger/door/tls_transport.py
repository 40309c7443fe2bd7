"""TLS between a socket and its connection: by OpenSSL's memory buffers, not by the event loop.

An event loop's own TLS keeps a read buffer of 256 KiB for each connection that once filled it, and
keeps it in circles, which go with the garbage collector's longest rounds or never. Here a
connection has what OpenSSL needs, and lets go of it when its socket is gone (ADR 55).

`TlsBytes` is TLS as bytes in and bytes out, without socket, loop or clock; `TlsTransport` stands
between the loop's transport and `connection.Connection`, for which it is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

logger = logging.getLogger(__name__)

SLICE_BYTES: Final = 16 << 10
"""Given to OpenSSL, and taken from it, at once, as its memory buffers never shrink: a record."""
GREETING_BYTES: Final = 32 << 10
"""Of a client before its handshake is done. With keys against quantum computers it needs 2 KiB."""
BARREN_BYTES: Final = 20 << 10
"""Of a client that carry nothing: new keys (27 bytes and 10 us of this node each), renegotiations,
which are refused, padding. 64 bytes of data pay for one. A record on its way, of at most 16.3 KiB,
counts until it has come."""
_PAYS: Final = 64
_FRAMING: Final = {"TLSv1.3": 5 + 1 + 16}
_FRAMING_BEFORE: Final = 5 + 16 + 48 + 16
"""What a record has beside its data: head, kind, tag; before 1.3 at most head, IV, MAC, padding."""
_LINGER_S: Final = 1.0
"""How long the last bytes may take to be sent before a connection is cut, as in `connection`."""


class BrokenTls(Exception):
    """A client breaks a rule of ours about TLS, not one of OpenSSL's; its connection is closed."""


class TlsBytes:
    """The server's side of one TLS connection.

    Args:
        context: Certificate, versions, ALPN.

    Attributes:
        is_open: Whether the handshake is done.
        is_over: Whether the client said that it sends no more (close_notify).
    """

    __slots__ = ("_barren", "_framing", "_incoming", "_outgoing", "_tls", "is_open", "is_over")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_open = self.is_over = False
        self._barren = self._framing = 0

    @property
    def ssl_object(self) -> ssl.SSLObject:
        """What knows what was chosen in the handshake."""
        return self._tls

    @property
    def has_words(self) -> bool:
        """Whether there is something to `drain`."""
        return self._outgoing.pending > 0

    def receive(self, data: bytes | memoryview) -> bytes:
        """Take in at most SLICE_BYTES of the socket; return what they carry, b"" for nothing yet.

        There may be something to `drain` afterwards; after an error it tells the client which.

        Raises:
            ssl.SSLError: This is not TLS, or none that is accepted.
            BrokenTls: It is a flood.
        """
        if self.is_over:
            return b""
        incoming = self._incoming
        size = len(data)
        incoming.write(data)
        if not self.is_open:
            if not self._greet(size):
                return b""
            size = incoming.pending  # what came right behind the handshake
        read, pieces = self._tls.read, []
        # OpenSSL takes one record out at a time, so with nothing pending reading would only raise.
        with contextlib.suppress(ssl.SSLWantReadError):
            while incoming.pending and not self.is_over:
                piece = read(SLICE_BYTES)
                self.is_over = not piece
                pieces.append(piece)
        carried = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._count(size, carried, len(pieces))
        return carried

    def _greet(self, size: int) -> bool:
        self._barren += size
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            if self._barren > GREETING_BYTES:
                raise BrokenTls("its handshake has no end") from None
            return False
        self.is_open, self._barren = True, 0
        self._framing = _FRAMING.get(self._tls.version() or "", _FRAMING_BEFORE)
        return True

    def _count(self, size: int, carried: bytes, records: int) -> None:
        paid = len(carried) + len(carried) // _PAYS + records * self._framing
        self._barren = max(0, self._barren + size - paid)
        if self._barren > BARREN_BYTES:
            raise BrokenTls("it sends what carries nothing")

    def send(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Return what carries *data* to the client.

        Raises:
            ssl.SSLError: The client stopped within a message of TLS, so nothing can be sent.
        """
        if len(data) <= SLICE_BYTES:
            self._tls.write(data)
            return [self._outgoing.read()]
        pieces, view = [], memoryview(data)
        for start in range(0, len(data), SLICE_BYTES):
            self._tls.write(view[start : start + SLICE_BYTES])
            pieces.append(self._outgoing.read())
        return pieces

    def drain(self) -> bytes:
        """Return what TLS itself has to say: of the handshake, an alert, or nothing."""
        return self._outgoing.read()

    def end(self) -> bytes:
        """Return the close_notify, which says that nothing was cut off. Its answer is not awaited.

        Source: RFC 8446, 6.1.
        """
        if self.is_open:
            with contextlib.suppress(ssl.SSLError):  # "want read", as the client's has not come
                self._tls.unwrap()
        return self._outgoing.read()


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """To the loop's transport a protocol, to the connection its transport.

    What a connection writes is encrypted at once, so `pause_writing` and the size of the write
    buffer are the socket's own, in bytes of ciphertext: some 22 more a record.

    Args:
        context: Certificate, versions, ALPN.
        protocol: Gets what a client sends, from the end of the handshake on.
        handshake_s: How long that may take.
        on_open: Called at its end, before the protocol knows of it.
        on_lost: Called once the socket is closed, also if the protocol never knew of it.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        protocol: asyncio.Protocol,
        *,
        handshake_s: float,
        on_open: Callable[[TlsTransport], None],
        on_lost: Callable[[TlsTransport], None],
    ) -> None:
        super().__init__()
        self._tls: TlsBytes | None = TlsBytes(context)
        self._protocol: asyncio.Protocol | None = protocol
        self._handshake_s = handshake_s
        self._on_open, self._on_lost = on_open, on_lost
        self._opened = self._closing = False

    # -- the socket's side -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client's first bytes."""
        self._socket = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._handshake_s, self._give_up, "no handshake yet")

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of all that TLS holds, whoever still knows of this."""
        protocol, self._tls, self._protocol = self._protocol, None, None
        self._timer.cancel()
        if self._opened and protocol is not None:
            protocol.connection_lost(exc)
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        """Decrypt what came, and hand it on in one piece: many records cost no more than one."""
        tls = self._tls
        if tls is None or self._closing:
            return
        try:
            if len(data) <= SLICE_BYTES:
                carried = tls.receive(data)
            else:
                view, starts = memoryview(data), range(0, len(data), SLICE_BYTES)
                carried = b"".join([tls.receive(view[at : at + SLICE_BYTES]) for at in starts])
        except (ssl.SSLError, BrokenTls) as error:
            self._give_up(str(error))
            return
        if tls.has_words:
            self._socket.write(tls.drain())
        if tls.is_open and not self._opened:
            self._open()
        if carried and self._protocol is not None:
            self._protocol.data_received(carried)
        if tls.is_over:
            self.close()

    def eof_received(self) -> bool:
        """Close: who sends no more is served no more, as at a port without TLS.

        A client need not say so by a close_notify as well: HTTP/2 itself tells what is whole.
        """
        self.close()
        return False

    def pause_writing(self) -> None:
        """Tell the connection: the socket is full."""
        if self._opened and self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Tell the connection that it may go on."""
        if self._opened and self._protocol is not None:
            self._protocol.resume_writing()

    def _open(self) -> None:
        self._opened = True
        self._timer.cancel()
        self._on_open(self)
        if self._protocol is not None:
            self._protocol.connection_made(self)

    def _give_up(self, why: str) -> None:
        """Close for a fault of the client, which OpenSSL's alert tells it, if there is one."""
        if self._tls is not None and not self._closing:
            # Anyone can bring this about as often as they like.
            peer = self._socket.get_extra_info("peername")
            logger.debug("TLS with %s ends: %s", peer, why)
            self._close(self._tls.drain())

    def _close(self, last: bytes) -> None:
        """Send the last bytes, and wait for no client that does not read them."""
        self._closing = True
        if last:
            self._socket.write(last)
        self._socket.close()
        self._timer.cancel()
        self._timer = self._loop.call_later(_LINGER_S, self._socket.abort)

    # -- the connection's side -------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, which are not kept."""
        if self._tls is None or self._closing:
            return
        try:
            self._socket.writelines(self._tls.send(data))
        except ssl.SSLError as error:
            self._give_up(str(error))

    def close(self) -> None:
        """Close the socket once all is sent, and TLS's own end behind it."""
        if self._tls is not None and not self._closing:
            self._close(self._tls.end())

    def abort(self) -> None:
        """Cut the connection."""
        if self._tls is not None:
            self._closing = True
            self._socket.abort()

    def is_closing(self) -> bool:
        """Whether nothing is sent or received any longer."""
        return self._closing

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait for the socket, in ciphertext."""
        return self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return ``ssl_object``, or what the socket's transport knows."""
        if name == "ssl_object" and self._tls is not None:
            return self._tls.ssl_object
        return self._socket.get_extra_info(name, default)
