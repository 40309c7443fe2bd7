"""One client's connection: bytes to HTTP/2's events, events to calls, and answers to bytes.

libnghttp2 keeps HTTP/2's rules; what it refuses ends this connection and no other. Its streams are
the matter of `calls`, its time that of `watch`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import sys
import termios
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, cast

import ngh2

from dledger.common.shares import NO_ROOM, Entry
from dledger.door.calls import Calls
from dledger.door.port import End, Port, configuration, goaway, settings
from dledger.door.proofs import Proofs
from dledger.door.watch import Verdict, Watch

logger = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 256 << 10
"""Written at once; and what may be waiting for a socket that is full."""
_LINGER_S: Final = 1.0
"""How long the last bytes may take to be sent before a connection is cut."""
_DRAINING: Final = b"draining"
_FRAME_HEAD_BYTES: Final = 9
"""Source: RFC 9113, 4.1."""
_HEADERS_BYTES: Final = 4 << 10
"""A call's on the wire, with a long token."""
_SMALL_FRAME_BYTES: Final = 17
"""A PING; all others but SETTINGS are smaller."""
_SMALL_PART_BYTES: Final = 16 << 10
"""A part of a frame that is not worth being counted."""
_PIECE_BYTES: Final = 16 << 10
"""Taken in at once. Of headers it may be 16,000 fields, 5 ms."""
_OWED_PIECE_BYTES: Final = 2 << 10
_CUT_BYTES: Final = 4 << 10
"""What the end of a connection counts at most if nothing came of its last bytes. They may have been
a part of a request, of each of a crowd that lost its connections."""
_IDLE_FRAMES: Final = 256
_IDLE_AN_ANSWER_BYTES: Final = 4 * _SMALL_FRAME_BYTES
_IDLE_PART: Final = 64
"""Of what was written a client acknowledges each part by a window, of a KiB if it is slow."""
ASK_S: Final = 0.1
"""How long answers that have left wait for the PING that is to prove them: one serves them all, and
is not one more write for each. A first lease is 8 s."""
PROGRESS_S: Final = 2.0
"""How often it is looked whether answers move: with the second in which a follower tells it, and a
leader's three until it acts on that, before a first lease of 8 s ends."""


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
        self._closing = self._draining = self._drained = self._paused = False
        self._flush_due = self._cut = False
        self._drains_s = 0.0
        self._written = self._idle_bytes = self._idle_frames = self._idle_paid = 0
        self._address = port.addresses.of(peer.rpartition(":")[0])
        self._part: Entry[End] | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._progress: asyncio.TimerHandle | None = None
        self._asking: asyncio.TimerHandle | None = None
        self._proofs = Proofs(
            on_begun=self._look_at_progress_later, on_due=self._ask_for_proof_soon
        )

    # -- asyncio's side --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first SETTINGS."""
        self._transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._on_made(self)
        bounds = self._port.bounds
        self._h2 = ngh2.Connection(ngh2.Role.SERVER, configuration(bounds))
        self._watch = Watch(bounds, self._loop.time())
        self._calls = Calls(
            self._h2,
            self._port,
            self._peer,
            watch=self._watch,
            proofs=self._proofs,
            position=lambda: self._written,
            flush_soon=self._flush_soon,
            on_flood=self._flooded,
            is_full=lambda: self._paused,
            address=self._address,
        )
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
        for timer in (self._tick, self._progress, self._asking):
            if timer is not None:
                timer.cancel()
        self._calls.drop_all()
        self._note_part(0)
        self._address.may_idle(min(self._idle_bytes, _CUT_BYTES), self._loop.time())
        self._on_lost(self)
        # They know this connection, too: in a circle, its 40 KiB would stay until the garbage
        # collector's longest round, which may never come.
        del self._calls, self._proofs

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
        now_s = self._loop.time()
        self._watch.heard(now_s)
        try:
            idle = self._idle_bytes + len(data)
            if len(data) <= _OWED_PIECE_BYTES:
                self._h2.receive_data(data)
                idle -= self._handle(self._h2.events())
            else:
                idle -= self._take_in_pieces(memoryview(data), now_s)
            self._calls.settle()
            self._idle_bytes = max(0, idle)
            if idle > _SMALL_PART_BYTES or self._part is not None:
                self._look_at_idle()
        except ngh2.DenialOfServiceError as error:
            self._give_up(ngh2.ErrorCode.ENHANCE_YOUR_CALM, str(error))
        except ngh2.ConnectionProtocolError as error:
            self._give_up(ngh2.ErrorCode.PROTOCOL_ERROR, str(error))
        except Exception:
            logger.exception("the connection of %s failed", self._peer)
            self._give_up(ngh2.ErrorCode.INTERNAL_ERROR, "it met a fault of this node")
        else:
            self._flush_soon()

    def _take_in_pieces(self, data: memoryview, now_s: float) -> int:
        """Take in by pieces what may be far more than its bytes; return as `_handle` does.

        A header field may be one byte. Each piece may end the connection, so a read of a stranger's
        costs a few milliseconds, and less of an address that has just sent too much of no effect.
        """
        size_bytes = _OWED_PIECE_BYTES if self._address.owes(now_s) else _PIECE_BYTES
        handled = 0
        for start in range(0, len(data), size_bytes):
            self._h2.receive_data(data[start : start + size_bytes])
            handled += self._handle(self._h2.events())
            if self._closing or not self._h2.want_read:
                return handled + len(data) - start  # the rest is looked at by nobody
        return handled

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
        with contextlib.suppress(ngh2.ConnectionStateError):  # the client has ended it before
            self._h2.send_shutdown_notice()
            self._h2.ping(_DRAINING)
        self._flush_soon()

    def end(self) -> None:
        """Cancel its calls, and close it once that is sent."""
        self._calls.cancel_all()
        if not self._closing:
            self._flush()
        self._close("the node is stopping")

    def abort(self) -> None:
        """Cut it."""
        self._transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether it has no call."""
        return not len(self._calls)

    def make_room(self) -> None:
        """End it for another connection's sake: at once, since that one is here."""
        self._give_up(ngh2.ErrorCode.NO_ERROR, NO_ROOM)
        if self._transport.get_write_buffer_size():
            self._transport.abort()

    # -- HTTP/2's events -------------------------------------------------------------------------

    def _handle(self, events: Sequence[Any]) -> int:
        """Do what events ask for; return how many bytes of frames they are, as far as known."""
        calls, size_bytes = self._calls, 0
        for event in events:
            kind = type(event)
            if self._closing:
                break
            if kind is ngh2.DataReceived:
                size_bytes += len(event.data) + _FRAME_HEAD_BYTES
                calls.on_data(event)
            elif kind is ngh2.RequestReceived:
                size_bytes += _HEADERS_BYTES
                calls.on_request(event)
            elif kind is ngh2.StreamClosed:
                calls.on_stream_closed(event)
            elif kind is ngh2.StreamReset:
                calls.on_reset(event)
            elif kind is ngh2.TrailersReceived:
                calls.on_trailers(event)
            else:
                size_bytes += _SMALL_FRAME_BYTES
                if handle := self._others.get(kind):
                    handle(self, event)
                else:
                    self._note_idle()
        return size_bytes

    def _note_idle(self) -> None:
        """Count a frame that changes no call, such as a window's: by the hundred."""
        self._idle_frames += 1
        if self._idle_frames == _IDLE_FRAMES:
            self._idle_frames = 0
            self._take_idle(_IDLE_FRAMES * _SMALL_FRAME_BYTES)

    def _look_at_idle(self) -> None:
        """Count what has arrived and had no effect yet: a frame in part, or frames of no kind.

        The library keeps the one, and drops the others; which it is shows in their size.
        """
        bounds = self._port.bounds
        beyond = self._idle_bytes - bounds.frame_bytes - _FRAME_HEAD_BYTES
        if beyond > 0:
            self._idle_bytes -= beyond
            self._take_idle(beyond)
        self._note_part(0 if self._closing else self._idle_bytes)

    def _take_idle(self, size_bytes: int) -> None:
        """Count frames without effect, but for those that go with the answers of this connection.

        So one that is served is not ended for others of its address.
        """
        paid = self._calls.answers * _IDLE_AN_ANSWER_BYTES + self._written // _IDLE_PART
        self._idle_paid += size_bytes
        beyond = self._idle_paid - paid
        if beyond > 0:
            self._idle_paid -= beyond
            if not self._address.may_idle(beyond, self._loop.time()):
                self._flooded("too many frames of its address have no effect")

    def _note_part(self, size_bytes: int) -> None:
        """Count a frame that has arrived in part, among requests that are not whole."""
        share, part = self._port.unfinished, self._part
        if size_bytes <= _SMALL_PART_BYTES:
            if part is not None:
                share.leave(part)
                self._part = None
        elif part is None:
            end = partial(self._flooded, NO_ROOM)
            self._part = share.enter(self._address.name, end, weight=size_bytes)
        else:
            share.resize(part, size_bytes)
            while share.is_full and share.evict():
                pass

    def _on_ping(self, _: Any) -> None:
        if not self._watch.may_ping(self._calls.answers, self._loop.time()):
            self._flooded("too_many_pings")

    def _on_pong(self, event: Any) -> None:
        if event.opaque_data == _DRAINING:
            self._last_goaway()
        else:
            self._proofs.acknowledged(event.opaque_data)

    def _last_goaway(self) -> None:
        """Take no more calls; HTTP/2 ends once those that run have ended."""
        if self._draining and not self._drained:
            self._drained = True
            with contextlib.suppress(ngh2.ConnectionStateError):  # the client has ended it before
                self._h2.send_goaway(last_stream_id=self._calls.last_id)

    def _on_settled(self, _: Any) -> None:
        self._watch.settled = True

    def _on_end(self, event: Any) -> None:
        """Close: HTTP/2 has nothing more to do, be it for an error or after a GOAWAY."""
        if event.error_code:
            code = event.error_code
            logger.info("the connection of %s ends with HTTP/2 error %s", self._peer, code)
        self._close("")

    _others: ClassVar[dict[type, Callable[[Connection, Any], None]]] = {
        ngh2.PingReceived: _on_ping,
        ngh2.SettingsReceived: _on_ping,
        ngh2.PingAcknowledged: _on_pong,
        ngh2.SettingsAcknowledged: _on_settled,
        ngh2.ConnectionClosed: _on_end,
    }

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
                    self._written += len(out)
                self._cut = len(out) == _CHUNK_BYTES
                self._handle(self._h2.events())
                if self._cut:
                    continue
                if not self._calls.reset_answered():
                    break
        except ngh2.NGH2Error as error:
            self._give_up(ngh2.ErrorCode.INTERNAL_ERROR, str(error))
        if not self._closing:
            self._calls.wake()

    def _ask_for_proof_soon(self) -> None:
        self._asking = self._loop.call_later(ASK_S, self._ask_for_proof)

    def _ask_for_proof(self) -> None:
        """Send one PING behind all answers that have left since the one before."""
        if self._closing:
            return
        data = self._proofs.ask()
        with contextlib.suppress(ngh2.ConnectionStateError):  # it ends: there will be no proof
            self._h2.ping(data)
        self._flush_soon()

    def _look_at_progress_later(self) -> None:
        if self._progress is None:
            self._progress = self._loop.call_later(PROGRESS_S, self._look_at_progress)

    def _look_at_progress(self) -> None:
        """Look whether answers that are not proved still move, as long as there are any."""
        self._progress = None
        if self._closing or not len(self._proofs):
            return
        self._proofs.look(self._written - self._unacknowledged())
        self._look_at_progress_later()

    def _unacknowledged(self) -> int:
        """Return how many written bytes the kernel of the other side has not acknowledged."""
        file = self._transport.get_extra_info("socket").fileno()
        queued = fcntl.ioctl(file, termios.TIOCOUTQ, bytes(4))
        return self._transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)

    def _look(self) -> None:
        """Do what the time asks for, once a tick."""
        if self._closing:
            return
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
        if now_s - self._drains_s >= self._port.bounds.ping_s:
            self._last_goaway()
        self._calls.look(now_s)
        self._flush_soon()

    def _flooded(self, why: str) -> None:
        self._give_up(ngh2.ErrorCode.ENHANCE_YOUR_CALM, why)

    def _give_up(self, code: int, why: str) -> None:
        """End the connection for a fault of its client, and say so unless that cuts a frame."""
        if self._closing:
            return
        if not self._cut:
            self._transport.write(goaway(self._calls.last_id, code, why))
        self._close(why)

    def _close(self, why: str) -> None:
        if self._closing:
            return
        self._closing = self._calls.gone = True
        if why:
            # Of what never spoke HTTP/2 anyone can send as much as they like.
            level = logging.INFO if self._watch.settled else logging.DEBUG
            logger.log(level, "the connection of %s is closed: %s", self._peer, why)
        self._transport.close()
        self._loop.call_later(_LINGER_S, self._transport.abort)
