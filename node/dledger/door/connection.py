"""One client's connection: bytes to HTTP/2's events, events to calls, and answers to bytes.

libnghttp2 keeps HTTP/2's rules; what it refuses ends this connection and no other. The bounds that
it does not have are kept by `intake`, `outgoing` and `watch`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final, cast

import ngh2

from dledger.door.call import Call
from dledger.door.contract import Code, Failed, Pairs
from dledger.door.grpc_format import status_fields
from dledger.door.intake import Intake
from dledger.door.opening import Refused, opened
from dledger.door.outgoing import Outgoing
from dledger.door.port import Port, configuration, goaway, settings
from dledger.door.task_calls import call_of
from dledger.door.watch import Verdict, Watch

logger = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 256 << 10
"""Written at once; and what may be waiting for a socket that is full."""
_LINGER_S: Final = 1.0
"""How long the last bytes may take to be sent before a connection is cut."""
_DRAINING: Final = b"draining"
_numbers = itertools.count(1)


class Connection(asyncio.Protocol):
    """From its first byte to its last.

    Args:
        port: What it shares with others.
        peer: The client's address as gRPC names it.
        on_made: Called when it is open.
        on_lost: Called once it is closed.
    """

    def __init__(
        self,
        port: Port,
        peer: str,
        *,
        on_made: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self._port, self._peer = port, peer
        self._on_made, self._on_lost = on_made, on_lost
        self._number = next(_numbers)
        self._calls: dict[int, Call] = {}
        self._half: set[int] = set()  # answered, though their clients have not sent all
        self._last_id = self._answers = 0
        self._closing = self._draining = self._drained = self._paused = False
        self._flush_due = self._cut = False
        self._drains_s = 0.0
        self._tick: asyncio.TimerHandle | None = None

    # -- asyncio's side --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first SETTINGS."""
        self._transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._on_made(self)
        bounds = self._port.bounds
        self._h2 = ngh2.Connection(ngh2.Role.SERVER, configuration(bounds))
        self._intake = Intake(self._h2, bounds, self._port.held)
        self._outgoing = Outgoing(self._h2, bounds)
        self._watch = Watch(bounds, self._loop.time())
        if self._port.needs_alpn:
            tls = transport.get_extra_info("ssl_object")
            if tls is None or tls.selected_alpn_protocol() != "h2":
                self._close("it did not choose h2 in its TLS handshake")
                return
        self._h2.initiate_connection(settings(bounds))
        self._h2.set_local_window_size(bounds.connection_window_bytes)
        self._tick = self._loop.call_later(min(bounds.tick_s, bounds.handshake_s), self._look)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what is under way."""
        del exc
        self._closing = True
        if self._tick is not None:
            self._tick.cancel()
        for call in tuple(self._calls.values()):
            self._intake.forget(call)
            if not call.over:
                self._over(call)
                call.drop()
        self._port.calls -= len(self._calls)
        self._calls.clear()
        self._outgoing.wake()
        self._on_lost(self)

    def pause_writing(self) -> None:
        """Keep answers back: the socket is full."""
        self._paused = True
        self._watch.paused(self._loop.time())

    def resume_writing(self) -> None:
        """Go on."""
        self._paused = False
        self._watch.paused(None)
        self._flush_soon()

    def data_received(self, data: bytes) -> None:
        """Take in what a client sent."""
        if self._closing:
            return
        self._watch.heard(self._loop.time())
        try:
            self._h2.receive_data(data)
            self._handle(self._h2.events())
        except ngh2.DenialOfServiceError as error:
            self._give_up(ngh2.ErrorCode.ENHANCE_YOUR_CALM, str(error))
        except ngh2.ConnectionProtocolError as error:
            self._give_up(ngh2.ErrorCode.PROTOCOL_ERROR, str(error))
        except Exception:
            logger.exception("the connection of %s failed", self._peer)
            self._give_up(ngh2.ErrorCode.INTERNAL_ERROR, "it met a fault of this node")
        else:
            self._flush_soon()

    # -- what the server asks for ----------------------------------------------------------------

    def drain(self) -> None:
        """Ask the client to go: its new calls are taken until it knows, running ones finish.

        Source: RFC 9113, 6.8: a first GOAWAY refuses nothing, the second follows a round trip.
        """
        if self._closing or self._draining:
            return
        if not self._watch.settled:
            self._close("it has not begun")
            return
        self._draining = True
        self._drains_s = self._loop.time()
        self._h2.send_shutdown_notice()
        self._h2.ping(_DRAINING)
        self._flush_soon()

    def end(self) -> None:
        """Cancel its calls, and close it once that is sent."""
        for call in tuple(self._calls.values()):
            if not call.over:
                self._cancel(call, Code.UNAVAILABLE, "the node is stopping")
        if not self._closing:
            self._flush()
        self._close("the node is stopping")

    def abort(self) -> None:
        """Cut it."""
        self._transport.abort()

    # -- HTTP/2's events -------------------------------------------------------------------------

    def _handle(self, events: list[ngh2.Event]) -> None:
        for event in events:
            kind = type(event)
            if self._closing:
                return
            if kind is ngh2.DataReceived:
                self._on_data(event)
            elif kind is ngh2.RequestReceived:
                self._on_request(event)
            elif kind is ngh2.StreamClosed:
                self._on_stream_closed(event)
            elif handle := self._others.get(kind):
                handle(self, event)

    def _on_request(self, event: Any) -> None:
        stream_id, now_s = event.stream_id, self._loop.time()
        self._last_id = stream_id
        try:
            headers, handler = opened(self._port, event.headers, self._peer, self._number, now_s)
        except Refused as refused:
            self._answers += 1
            self._outgoing.refuse(stream_id, refused.fields)
            if not event.end_stream:
                self._half.add(stream_id)
            return
        call = self._calls[stream_id] = call_of(self, stream_id, headers, handler, now_s)
        self._port.calls += 1
        if headers.deadline_s is not None:
            call.timer = self._loop.call_at(headers.deadline_s, self._late, call)
        if event.end_stream:
            self._feed(call, b"", ended=True)

    def _on_data(self, event: Any) -> None:
        call = self._calls.get(event.stream_id)
        if call is None or call.over:
            self._intake.discard(event.stream_id, len(event.data))
            if call is not None and event.end_stream:
                call.ended = True
            return
        self._feed(call, event.data, ended=event.end_stream)

    def _on_trailers(self, event: Any) -> None:
        """End a request; gRPC's clients send no trailers, but HTTP/2 has them."""
        call = self._calls.get(event.stream_id)
        if call is not None and not call.over:
            self._feed(call, b"", ended=True)

    def _feed(self, call: Call, data: bytes, *, ended: bool) -> None:
        try:
            if data:
                self._intake.take(call, data, self._loop.time())
            if ended:
                call.end()
        except Failed as error:
            call.ended = ended
            if call.refusal is not None and error.code is Code.RESOURCE_EXHAUSTED:
                self.answer(call, call.refusal(error.message))
                call.drop()
            else:
                self._cancel(call, error.code, error.message, error.trailers)

    def _on_reset(self, event: Any) -> None:
        call = self._calls.get(event.stream_id)
        if call is not None and not call.over:
            self._over(call)
            call.drop()
        self._count_reset()

    def _on_stream_closed(self, event: Any) -> None:
        self._half.discard(event.stream_id)
        call = self._calls.pop(event.stream_id, None)
        if call is None:
            if event.error_code:  # its headers were not even HTTP/2's
                self._count_reset()
            return
        self._port.calls -= 1
        if not call.over:  # by a fault of its client, not by RST_STREAM
            self._over(call)
            call.drop()
            self._count_reset()

    def _count_reset(self) -> None:
        if not self._watch.may_reset(self._loop.time()):
            self._give_up(ngh2.ErrorCode.ENHANCE_YOUR_CALM, "it resets too many calls")

    def _on_ping(self, _: Any) -> None:
        if not self._watch.may_ping(self._answers, self._loop.time()):
            self._give_up(ngh2.ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")

    def _on_pong(self, event: Any) -> None:
        if event.opaque_data == _DRAINING:
            self._last_goaway()

    def _last_goaway(self) -> None:
        """Take no more calls; HTTP/2 ends once those that run have ended."""
        if self._draining and not self._drained:
            self._drained = True
            self._h2.send_goaway(last_stream_id=self._last_id)

    def _on_settled(self, _: Any) -> None:
        self._watch.settled = True

    def _on_end(self, event: Any) -> None:
        """Close: HTTP/2 has nothing more to do, be it for an error or after a GOAWAY."""
        if event.error_code:
            code = event.error_code
            logger.info("the connection of %s ends with HTTP/2 error %s", self._peer, code)
        self._close("")

    _others: ClassVar[dict[type, Callable[[Connection, Any], None]]] = {
        ngh2.StreamReset: _on_reset,
        ngh2.TrailersReceived: _on_trailers,
        ngh2.PingReceived: _on_ping,
        ngh2.SettingsReceived: _on_ping,
        ngh2.PingAcknowledged: _on_pong,
        ngh2.SettingsAcknowledged: _on_settled,
        ngh2.ConnectionClosed: _on_end,
    }

    # -- calls' side (`call.Carrier`) ------------------------------------------------------------

    def answer(self, call: Call, message: bytes) -> None:
        """Queue an answer with the headers before and the trailers after it."""
        if self._outgoing.answer(call, message):
            self._over(call)
        else:
            self._reset_slow(call)

    def send(self, call: Call, message: bytes) -> None:
        """Queue one answer of many."""
        self._answers += 1
        if self._outgoing.put(call, message):
            self._flush_soon()
        else:
            self._reset_slow(call)
            call.drop()

    async def room(self, call: Call) -> None:
        """Wait until its client has read on."""
        await self._outgoing.room(call)

    def finish(self, call: Call) -> None:
        """Queue the trailers of a call that succeeded."""
        self._outgoing.finish(call)
        self._over(call)

    def fail(self, call: Call, code: Code, message: str, trailers: Pairs = ()) -> None:
        """Queue a status: in trailers, or in the header if nothing was answered yet."""
        self._outgoing.fail(call, status_fields(code, message, trailers))
        self._over(call)

    def consumed(self, call: Call, size_bytes: int) -> None:
        """Acknowledge a message that a handler has read."""
        if not call.over:
            self._intake.consume(call, size_bytes)
            self._flush_soon()

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a handler; the port keeps it from being collected."""
        task = self._loop.create_task(work)
        self._port.tasks.add(task)
        task.add_done_callback(self._port.tasks.discard)
        return task

    def _cancel(self, call: Call, code: Code, message: str, trailers: Pairs = ()) -> None:
        self.fail(call, code, message, trailers)
        call.drop()

    def _late(self, call: Call) -> None:
        if not call.over:
            self._cancel(call, Code.DEADLINE_EXCEEDED, "the call's timeout has passed")

    def _reset_slow(self, call: Call) -> None:
        """Reset a call whose client does not read; gRPC calls that RESOURCE_EXHAUSTED."""
        self._h2.reset_stream(call.stream_id, ngh2.ErrorCode.ENHANCE_YOUR_CALM)
        call.ended = True
        if not call.over:
            self._over(call)

    def _over(self, call: Call) -> None:
        call.over = True
        self._answers += 1
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None
        call.waits_since_s = None
        if self._closing:
            self._intake.forget(call)
            return
        self._intake.leave(call)
        if not call.ended:
            self._half.add(call.stream_id)
        self._flush_soon()

    # -- sending and closing ---------------------------------------------------------------------

    def _flush_soon(self) -> None:
        """Write once for all that this turn of the event loop has to send."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        try:
            while not self._closing and not self._paused:
                out = self._h2.data_to_send(_CHUNK_BYTES)
                if out:
                    self._transport.write(out)
                self._cut = len(out) == _CHUNK_BYTES
                self._handle(self._h2.events())
                if self._cut:
                    continue
                if not self._half or not self._reset_half():
                    break
        except ngh2.NGH2Error as error:
            self._give_up(ngh2.ErrorCode.INTERNAL_ERROR, str(error))
        if self._outgoing.is_awaited:
            self._outgoing.wake()

    def _reset_half(self) -> bool:
        """Reset calls that are answered but whose clients still send; return whether any were.

        Only once the answer has left: a reset would overtake it. NO_ERROR says that the answer is
        good (RFC 9113, 8.1).
        """
        sent = [each for each in self._half if self._outgoing.is_sent(each)]
        for stream_id in sent:
            self._half.remove(stream_id)
            self._h2.reset_stream(stream_id, ngh2.ErrorCode.NO_ERROR)
        return bool(sent)

    def _look(self) -> None:
        """Do what the time asks for, once a tick."""
        now_s = self._loop.time()
        self._tick = self._loop.call_later(self._port.bounds.tick_s, self._look)
        match self._watch.look(len(self._calls), now_s):
            case Verdict.LATE:
                self._give_up(ngh2.ErrorCode.SETTINGS_TIMEOUT, "it did not finish its handshake")
            case Verdict.GONE | Verdict.STUCK as verdict:
                logger.info("the connection of %s is cut: %s", self._peer, verdict.value)
                self._transport.abort()
            case Verdict.LEAVE:
                self.drain()
            case Verdict.PING:
                self._h2.ping()
        if not self._closing:
            if now_s - self._drains_s >= self._port.bounds.ping_s:
                self._last_goaway()
            self._look_at_calls(now_s)
            self._flush_soon()

    def _look_at_calls(self, now_s: float) -> None:
        for call in tuple(self._calls.values()):
            if call.waits_since_s is not None:
                if now_s - call.waits_since_s > self._port.bounds.request_s:
                    self._cancel(call, Code.DEADLINE_EXCEEDED, "the request did not arrive in time")
            elif self._outgoing.is_stalled(call, now_s):
                self._reset_slow(call)
                call.drop()

    def _give_up(self, code: int, why: str) -> None:
        """End the connection for a fault of its client, and say so unless that cuts a frame."""
        if self._closing:
            return
        if not self._cut:
            self._transport.write(goaway(self._last_id, code, why))
        self._close(why)

    def _close(self, why: str) -> None:
        if self._closing:
            return
        self._closing = True
        if why:
            # Of what never spoke HTTP/2 anyone can send as much as they like.
            level = logging.INFO if self._watch.settled else logging.DEBUG
            logger.log(level, "the connection of %s is closed: %s", self._peer, why)
        self._transport.close()
        self._loop.call_later(_LINGER_S, self._transport.abort)
