"""How an `AppendStream` reaches a node: the little that it asks of a transport, and gRPC's.

The simulator has another one, in virtual time.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from types import TracebackType
from typing import Any, Final, Protocol, Self, cast

import grpc.aio

from dledger.rpc.channel import OPTIONS

_METHOD: Final = "/dledger.v1.Ledger/Produce"


class Call(Protocol):
    """One stream. Its answers end when the node ends it, by AioRpcError if that has a reason."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def cancel(self) -> object:
        """End it from this side; whoever waits for an answer gets CancelledError."""


class Connection(Protocol):
    """A way to one node, for as long as its block is not left."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None: ...

    def produce(self, requests: AsyncIterable[bytes], timeout_s: float | None = None) -> Call:
        """Begin a stream; *requests* is asked for the next one when the one before has left."""


Connect = Callable[[str], Connection]
"""From a node's ``host:port`` to a way there."""


class GrpcConnection:
    """A gRPC channel of its own."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._channel.__aexit__(kind, error, traceback)

    def produce(self, requests: AsyncIterable[bytes], timeout_s: float | None = None) -> Call:
        """Begin a stream."""
        method: Any = self._channel.stream_stream(_METHOD)
        return cast("Call", method(requests, timeout=timeout_s))
