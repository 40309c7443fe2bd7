"""The receiving side of one connection: what its client may send, and what is kept of it.

HTTP/2's windows are the bounds. Nothing is acknowledged when it arrives, only when it is consumed:
a call's request when the call is over, a stream's message when its handler reads it. So a client
has no more unread bytes here than the connection's window, however many calls it makes.

A message that is larger than its stream's window is *promised* the rest, in turn, out of what the
connection's window has beyond all streams' (`Bounds.promised_bytes`). So large messages become
complete one after the other, and never wait for each other, each half-way.
"""

from __future__ import annotations

import contextlib
from collections import deque

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
        self._waiting: deque[tuple[Call, int]] = deque()

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
        wanted = call.inbox.wanted
        if wanted > self._bounds.stream_window_bytes and not call.promised:
            self._promise(call, wanted)

    def discard(self, stream_id: int, size_bytes: int) -> None:
        """Acknowledge what nobody will read."""
        if size_bytes:
            self._h2.acknowledge_received_data(size_bytes, stream_id)

    def consume(self, call: Call, size_bytes: int) -> None:
        """Acknowledge what a call's handler has read."""
        self.discard(call.stream_id, size_bytes)
        call.unconsumed -= size_bytes
        self._held.bytes -= size_bytes
        if call.promised and call.promised != (wanted := call.inbox.wanted):
            self._redeem(call)  # of the message that was just read; the next one may be large, too
            if wanted > self._bounds.stream_window_bytes:
                self._promise(call, wanted)

    def leave(self, call: Call) -> None:
        """Acknowledge all of a call that is over, and give its promise to the next."""
        size, call.unconsumed = call.unconsumed, 0
        self._held.bytes -= size
        if size:
            self._h2.acknowledge_received_data(size, call.stream_id)
        if call.promised:
            self._redeem(call)

    def forget(self, call: Call) -> None:
        """As `leave`, of a connection that is gone."""
        self._held.bytes -= call.unconsumed
        call.unconsumed = 0

    def _promise(self, call: Call, size_bytes: int) -> None:
        call.promised = size_bytes
        self._waiting.append((call, size_bytes))
        self._admit()

    def _redeem(self, call: Call) -> None:
        size, call.promised = call.promised, 0
        if any(call is waiting for waiting, _ in self._waiting):
            self._waiting = deque(each for each in self._waiting if each[0] is not call)
        else:
            self._promised -= size
            with contextlib.suppress(ngh2.StreamUnavailableError):
                self._h2.set_local_window_size(
                    self._bounds.stream_window_bytes, stream_id=call.stream_id
                )
        self._admit()

    def _admit(self) -> None:
        """Open the windows of the first in line, while their messages fit."""
        while self._waiting:
            call, size = self._waiting[0]
            if self._promised + size > self._bounds.promised_bytes:
                return
            self._waiting.popleft()
            self._promised += size
            with contextlib.suppress(ngh2.StreamUnavailableError):
                # Beside what is already there unread: the message may begin behind others.
                self._h2.set_local_window_size(
                    size + self._bounds.stream_window_bytes, stream_id=call.stream_id
                )
