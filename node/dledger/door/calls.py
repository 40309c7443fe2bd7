"""The calls of one connection: from HTTP/2's streams to handlers, and back.

What it queues, its connection sends; what floods, its connection ends.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import ngh2

from dledger.common.shares import NO_ROOM, Share
from dledger.door.addresses import Address
from dledger.door.bounds import UNFINISHED_BYTES
from dledger.door.call import BUG, Call
from dledger.door.contract import Arrival, Code, Failed, Pairs
from dledger.door.grpc_format import status_fields
from dledger.door.intake import Intake
from dledger.door.opening import Refused, opened, size_of
from dledger.door.outgoing import Outgoing
from dledger.door.port import End, Port
from dledger.door.proofs import Proofs
from dledger.door.task_calls import call_of
from dledger.door.watch import Watch

logger = logging.getLogger(__name__)

_numbers: Final = itertools.count(1)


class Calls:
    """Of one connection; what its calls need of it (`call.Carrier`).

    Args:
        h2: The connection's state.
        port: What it shares with others.
        peer: The client's address as gRPC names it.
        watch: Counts what its client resets.
        proofs: Which answers its client is known to have.
        position: Returns how many bytes of the connection have left.
        flush_soon: Is told when something is queued.
        on_flood: Ends the connection, with a reason.
        is_full: Returns whether the connection takes nothing more.
        address: What is known of the client's address.

    Attributes:
        answers: How many there were.
        last_id: The newest stream that was looked at.
        gone: Whether the connection is at its end: nothing is queued any longer.
    """

    def __init__(
        self,
        h2: ngh2.Connection,
        port: Port,
        peer: str,
        *,
        watch: Watch,
        proofs: Proofs,
        position: Callable[[], int],
        flush_soon: Callable[[], None],
        on_flood: Callable[[str], None],
        is_full: Callable[[], bool],
        address: Address,
    ) -> None:
        self._h2, self._port, self._peer, self._watch = h2, port, peer, watch
        self._is_full, self._address = is_full, address
        self._proofs, self._position = proofs, position
        self._flush_soon, self._on_flood = flush_soon, on_flood
        self._loop = asyncio.get_running_loop()
        self._number = next(_numbers)
        self._intake = Intake(h2, port, self._loop.time)
        self._outgoing = Outgoing(h2, port.bounds)
        self._open: dict[int, Call] = {}
        self._half: set[int] = set()  # answered, though their clients have not sent all
        self._touched: list[Call] = []  # in this read, and not looked at by `settle`
        self.answers = self.last_id = 0
        self.gone = False

    def __len__(self) -> int:
        return len(self._open)

    def cancel_all(self) -> None:
        """End all calls: the node stops."""
        for call in tuple(self._open.values()):
            if not call.over:
                self._cancel(call, Code.UNAVAILABLE, "the node is stopping")

    def drop_all(self) -> None:
        """Forget all calls: the connection is lost."""
        self.gone = True
        for call in tuple(self._open.values()):
            self._intake.forget(call)
            if not call.over:
                self._over(call)
                call.drop()
        self._port.calls -= len(self._open)
        self._open.clear()
        self._proofs.lose_all()
        self._outgoing.wake()

    def wake(self) -> None:
        """Let handlers go on that wait for room, if there is some after what was sent."""
        if self._outgoing.is_awaited:
            self._outgoing.wake()

    def look(self, now_s: float) -> None:
        """End calls whose client sends, or reads, nothing for too long; to be asked once a tick."""
        for call in tuple(self._open.values()):
            if self._intake.is_late(call, now_s):
                self._cancel(call, Code.DEADLINE_EXCEEDED, "the request did not arrive in time")
            elif self._outgoing.is_stalled(call, now_s):
                self._reset_slow(call)
                call.drop()

    def settle(self) -> None:
        """Count what one read has begun and left unfinished; to be asked when all of it was seen.

        Most calls are whole by then, and never were counted.
        """
        touched, self._touched = self._touched, []
        for call in touched:
            if not call.over and (call.is_stream or not call.ended or call.entry is not None):
                self._count(call)

    def _count(self, call: Call) -> None:
        port, size = self._port, call.headers.size_bytes
        share: Share[End] | None = None
        if call.is_unfinished:
            share, size = port.unfinished, size + UNFINISHED_BYTES + call.unconsumed
        elif call.is_stream:
            share, size = port.streams, size + 1
        if call.share is not share:
            self._uncount(call)
            if share is not None:
                call.headers.shed()
                line = self if share is port.streams else None
                end = partial(self._make_room, call)
                call.entry = share.enter(self._address.name, end, line=line, weight=size)
                call.share = share
        elif share is not None and call.entry is not None and call.entry.weight != size:
            share.resize(call.entry, size)
            while share.is_full and share.evict():
                pass

    @staticmethod
    def _uncount(call: Call) -> None:
        if call.share is not None and call.entry is not None:
            call.share.leave(call.entry)
            call.share = call.entry = None

    def _make_room(self, call: Call) -> None:
        """End a call for others' sake: its address has most, and it costs its client least.

        It is let go at once, not when HTTP/2 has closed its stream. A client that does not even
        read that calls of it have ended loses its connection.
        """
        if not self._outgoing.is_sent(call.stream_id):  # a stream that is read too slowly
            self._reset_slow(call)
        else:
            self.fail(call, Code.RESOURCE_EXHAUSTED, NO_ROOM)
        call.drop()
        if self._open.pop(call.stream_id, None) is not None:
            self._port.calls -= 1
        if self._is_full():
            self._on_flood("it does not read that its calls have ended")

    def reset_answered(self) -> bool:
        """Reset calls that are answered but whose clients still send; return whether any were.

        Only once the answer has left: a reset would overtake it. NO_ERROR says that the answer is
        good (RFC 9113, 8.1).
        """
        sent = [each for each in self._half if self._outgoing.is_sent(each)]
        for stream_id in sent:
            self._half.remove(stream_id)
            self._h2.reset_stream(stream_id, ngh2.ErrorCode.NO_ERROR)
        return bool(sent)

    # -- HTTP/2's events --------------------------------------------------------------------------

    def on_request(self, event: Any) -> None:
        """Begin a call by its headers, or refuse it."""
        stream_id, now_s = event.stream_id, self._loop.time()
        self.last_id = stream_id
        try:
            headers, handler, idle_bytes = opened(
                self._port, event.headers, self._peer, self._number, now_s
            )
        except Refused as refused:
            self.answers += 1
            self._outgoing.refuse(stream_id, refused.fields)
            if not event.end_stream:
                self._half.add(stream_id)
            if not self._address.may_be_refused(now_s):
                self._on_flood("too many calls of its address were refused")
            return
        if idle_bytes and not self._may_idle(idle_bytes, now_s):
            return
        call = self._open[stream_id] = call_of(self, stream_id, headers, handler, now_s)
        self._port.calls += 1
        self._touched.append(call)
        if headers.deadline_s is not None:
            call.moment = self._port.deadlines.enter(call, self, headers.deadline_s)
        if event.end_stream:
            self._feed(call, b"", ended=True)

    def on_data(self, event: Any) -> None:
        """Take in a part of a request."""
        call = self._open.get(event.stream_id)
        if call is None or call.over:
            self._intake.discard(event.stream_id, len(event.data))
            if call is not None and event.end_stream:
                call.ended = True
            return
        self._feed(call, event.data, ended=event.end_stream)
        if not event.end_stream or call.entry is not None:
            self._touched.append(call)

    def on_trailers(self, event: Any) -> None:
        """End a request; gRPC's clients send no trailers, but HTTP/2 has them."""
        if not self._may_idle(size_of(event.headers), self._loop.time()):
            return
        call = self._open.get(event.stream_id)
        if call is not None and not call.over:
            self._feed(call, b"", ended=True)
            self._touched.append(call)

    def _may_idle(self, size_bytes: int, now_s: float) -> bool:
        """Count header fields that nobody reads; end the connection and return False if too many.

        Each is a byte or two on the wire, and half a microsecond of this node's time.
        """
        if self._address.may_idle(size_bytes, now_s):
            return True
        self._on_flood("too many header fields of its address are read by nobody")
        return False

    def _feed(self, call: Call, data: bytes, *, ended: bool) -> None:
        try:
            if data:
                self._intake.take(call, data, self._loop.time())
            if ended and not call.over:
                call.end()
        except Failed as error:
            call.ended = ended
            self._refuse(call, error)

    def _refuse(self, call: Call, error: Failed) -> None:
        if call.refusal is not None and error.code is Code.RESOURCE_EXHAUSTED:
            try:
                answer = call.refusal(error)
            except Failed as other:
                error = other
            except Exception:
                logger.exception("%s cannot say what it refuses", call.headers.get(b":path"))
                error = Failed(Code.UNKNOWN, BUG)
            else:
                self.answer(call, answer)
                call.drop()
                return
        self._cancel(call, error.code, error.message, error.trailers)

    def on_reset(self, event: Any) -> None:
        """Drop a call that its client gave up."""
        call = self._open.get(event.stream_id)
        if call is not None and not call.over:
            self._over(call)
            call.drop()
        self._proofs.lose(event.stream_id)  # also of one that is closed already
        self._count_reset()

    def on_stream_closed(self, event: Any) -> None:
        """Forget a call: both sides have said all, or HTTP/2 has ended it."""
        self._half.discard(event.stream_id)
        call = self._open.pop(event.stream_id, None)
        if call is None:
            if event.error_code:  # its headers were not even HTTP/2's
                self._count_reset()
            return
        self._port.calls -= 1
        if event.stream_id in self._proofs.follows:
            if event.error_code or not call.over:
                self._proofs.lose(event.stream_id)
            else:
                self._proofs.closed(event.stream_id, self._position())
        if not call.over:  # by a fault of its client, not by RST_STREAM
            self._over(call)
            call.drop()
            self._count_reset()

    def _count_reset(self) -> None:
        if not self._watch.may_reset(self._loop.time()):
            self._on_flood("it resets too many calls")

    # -- what calls ask for (`call.Carrier`) ------------------------------------------------------

    def answer(self, call: Call, message: bytes) -> None:
        """Queue an answer with the headers before and the trailers after it."""
        if self.gone or self._outgoing.answer(call, message):
            self._over(call)
        else:
            self._reset_slow(call)

    def send(self, call: Call, message: bytes) -> None:
        """Queue one answer of many."""
        self.answers += 1
        if self.gone:
            self._over(call)
        elif self._outgoing.put(call, message):
            self._flush_soon()
        else:
            self._reset_slow(call)
            call.drop()

    async def room(self, call: Call) -> None:
        """Wait until its client has read on."""
        await self._outgoing.room(call)

    def finish(self, call: Call) -> None:
        """Queue the trailers of a call that succeeded."""
        if not self.gone:
            self._outgoing.finish(call)
        self._over(call)

    def fail(self, call: Call, code: Code, message: str, trailers: Pairs = ()) -> None:
        """Queue a status: in trailers, or in the header if nothing was answered yet."""
        self._proofs.lose(call.stream_id)
        if not self.gone:
            self._outgoing.fail(call, status_fields(code, message, trailers))
        self._over(call)

    def consumed(self, call: Call, size_bytes: int) -> None:
        """Acknowledge a message that a handler has read."""
        if not (call.over or self.gone):
            self._intake.consume(call, size_bytes)
            self._flush_soon()

    def prove(self, call: Call, arrival: Arrival) -> None:
        """Tell *arrival* what becomes of the answers of *call*."""
        self._proofs.begin(call.stream_id, arrival)

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a handler; the port keeps it from being collected."""
        task = self._loop.create_task(work)
        self._port.tasks.add(task)
        task.add_done_callback(self._port.tasks.discard)
        return task

    def end_late(self, call: Call) -> None:
        """End a call whose time is up."""
        if not call.over:
            self._cancel(call, Code.DEADLINE_EXCEEDED, "the call's timeout has passed")

    def _cancel(self, call: Call, code: Code, message: str, trailers: Pairs = ()) -> None:
        self.fail(call, code, message, trailers)
        call.drop()

    def _reset_slow(self, call: Call) -> None:
        """Reset a call whose client does not read; gRPC calls that RESOURCE_EXHAUSTED."""
        self._h2.reset_stream(call.stream_id, ngh2.ErrorCode.ENHANCE_YOUR_CALM)
        self._proofs.lose(call.stream_id)
        call.ended = True
        if not call.over:
            self._over(call)

    def _over(self, call: Call) -> None:
        call.over = True
        if call.entry is not None:
            self._uncount(call)
        self.answers += 1
        if call.moment is not None:
            self._port.deadlines.leave(call, call.moment)
            call.moment = None
        call.waits_since_s = None
        if self.gone:
            self._intake.forget(call)
            return
        self._intake.leave(call)
        if not call.ended:
            self._half.add(call.stream_id)
        self._flush_soon()
