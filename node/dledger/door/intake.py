"""The receiving side of one connection: what its client may send, and what is kept of it.

HTTP/2's windows are the bounds. What arrives is acknowledged when it is consumed: a call's request
when the call is over, a stream's message when its handler reads it. So each call has no more
unread bytes here than its stream's window.

A message that needs more than that is *promised* room, in turn, out of `Bounds.promised_bytes`.
From then on it is acknowledged as it arrives: its size is known, and its room is reserved. So large
messages become complete one after the other, and never wait for each other, each half-way. Only
the first unread message of a call is promised anything; one behind others waits for its handler.

With its promise, a call's window is widened: to the rest of its one message, or, of a stream, for
those that follow. A client that has to be told to go on every 32 KiB waits each time for a turn of
this event loop: of batches of 256 KiB that took a third of the rate. A window is never made narrow
again: what was acknowledged meanwhile, but is less than half of a window, libnghttp2 does not
announce, and its client would wait for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import ngh2

from dledger.door.call import Call, OneMessage
from dledger.door.contract import Code, Failed
from dledger.door.port import Port


class Intake:
    """Of one connection.

    Args:
        h2: The connection's state; it acknowledges nothing by itself.
        port: Its limits, and what all of its connections hold.
        clock: The event loop's time.
    """

    __slots__ = ("_bounds", "_clock", "_h2", "_held", "_port", "_promised", "_waiting", "_widened")

    def __init__(self, h2: ngh2.Connection, port: Port, clock: Callable[[], float]) -> None:
        self._h2, self._port, self._clock = h2, port, clock
        self._bounds, self._held = port.bounds, port.held
        self._promised = self._widened = 0
        self._waiting: dict[Call, None] = {}  # in the order of their turns

    def take(self, call: Call, data: bytes, now_s: float) -> None:
        """Give a call what has arrived for it.

        Raises:
            Failed: The message is refused, or the port holds too much.
        """
        size = len(data)
        call.unconsumed += size
        self._held.bytes += size
        if self._held.bytes > self._held.limit and not self._has_room(call):
            raise Failed(
                Code.RESOURCE_EXHAUSTED,
                f"requests of {self._held.limit} bytes are under way; back off and retry",
            )
        if call.over:  # it was what had to go
            return
        if call.awaited:
            part = min(call.awaited, size)
            call.awaited -= part
            self._acknowledge(call, part)
        call.data(data, now_s)
        if call.inbox.missing:
            self._ask(call)

    def _has_room(self, call: Call) -> bool:
        """Whether there is room for what *call* brings, if need be without others' requests."""
        if call.share is not None and call.entry is not None:
            call.share.resize(call.entry, call.entry.weight)  # it moves: others go first
        return self._port.has_room_for_bytes()

    def discard(self, stream_id: int, size_bytes: int) -> None:
        """Acknowledge what nobody will read."""
        if size_bytes:
            self._h2.acknowledge_received_data(size_bytes, stream_id)

    def consume(self, call: Call, size_bytes: int) -> None:
        """Acknowledge a message that a call's handler has read."""
        call.unconsumed -= size_bytes
        self._held.bytes -= size_bytes
        before = min(call.acknowledged, size_bytes)  # it was the first, so this is all of it
        call.acknowledged -= before
        self.discard(call.stream_id, size_bytes - before)
        if before:
            self._redeem(call)
        self._ask(call)

    def leave(self, call: Call) -> None:
        """Acknowledge all of a call that is over, and let the next have its room."""
        size, call.unconsumed = call.unconsumed, 0
        self._held.bytes -= size
        self.discard(call.stream_id, size - call.acknowledged)
        call.acknowledged = call.awaited = 0
        self._waiting.pop(call, None)
        self._widened -= call.widened
        call.widened = 0
        if call.promised:
            self._redeem(call)

    def forget(self, call: Call) -> None:
        """As `leave`, of a connection that is gone."""
        self._held.bytes -= call.unconsumed
        call.unconsumed = 0

    def is_late(self, call: Call, now_s: float) -> bool:
        """Whether a request did not arrive in time; while it waits for room, that is not its fault.

        Whoever holds the room is late at some time, so nobody waits for ever.
        """
        since_s = call.waits_since_s
        late = since_s is not None and now_s - since_s > self._bounds.request_s
        return late and call not in self._waiting

    def _ask(self, call: Call) -> None:
        """Wait for a promise, if a message has begun that its window does not suffice for."""
        inbox = call.inbox
        if (
            inbox.missing
            and not call.awaited
            and call.unconsumed == inbox.kept
            and inbox.missing > self._left(call)
        ):
            self._waiting.setdefault(call)
            self._admit()

    def _admit(self) -> None:
        """Promise the first in line the room for their messages, while there is any."""
        while self._waiting:
            call = next(iter(self._waiting))
            inbox = call.inbox
            if not inbox.missing:  # its window was announced anew meanwhile, and sufficed
                del self._waiting[call]
                continue
            more = inbox.kept + inbox.missing - call.promised
            if self._promised and self._promised + more > self._bounds.promised_bytes:
                return
            del self._waiting[call]
            self._promised += more
            call.promised += more
            call.awaited = inbox.missing
            call.waits_since_s = self._clock()
            self._acknowledge(call, inbox.kept - call.acknowledged)
            self._widen(call)

    def _widen(self, call: Call) -> None:
        """Announce more at once to a call whose message has its room."""
        bounds = self._bounds
        if isinstance(call, OneMessage):
            self._announce(call, call.inbox.missing)
            return
        more = bounds.wide_window_bytes - bounds.stream_window_bytes
        if not call.widened and self._widened + more <= bounds.wide_bytes:
            self._widened += more
            call.widened = more
            self._announce(call, bounds.wide_window_bytes)

    def _announce(self, call: Call, window_bytes: int) -> None:
        """Set a call's window, unless it is being closed."""
        if window_bytes > self._bounds.stream_window_bytes:
            with contextlib.suppress(ngh2.StreamUnavailableError):
                self._h2.set_local_window_size(window_bytes, stream_id=call.stream_id)

    def _redeem(self, call: Call) -> None:
        self._promised -= call.promised
        call.promised = 0
        self._admit()

    def _acknowledge(self, call: Call, size_bytes: int) -> None:
        """Acknowledge a part of a message that has its room."""
        call.acknowledged += size_bytes
        self.discard(call.stream_id, size_bytes)

    def _left(self, call: Call) -> int:
        """Return what a call's client may send now; of one that is being closed, anything."""
        try:
            return self._h2.stream_local_window_size(call.stream_id)
        except ngh2.StreamUnavailableError:
            return call.inbox.missing
