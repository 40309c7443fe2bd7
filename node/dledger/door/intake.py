"""The receiving side of one connection: what its client may send, and what is kept of it.

HTTP/2's windows are the bounds. Nothing is acknowledged when it arrives, only when it is consumed:
a call's request when the call is over, a stream's message when its handler reads it. So a client
has no more unread bytes here than the connection's window, however many calls it makes.

A message that needs more than its stream's window has left is *promised* the rest, in turn, out of
what the connection's window has beyond all streams' (`Bounds.promised_bytes`). So large messages
become complete one after the other, and never wait for each other, each half-way.

The library announces what was acknowledged once that is half of a window, so up to half may be
neither kept here nor free for the client. A promise is therefore made of what a stream really has
left, and a stream's window is at any time `stream_window_bytes` and what it is promised.
"""

from __future__ import annotations

import contextlib

import ngh2

from dledger.door.bounds import Bounds, Held
from dledger.door.call import Call
from dledger.door.contract import Code, Failed


class Intake:
    """Of one connection.

    Args:
        h2: The connection's state; it acknowledges nothing by itself.
        bounds: The port's limits.
        held: What all connections of the port hold.
    """

    __slots__ = ("_bounds", "_h2", "_held", "_promised", "_waiting")

    def __init__(self, h2: ngh2.Connection, bounds: Bounds, held: Held) -> None:
        self._h2, self._bounds, self._held = h2, bounds, held
        self._promised = 0
        self._waiting: dict[Call, None] = {}  # in the order of their turns

    def take(self, call: Call, data: bytes, now_s: float) -> None:
        """Give a call what has arrived for it.

        Raises:
            Failed: The message is refused, or the port holds too much.
        """
        size = len(data)
        call.unconsumed += size
        self._held.bytes += size
        if self._held.bytes > self._held.limit:
            raise Failed(
                Code.RESOURCE_EXHAUSTED,
                f"requests of {self._held.limit} bytes are under way; back off and retry",
            )
        call.data(data, now_s)
        if call.inbox.missing:
            self._ask(call)

    def discard(self, stream_id: int, size_bytes: int) -> None:
        """Acknowledge what nobody will read."""
        if size_bytes:
            self._h2.acknowledge_received_data(size_bytes, stream_id)

    def consume(self, call: Call, size_bytes: int) -> None:
        """Acknowledge what a call's handler has read; of promised room, none is announced again."""
        call.unconsumed -= size_bytes
        self._held.bytes -= size_bytes
        if call.promised:
            freed = min(call.promised, size_bytes)
            call.promised -= freed
            self._promised -= freed
            self._open(call)
        self.discard(call.stream_id, size_bytes)
        self._ask(call)
        self._admit()

    def leave(self, call: Call) -> None:
        """Acknowledge all of a call that is over, and let the next have its promise."""
        size, call.unconsumed = call.unconsumed, 0
        self._held.bytes -= size
        self.discard(call.stream_id, size)
        if self._waiting or call.promised:
            self._waiting.pop(call, None)
            self._promised -= call.promised
            call.promised = 0
            self._admit()

    def forget(self, call: Call) -> None:
        """As `leave`, of a connection that is gone."""
        self._held.bytes -= call.unconsumed
        call.unconsumed = 0

    def _ask(self, call: Call) -> None:
        """Wait for a promise, if a message has begun that its window does not suffice for.

        One behind others that are unread waits for its handler first, not for room.
        """
        missing = call.inbox.missing
        if missing and call.unconsumed == call.inbox.kept and missing > self._left(call):
            self._waiting.setdefault(call)
            self._admit()

    def _admit(self) -> None:
        """Promise the first in line what their messages lack, while it fits."""
        while self._waiting:
            call = next(iter(self._waiting))
            lacking = call.inbox.missing - self._left(call)
            if lacking > 0 and self._promised + lacking > self._bounds.promised_bytes:
                return
            del self._waiting[call]
            if lacking > 0:
                self._promised += lacking
                call.promised += lacking
                self._open(call)

    def _left(self, call: Call) -> int:
        """Return what a call's client may send now; of one that is being closed, anything."""
        try:
            return self._h2.stream_local_window_size(call.stream_id)
        except ngh2.StreamUnavailableError:
            return call.inbox.missing

    def _open(self, call: Call) -> None:
        with contextlib.suppress(ngh2.StreamUnavailableError):
            self._h2.set_local_window_size(
                self._bounds.stream_window_bytes + call.promised, stream_id=call.stream_id
            )
