"""An honest client as an SDK is one, made small, so that one process can be a thousand of them."""

from __future__ import annotations

import asyncio
import struct
import time
from dataclasses import dataclass, field
from typing import Any, Final

import ngh2
from ngh2 import events

from dledger.rpc.rocketmq_stubs import definition, service
from e2e.harness.rocketmq_calls import code_name, receive_request, send_request
from e2e.hostile.scene import ROCKET

_PREFIX: Final = struct.Struct(">BI")
_CALL_S: Final = 10.0
_WINDOW: Final = 1 << 20


class Ended(Exception):
    """A call, or the connection with all of its calls, ended without an answer."""


@dataclass(slots=True)
class _Call:
    """What came for one call so far."""

    data: bytearray = field(default_factory=bytearray)
    status: bytes = b""
    first: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    ended: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def messages(self) -> list[bytes]:
        """Return the whole messages that came."""
        found, at = [], 0
        while at + _PREFIX.size <= len(self.data):
            size = _PREFIX.unpack_from(self.data, at)[1]
            at += _PREFIX.size + size
            found.append(bytes(self.data[at - size : at]))
        return found

    def note(self, headers: Any) -> None:
        """Keep what gRPC says of the end."""
        self.status = dict(headers).get(b"grpc-status", self.status)

    def end(self) -> None:
        """Wake whoever waits."""
        for each in (self.first, self.ended):
            if not each.done():
                each.set_result(None)


class Honest(asyncio.Protocol):
    """One connection of a client that has an id, and the calls that SDKs make on it."""

    def __init__(self, client_id: str) -> None:
        self.closed = asyncio.get_running_loop().create_future()
        self._client_id = client_id.encode()
        self._http2 = ngh2.Connection(ngh2.Role.CLIENT)
        self._calls: dict[int, _Call] = {}
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._http2.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: _WINDOW})
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all calls."""
        del exc
        if not self.closed.done():
            self.closed.set_result(None)
        for call in self._calls.values():
            call.end()

    def data_received(self, data: bytes) -> None:
        """Give calls what is theirs."""
        self._http2.receive_data(data)
        for event in self._http2.events():
            call = self._calls.get(getattr(event, "stream_id", 0))
            if call is None:
                continue
            if isinstance(event, events.ResponseReceived | events.TrailersReceived):
                call.note(event.headers)
            elif isinstance(event, events.DataReceived):
                call.data += event.data
                if not call.first.done():
                    call.first.set_result(None)
            elif isinstance(event, events.StreamClosed):
                call.end()
                del self._calls[event.stream_id]
        self._flush()

    def close(self) -> None:
        """Leave."""
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        if self._transport is not None and (data := self._http2.data_to_send()):
            self._transport.write(data)

    def _begin(self, method: str, request: Any, timeout_s: float, *, ended: bool = True) -> _Call:
        if self.closed.done():
            raise Ended("connection")
        raw = request.SerializeToString()
        stream = self._http2.send_request(
            (
                (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"group"),
                (b":path", f"{ROCKET}{method}".encode()),
                (b"content-type", b"application/grpc"), (b"te", b"trailers"),
                (b"grpc-timeout", b"%dm" % (1_000 * timeout_s)),
                (b"x-mq-client-id", self._client_id),
                (b"x-mq-language", b"JAVA"), (b"x-mq-protocol", b"v2"),
            )
        )  # fmt: skip
        call = self._calls[stream] = _Call()
        self._http2.send_data(stream, _PREFIX.pack(0, len(raw)) + raw, end_stream=ended)
        self._flush()
        return call

    async def _answers(self, method: str, request: Any, timeout_s: float) -> list[bytes]:
        """Call; return the messages. Raises Ended."""
        call = self._begin(method, request, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await call.ended
        except TimeoutError:
            raise Ended("no answer in time") from None
        if call.status != b"0":
            raise Ended(f"grpc-status {call.status.decode() or 'none'}")
        return call.messages()

    async def greet(self, group: str) -> str:
        """Open Telemetry, which stays; return what it is told. Raises Ended."""
        settings = definition.Settings(client_type=definition.ClientType.PUSH_CONSUMER)
        settings.subscription.group.name = group
        command = service.TelemetryCommand(settings=settings)
        call = self._begin("Telemetry", command, 3_600, ended=False)
        try:
            async with asyncio.timeout(_CALL_S):
                await call.first
        except TimeoutError:
            raise Ended("Telemetry: no answer in time") from None
        if not call.messages():
            raise Ended(f"Telemetry: grpc-status {call.status.decode() or 'none'}")
        return code_name(service.TelemetryCommand.FromString(call.messages()[0]))

    async def route(self, topic: str) -> str:
        """Ask where a topic is; return the code. Raises Ended."""
        request = service.QueryRouteRequest(topic=definition.Resource(name=topic))
        (raw,) = await self._answers("QueryRoute", request, _CALL_S)
        return code_name(service.QueryRouteResponse.FromString(raw))

    async def send(self, topic: str, message_id: str) -> str:
        """Send a message; return the code. Raises Ended."""
        request = send_request(topic, message_id, b"of the crowd")
        (raw,) = await self._answers("SendMessage", request, _CALL_S)
        return code_name(service.SendMessageResponse.FromString(raw))

    async def poll(self, topic: str, group: str, queue_id: int, wait_s: float) -> Polled:
        """Poll a queue once. Raises Ended."""
        request = receive_request(
            topic, group, queue_id=queue_id, wait_s=wait_s, auto_renew=True, invisible_s=60
        )
        began_s = time.monotonic()
        said, ids = "", []
        for raw in await self._answers("ReceiveMessage", request, wait_s + _CALL_S):
            answer = service.ReceiveMessageResponse.FromString(raw)
            if answer.HasField("message"):
                ids.append(str(answer.message.system_properties.message_id))
            elif answer.HasField("status"):
                said = code_name(answer)
        return Polled(said, tuple(ids), time.monotonic() - began_s)


@dataclass(frozen=True, slots=True)
class Polled:
    """How a poll ended: the code, the messages, after how long."""

    said: str
    message_ids: tuple[str, ...]
    took_s: float
