"""The sending side of one connection: answers that wait for their client, and their bounds.

What a client's windows have no room for waits in HTTP/2's queues. `room` keeps handlers that can
wait from adding to it; a call that adds too much without waiting is reset, as is one whose client
takes nothing for too long.

An answer to a call whose stream is gone is dropped: its client reset it by a frame that has arrived
together with others, and is not looked at yet. So the library's errors mean nothing here.
"""

from __future__ import annotations

import asyncio
import contextlib

import ngh2

from dledger.door.bounds import Bounds
from dledger.door.call import Call
from dledger.door.contract import Pairs
from dledger.door.grpc_format import HEAD, OK, framed


class Outgoing:
    """Of one connection.

    Args:
        h2: The connection's state.
        bounds: The port's limits.
    """

    __slots__ = ("_bounds", "_h2", "_waiting")

    def __init__(self, h2: ngh2.Connection, bounds: Bounds) -> None:
        self._h2, self._bounds = h2, bounds
        self._waiting: dict[Call, asyncio.Future[None]] = {}

    @property
    def is_awaited(self) -> bool:
        """Whether a handler waits for room."""
        return bool(self._waiting)

    def put(self, call: Call, message: bytes) -> bool:
        """Queue an answer; return False if the client is too far behind: the call must be reset."""
        return self._put(call, message, last=False)

    def answer(self, call: Call, message: bytes) -> bool:
        """Queue the only answer of a call, and its end; as `put`."""
        return self._put(call, message, last=True)

    def _put(self, call: Call, message: bytes, *, last: bool) -> bool:
        bounds, h2, stream_id = self._bounds, self._h2, call.stream_id
        unsent = self._unsent(call) if call.queued else 0
        if unsent and unsent + len(message) > bounds.unsent_bytes:
            return False
        if h2.queued_body_size() > bounds.unsent_connection_bytes:
            return False
        data = framed(message)
        try:
            self._begin(call)
            h2.send_data(stream_id, data)
            if last:
                h2.send_trailers(stream_id, OK)
        except ngh2.NGH2Error:
            return True
        call.queued += len(data)
        return True

    def finish(self, call: Call) -> None:
        """Queue the end of a call that succeeded."""
        with contextlib.suppress(ngh2.NGH2Error):
            self._begin(call)
            self._h2.send_trailers(call.stream_id, OK)

    def fail(self, call: Call, fields: Pairs) -> None:
        """Queue the end of a call with a status, in its header if nothing was answered yet."""
        with contextlib.suppress(ngh2.NGH2Error):
            if call.began:
                self._h2.send_trailers(call.stream_id, fields)
            else:
                call.began = True
                self._h2.send_response(call.stream_id, (*HEAD, *fields), end_stream=True)

    def refuse(self, stream_id: int, fields: Pairs) -> None:
        """Queue an answer that is a header and no more."""
        with contextlib.suppress(ngh2.NGH2Error):
            self._h2.send_response(stream_id, fields, end_stream=True)

    def _begin(self, call: Call) -> None:
        if not call.began:
            call.began = True
            self._h2.send_response(call.stream_id, HEAD)

    async def room(self, call: Call) -> None:
        """Wait until *call* may send. Only its handler may wait, so one waits for each call."""
        while not call.over and self._is_full(call):
            turn = self._waiting[call] = asyncio.get_running_loop().create_future()
            try:
                await turn
            finally:
                self._waiting.pop(call, None)

    def wake(self) -> None:
        """Let handlers go on for which there is room now; each looks again before it sends."""
        for call, turn in tuple(self._waiting.items()):
            if not turn.done() and (call.over or not self._is_full(call)):
                turn.set_result(None)

    def is_stalled(self, call: Call, now_s: float) -> bool:
        """Whether a client has taken nothing of a call's answers for too long, nor its end.

        To be asked once a tick. (libnghttp2 sends trailers only while the stream's window is open.)
        """
        unsent = self._unsent(call)
        taken = call.queued - unsent
        if taken > call.taken or not (unsent or call.over):
            call.taken, call.taken_at_s = taken, now_s
        return now_s - call.taken_at_s > self._bounds.stall_s

    def is_sent(self, stream_id: int) -> bool:
        """Whether nothing of a stream's answers waits any longer."""
        return not self._h2.queued_body_size(stream_id)

    def _unsent(self, call: Call) -> int:
        return self._h2.queued_body_size(call.stream_id)

    def _is_full(self, call: Call) -> bool:
        return (
            self._unsent(call) > self._bounds.unsent_stream_bytes
            or self._h2.queued_body_size() > self._bounds.unsent_connection_bytes
        )
