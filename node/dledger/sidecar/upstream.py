"""The way to the group: one connection a client, as many as there are clients.

A node takes the calls for a client's own only where its Telemetry is, a connection has a limit of
calls and of streams, and leadership follows connections. So nothing is put together here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from dledger.door.contract import Code, Headers
from dledger.rpc.channel import in_words
from dledger.rpc.mutual_tls import MutualTls
from dledger.rpc.rocketmq_stubs import SERVICE_NAME
from dledger.sidecar.channel import NOT_REACHED, Channel

Metadata: TypeAlias = tuple[tuple[str, str], ...]
Tls: TypeAlias = Callable[[], MutualTls | None]
"""What a connection that begins now believes and shows; None: plain text."""
_CLOSING_S: Final = 70.0
"""How long calls on a connection that was left may still take: polls take up to a minute."""
_LONG_S: Final = 1.0
"""A node that has not answered for so long may be frozen; what had less time says nothing of it."""
_IDLE_S: Final = 120.0


class UpstreamError(Exception):
    """A call ended without an answer.

    Attributes:
        code: gRPC's code.
        message: Its sentence.
        sent: Whether the group may have the request; False: nobody was reached.
    """

    def __init__(self, code: Code, message: str, *, sent: bool) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code, self.message, self.sent = code, message, sent


def path_of(method: str) -> str:
    """Return the path of a method of RocketMQ's service."""
    return f"/{SERVICE_NAME}/{method}"


def failure_of(error: grpc.aio.AioRpcError) -> UpstreamError:
    """Return gRPC's error as ours."""
    sent = not (error.details() or "").startswith(NOT_REACHED)
    return UpstreamError(Code(error.code().value[0]), in_words(error), sent=sent)


def metadata_of(headers: Headers) -> Metadata:
    """Return what goes on with a call: RocketMQ's fields and who calls."""
    return tuple(
        (name.decode("ascii"), value.decode("ascii", "replace"))
        for name, value in headers.to_keep.items()
        if not name.startswith(b":")
    )


class Upstream:
    """The connection of one client.

    Args:
        addresses: ``HOST:PORT`` of nodes or of a Service, tried in turn.
        tls: Asked for each connection, so that files which were replaced count from the next one
            on: one that fails is left for another.

    Attributes:
        under_way: How many calls there are.
        used_at_s: When the last one began or ended, event-loop time.
    """

    def __init__(self, addresses: Sequence[str], tls: Tls = lambda: None) -> None:
        self._addresses, self._tls = addresses, tls
        self._at = 0
        self._channel = self._dial()
        self._streams = set[Any]()
        self._closing = set[asyncio.Task[None]]()
        self.under_way = 0
        self.used_at_s = asyncio.get_running_loop().time()

    def _dial(self) -> Channel:
        return Channel(self._addresses[self._at], self._tls())

    async def unary(self, path: str, body: bytes, metadata: Metadata, timeout_s: float) -> bytes:
        """Return the answer to one call.

        Raises:
            UpstreamError: There is none. If nobody was reached, or a node has not answered for
                long, the connection has been left for the next one.
        """
        channel = self._channel
        self._begin()
        try:
            answer: bytes = await channel.unary_unary(path)(
                body, metadata=metadata, timeout=timeout_s
            )
        except grpc.aio.AioRpcError as error:
            # No local has what is raised: it has this frame, in a circle with the body in it.
            raise self._note_failure(error, channel, timeout_s) from None
        finally:
            self._end()
        return answer

    def _note_failure(
        self, error: grpc.aio.AioRpcError, channel: Channel, timeout_s: float
    ) -> UpstreamError:
        """Return gRPC's error as ours; leave the connection if it is the connection's."""
        failed = failure_of(error)
        late = failed.code is Code.DEADLINE_EXCEEDED and timeout_s >= _LONG_S
        if late or failed.code is Code.UNAVAILABLE:
            self._leave(channel)
        return failed

    async def answers(
        self, path: str, body: bytes, metadata: Metadata, timeout_s: float | None
    ) -> AsyncGenerator[bytes]:
        """Yield the answers to one request. Raises UpstreamError."""
        self._begin()
        call = self._channel.unary_stream(path)(body, metadata=metadata, timeout=timeout_s)
        try:
            async for answer in call:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise failure_of(error) from None
        finally:
            call.cancel()
            self._end()

    def stream(self, path: str, metadata: Metadata) -> Any:
        """Return a call of many messages, which is cancelled when the connection is left."""
        call = self._channel.stream_stream(path)(metadata=metadata)
        self._streams.add(call)
        call.add_done_callback(self._streams.discard)
        return call

    def move(self) -> None:
        """Go on to the next address by a new connection; a Service chooses another node then."""
        self._leave(self._channel)

    def _leave(self, channel: Channel) -> None:
        if channel is not self._channel:
            return  # another call has left it already
        self._at = (self._at + 1) % len(self._addresses)
        self._channel = self._dial()
        for call in tuple(self._streams):
            call.cancel()
        task = asyncio.get_running_loop().create_task(channel.close(grace=_CLOSING_S))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _begin(self) -> None:
        self.under_way += 1
        self.used_at_s = asyncio.get_running_loop().time()

    def _end(self) -> None:
        self.under_way -= 1
        self.used_at_s = asyncio.get_running_loop().time()

    @property
    def is_idle(self) -> bool:
        """Whether nothing has used it for long."""
        now_s = asyncio.get_running_loop().time()
        return not (self.under_way or self._streams) and now_s - self.used_at_s > _IDLE_S

    async def close(self) -> None:
        """End all calls, and the connection."""
        for task in tuple(self._closing):
            task.cancel()
        await self._channel.close()


class Clients:
    """The connections of all clients, by client id; of those without one by their connection."""

    def __init__(self, addresses: Sequence[str], tls: Tls = lambda: None) -> None:
        self._addresses, self._tls = tuple(addresses), tls
        self._upstreams: dict[str, Upstream] = {}

    def __len__(self) -> int:
        return len(self._upstreams)

    @property
    def tries(self) -> int:
        """How many addresses a call tries at most, the first one twice."""
        return len(self._addresses) + 1

    def of(self, headers: Headers) -> Upstream:
        """Return the connection of whoever sent these headers."""
        return self.of_name(headers.text("x-mq-client-id") or f"#{headers.connection}")

    def of_name(self, name: str) -> Upstream:
        """Return the connection of that name."""
        upstream = self._upstreams.get(name)
        if upstream is None:
            upstream = self._upstreams[name] = Upstream(self._addresses, self._tls)
        return upstream

    async def close_idle(self) -> None:
        """Close the connections of clients that have gone."""
        for name, upstream in tuple(self._upstreams.items()):
            if upstream.is_idle:
                del self._upstreams[name]
                await upstream.close()

    async def close(self) -> None:
        """Close all."""
        upstreams = tuple(self._upstreams.values())
        self._upstreams.clear()
        await asyncio.gather(*(upstream.close() for upstream in upstreams))
