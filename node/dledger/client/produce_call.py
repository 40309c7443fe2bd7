"""The transport of an `AppendStream`: its interface, and the implementation by gRPC.

The simulator implements the interface in virtual time.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, Self, cast

from dledger.rpc.channel import OPTIONS
from dledger.rpc.dial import dial

_METHOD: Final = "/dledger.v1.Ledger/Produce"


class Call(Protocol):
    """One stream of answers. It ends when the node ends it, by AioRpcError if it gives a reason."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def cancel(self) -> object:
        """End it from this side; a pending read raises CancelledError."""


class Connection(AbstractAsyncContextManager["Connection"], Protocol):
    """A connection to one node, closed when its ``async with`` block ends."""

    def produce(self, requests: AsyncIterable[bytes], timeout_s: float | None = None) -> Call:
        """Start a stream; the next of *requests* is taken once the previous one was sent."""


Connect = Callable[[str], Connection]
"""Connects to a node, given its ``host:port``."""


class GrpcConnection:
    """A connection that has its own gRPC channel."""

    def __init__(self, address: str) -> None:
        self._channel = dial(address, OPTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    def produce(self, requests: AsyncIterable[bytes], timeout_s: float | None = None) -> Call:
        """Start a stream."""
        method: Any = self._channel.stream_stream(_METHOD)
        return cast("Call", method(requests, timeout=timeout_s))
