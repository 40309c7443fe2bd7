"""A channel to the group, by libnghttp2 on the event loop; used by `upstream`.

It stands in for `grpc.aio.Channel`, and ends calls with its errors. gRPC's own has threads beside
the loop, and each event of a call goes from one of them to the other: a call costs it a multiple of
what the call costs here. A call is a stream, a future and a timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeAlias, cast
from urllib.parse import unquote

import grpc
import grpc.aio
import ngh2

from dledger.common.dns import host_to_ask
from dledger.door.contract import Failed
from dledger.door.grpc_format import framed
from dledger.rpc.mutual_tls import MutualTls, show
from dledger.sidecar.channel_call import ChannelCall

NOT_REACHED: Final = "failed to connect to all addresses"
"""How the sentence of a call begins that nobody has got: gRPC's own."""
Metadata: TypeAlias = tuple[tuple[str, str], ...]
_Pairs: TypeAlias = Iterable[tuple[bytes, bytes]]
_CHUNK_BYTES: Final = 256 << 10
"""Written at once; more waits in HTTP/2's queues while the socket is full."""
_STREAM_WINDOW_BYTES: Final = 256 << 10
_WINDOW_BYTES: Final = 16 << 20
_CONNECT_S: Final = 20.0
_AGENT: Final = ((b"te", b"trailers"), (b"user-agent", b"dledger-spool"))
_UNKNOWN: Final = grpc.StatusCode.UNKNOWN
_UNAVAILABLE: Final = grpc.StatusCode.UNAVAILABLE


class Channel:
    """The way to ``HOST:PORT``: a connection, once there is a call, and another when it ends.

    Args:
        address: As it was given.
        tls: None: plain text.
    """

    def __init__(self, address: str, tls: MutualTls | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._as_given = host.strip("[]")
        self._host, self._port = host_to_ask(self._as_given), int(port)
        self._tls = tls
        self._origin = (
            (b":scheme", b"http" if tls is None else b"https"),
            (b":authority", address.encode()),
        )
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[tuple[ChannelCall, _Pairs, bytes | None]] = []
        self._under_way = set[ChannelCall]()
        self._idle = asyncio.Event()
        self._idle.set()

    def unary_unary(self, path: str) -> Any:
        """Return what makes a call of one message for one."""
        return partial(self._unary, path.encode())

    def unary_stream(self, path: str) -> Any:
        """Return what makes a call of one message for many."""
        return partial(self._stream, path.encode())

    def stream_stream(self, path: str) -> Any:
        """Return what makes a call of many messages for many."""
        return partial(self._stream, path.encode(), None)

    async def _unary(
        self,
        path: bytes,
        body: bytes,
        *,
        metadata: Metadata,
        timeout: float,  # noqa: ASYNC109 - gRPC's name, and the other side is told
    ) -> bytes:
        call = self._call(timeout, is_unary=True)
        try:
            self._begin(call, path, body, metadata, timeout)
            return await call.answer
        finally:
            call.cancel()
            # An error has this frame, and the call has the error: a circle with the request in it,
            # of megabytes, would stay until somebody collects circles, which is seldom.
            del call

    def _stream(
        self, path: bytes, body: bytes | None, *, metadata: Metadata, timeout: float | None = None
    ) -> ChannelCall:
        call = self._call(timeout, is_unary=False)
        self._begin(call, path, body, metadata, timeout)
        return call

    def _call(self, timeout: float | None, *, is_unary: bool) -> ChannelCall:
        call = ChannelCall(is_unary=is_unary)
        call.add_done_callback(self._on_over)
        self._under_way.add(call)
        self._idle.clear()
        if timeout is not None:
            call.timer = asyncio.get_running_loop().call_later(max(0.0, timeout), _expire, call)
        return call

    def _on_over(self, call: ChannelCall) -> None:
        self._under_way.discard(call)
        if not self._under_way:
            self._idle.set()

    def _begin(
        self,
        call: ChannelCall,
        path: bytes,
        body: bytes | None,
        metadata: Metadata,
        timeout: float | None,
    ) -> None:
        """Send its headers and message now, or as soon as there is a connection."""
        head = [
            (b":method", b"POST"),
            *self._origin,
            (b":path", path),
            (b"content-type", b"application/grpc"),
            *_AGENT,
            *((name.encode(), value.encode()) for name, value in metadata),
        ]
        if timeout is not None:
            head.append((b"grpc-timeout", b"%dm" % min(99_999_999, math.ceil(timeout * 1000))))
        connection = self._connection
        if connection is not None and connection.is_open:
            connection.begin(call, head, body)
            return
        self._waiting.append((call, head, body))
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        """Begin the calls that wait for a connection, in their order, or end them without one."""
        loop, why = asyncio.get_running_loop(), ""
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, self._connection = await loop.create_connection(
                    _Connection, self._host, self._port, **self._secure()
                )
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: of a name, or of a pair
            why = f"{NOT_REACHED}: {getattr(error, 'strerror', '') or error or 'no answer in time'}"
        waiting, self._waiting, self._connecting = self._waiting, [], None
        for call, head, body in waiting:
            if why:
                call.fail(_UNAVAILABLE, why)
            elif self._connection is not None and call in self._under_way:
                self._connection.begin(call, head, body)

    def _secure(self) -> dict[str, Any]:
        """Return what a connection is told of TLS. Raises SSLError and ValueError."""
        if self._tls is None:
            return {}
        context = ssl.create_default_context(cadata=self._tls.trusted.decode("ascii") or None)
        context.set_alpn_protocols(["h2"])
        if self._tls.chain:
            show(context, self._tls.chain, self._tls.key)
        return {"ssl": context, "server_hostname": self._tls.name or self._as_given}

    async def close(self, grace: float | None = None) -> None:
        """Let calls go on for *grace* seconds, end them then, and the connection."""
        if grace:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._idle.wait()
        if self._connecting is not None:
            self._connecting.cancel()
        for call in tuple(self._under_way):
            call.cancel()
        if self._connection is not None:
            self._connection.close()


def _expire(call: ChannelCall) -> None:
    if call.connection is not None:
        call.connection.reset(call)
    call.fail(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


class _Connection(asyncio.Protocol):
    """One connection, from its first byte to its last."""

    def __init__(self) -> None:
        self._h2 = ngh2.Connection(
            ngh2.Role.CLIENT,
            ngh2.Configuration(auto_window_update=False, peer_max_concurrent_streams=256),
        )
        self._calls: dict[int, ChannelCall] = {}
        self._is_paused = self._is_due = self._takes = False

    @property
    def is_open(self) -> bool:
        """Whether calls may begin; the numbers of its streams last for 10^9 of them."""
        return self._takes and self._h2.can_send_request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface and the first SETTINGS."""
        self._transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._h2.initiate_connection(
            {
                ngh2.Setting.ENABLE_PUSH: 0,
                ngh2.Setting.INITIAL_WINDOW_SIZE: _STREAM_WINDOW_BYTES,
            }
        )
        self._h2.set_local_window_size(_WINDOW_BYTES)
        self._takes = True
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all calls."""
        self._takes = False
        for call in tuple(self._calls.values()):
            call.fail(_UNAVAILABLE, f"the connection was lost ({exc or 'the other side ended it'})")
        self._calls.clear()

    def close(self) -> None:
        """Send what waits, and end it."""
        self._takes = False
        self._flush()
        self._transport.close()

    # -- calls ------------------------------------------------------------------------------------

    def begin(self, call: ChannelCall, head: _Pairs, body: bytes | None) -> None:
        """Begin a call; a *body* is all that its client sends."""
        if not self.is_open:
            call.fail(_UNAVAILABLE, f"{NOT_REACHED}: the connection has ended")
            return
        call.stream_id = self._h2.send_request(head)
        call.sends = body is None
        self._calls[call.stream_id] = call
        if body is not None:
            self._h2.send_data(call.stream_id, framed(body), end_stream=True)
        call.on_begun(self)
        self._flush_soon()

    def send(self, call: ChannelCall, message: bytes) -> None:
        """Send one of a call's messages."""
        self._h2.send_data(call.stream_id, framed(message))
        self._flush_soon()

    def take(self, call: ChannelCall) -> None:
        """Let more of a call's answers come."""
        if call.held and not self._transport.is_closing():
            with contextlib.suppress(ngh2.NGH2Error):
                self._h2.acknowledge_received_data(call.held, call.stream_id)
            call.held = 0
            self._flush_soon()

    def reset(self, call: ChannelCall) -> None:
        """Have the other side stop, unless it has; nobody reads what came."""
        self.take(call)
        if self._calls.pop(call.stream_id, None) is not None:
            with contextlib.suppress(ngh2.NGH2Error):
                self._h2.reset_stream(call.stream_id, ngh2.ErrorCode.CANCEL)
            self._flush_soon()
            self._close_if_done()

    def _close_if_done(self) -> None:
        """Close what the other side wants to end, behind the last call."""
        if not self._takes and not self._calls:
            self.close()

    # -- bytes ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take in what came."""
        try:
            self._h2.receive_data(data)
            for event in self._h2.events():
                handle = _HANDLERS.get(type(event))
                if handle is not None:
                    handle(self, event)
        except ngh2.NGH2Error:
            self._takes = False
            self._transport.abort()
        else:
            self._flush_soon()

    def pause_writing(self) -> None:
        """Keep back what waits: the socket is full."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Go on."""
        self._is_paused = False
        self._flush()

    def _flush_soon(self) -> None:
        """Write once for all calls of this turn of the loop."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        while not self._is_paused and not self._transport.is_closing():
            data = self._h2.data_to_send(_CHUNK_BYTES)
            if not data:
                return
            self._transport.write(data)

    # -- HTTP/2's events --------------------------------------------------------------------------

    def _on_head(self, event: ngh2.ResponseReceived) -> None:
        call = self._calls.get(event.stream_id)
        if call is None:
            return
        fields = dict(event.headers)
        if event.end_stream or b"grpc-status" in fields:
            self._finish(call, fields)
        elif fields.get(b":status") != b"200":
            status = fields.get(b":status", b"").decode("ascii", "replace")
            self._give_up(call, f"it answers with HTTP status {status}, not with gRPC's")

    def _on_data(self, event: ngh2.DataReceived) -> None:
        call = self._calls.get(event.stream_id)
        if call is None:
            self._h2.acknowledge_received_data(len(event.data), event.stream_id)
            return
        try:
            may_come = call.feed(event.data)
        except Failed as error:
            self._give_up(call, error.message)
            return
        if may_come:
            self._h2.acknowledge_received_data(call.held, call.stream_id)
            call.held = 0

    def _on_trailers(self, event: ngh2.TrailersReceived) -> None:
        call = self._calls.get(event.stream_id)
        if call is not None:
            self._finish(call, dict(event.headers))

    def _finish(self, call: ChannelCall, fields: dict[bytes, bytes]) -> None:
        status = fields.get(b"grpc-status", b"")
        code = int(status) if status.isdigit() else _UNKNOWN.value[0]
        if call.sends:
            with contextlib.suppress(ngh2.NGH2Error):  # it is closed already
                self._h2.end_stream(call.stream_id)
        call.end(code, unquote(fields.get(b"grpc-message", b"").decode("ascii", "replace")))

    def _give_up(self, call: ChannelCall, why: str) -> None:
        self.reset(call)
        call.fail(_UNKNOWN, why)

    def _on_closed(self, event: ngh2.StreamClosed) -> None:
        call = self._calls.pop(event.stream_id, None)
        if call is None:
            return
        self._close_if_done()
        if event.error_code == ngh2.ErrorCode.REFUSED_STREAM:
            call.fail(_UNAVAILABLE, f"{NOT_REACHED}: the call was refused unread")
        else:
            call.fail(_UNAVAILABLE, f"its stream was reset (HTTP/2 error {event.error_code})")

    def _on_goaway(self, event: ngh2.GoAwayReceived) -> None:
        """Begin no more calls here; those it has not taken are closed by the library as refused."""
        del event
        self._takes = False
        self._close_if_done()

    def _on_end(self, event: ngh2.ConnectionClosed) -> None:
        """Close it: HTTP/2 has nothing more to do."""
        del event
        self._takes = False
        self._flush_soon()
        self._loop.call_soon(self._transport.close)


_HANDLERS: Final[dict[type, Callable[[_Connection, Any], None]]] = {
    ngh2.ResponseReceived: _Connection._on_head,  # noqa: SLF001
    ngh2.DataReceived: _Connection._on_data,  # noqa: SLF001
    ngh2.TrailersReceived: _Connection._on_trailers,  # noqa: SLF001
    ngh2.StreamClosed: _Connection._on_closed,  # noqa: SLF001
    ngh2.GoAwayReceived: _Connection._on_goaway,  # noqa: SLF001
    ngh2.ConnectionClosed: _Connection._on_end,  # noqa: SLF001
}
