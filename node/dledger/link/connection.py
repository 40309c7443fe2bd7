"""One end of the link: frames in, frames out, joined into one write for each turn of the loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, cast

from dledger.link.frames import BrokenFraming, Inbox, Kind, MalformedFrame, rejecting

logger = logging.getLogger(__name__)

_SOCKET_BYTES: Final = 1 << 20
"""Of each socket buffer: what a turn sends is written at once, and nobody waits for the other."""
_HIGH_BYTES: Final = 8 << 20
"""From here on streams wait; a door that takes no more is about to be found hanging."""
_LARGE_BYTES: Final = 256 << 10
"""Frames up to this size are copied together: a system call for each would cost more."""

Receive = Callable[[int, int, bytes], None]


class Link(asyncio.Protocol):
    """An end.

    Args:
        receive: Gets kind, number and payload of each frame; may raise MalformedFrame.
        on_malformed: Gets kind and number of a frame for which it did, and the error.
        on_turn: Called before what a turn of the loop has to send is written.
        on_lost: Called once it is closed, with the reason.
        max_bytes: The largest payload that it takes.

    Attributes:
        full: Whether the other side is too far behind.
    """

    def __init__(
        self,
        receive: Receive,
        *,
        on_malformed: Callable[[int, int, MalformedFrame], None],
        on_turn: Callable[[], None],
        on_lost: Callable[[str], None],
        max_bytes: int,
    ) -> None:
        self._receive, self._on_malformed = receive, on_malformed
        self._on_turn, self._on_lost = on_turn, on_lost
        self._has_rejected = False
        self._inbox = Inbox(max_bytes)
        self._out: list[bytes] = []
        self._why = "the other side has closed it"
        self._due = self.closed = self.full = False
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, end: socket.socket, build: Callable[[], Link]) -> Link:
        """Return the link over *end*, which it owns from now on."""
        end.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
        _, link = await asyncio.get_running_loop().create_unix_connection(build, sock=end)
        return link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set its bounds."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell its owner."""
        self.closed = True
        self._on_lost(str(exc) if exc is not None else self._why)

    def pause_writing(self) -> None:
        """Let streams wait."""
        self.full = True

    def resume_writing(self) -> None:
        """Let them go on; they look when the next frame is sent, or taken."""
        self.full = False
        self.turn()

    def data_received(self, data: bytes) -> None:
        """Take in frames."""
        try:
            frames = self._inbox.feed(data)
        except BrokenFraming as error:
            logger.error("a link ends, since nothing more of it can be read: %s", error)
            self.close(str(error))
            return
        for kind, number, payload in frames:
            if self.closed:
                return
            try:
                self._receive(kind, number, payload)
            except MalformedFrame as error:
                self._on_malformed(kind, number, error)

    def reject(self, kind: int, number: int, why: MalformedFrame) -> None:
        """Tell the other side that a frame of its was not read; the log has the first.

        A side that takes nothing is not told: what it awaits has a deadline.
        """
        if not self._has_rejected:
            self._has_rejected = True
            logger.warning("a frame of kind %d was refused, and others may be: %s", kind, why)
        if kind != Kind.REJECTED and not self.full:
            self.send(rejecting(number, kind))

    def send(self, frame: bytes) -> None:
        """Send a frame with all others of this turn of the loop."""
        self._out.append(frame)
        if not self._due:
            self.turn()

    def turn(self) -> None:
        """Ask for `on_turn` at the end of this turn."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._flush)

    def close(self, why: str) -> None:
        """End it, once what is queued is sent."""
        if not self.closed:
            self._why = why
            self._flush()
            self.closed = True
            self._transport.close()

    def abort(self, why: str) -> None:
        """End it now."""
        self._why = why
        self.closed = True
        self._transport.abort()

    def _flush(self) -> None:
        self._on_turn()
        self._due = False
        out, self._out = self._out, []
        if not out or self.closed:
            return
        small: list[bytes] = []
        for frame in out:
            if len(frame) <= _LARGE_BYTES:
                small.append(frame)
                continue
            if small:
                self._transport.write(b"".join(small))
                small = []
            self._transport.write(frame)
        if small:
            self._transport.write(b"".join(small))
