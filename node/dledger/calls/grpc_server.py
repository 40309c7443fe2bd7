"""gRPC's own server as an adapter: its calls in the form that handlers know (`door.contract`).

The peer port has it, and the client ports with ``client_server: grpc``. It reads a request when a
handler asks for it, and cannot tell whether an answer has arrived: what it has written it believes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, TypeAlias

import grpc
import grpc.aio

from dledger.calls.method import AnyMethod
from dledger.calls.service import Service
from dledger.door.contract import Arrival, AwaitedStream, Failed, Headers
from dledger.rpc.metadata import by_key, pairs

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


def by_grpc(service: Service) -> grpc.GenericRpcHandler:
    """Return a service as gRPC's server takes it."""
    return _Generic(service)


class _Generic(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, service: Service) -> None:
        self._handlers = {
            path: _handler(service, method) for path, method in service.methods.items()
        }

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call; None if the service has no such method."""
        return self._handlers.get(details.method)


def _handler(service: Service, method: AnyMethod) -> grpc.RpcMethodHandler:
    pipeline = service.pipeline

    async def answer(_: object, context: _Context) -> bytes:
        try:
            return await pipeline.unread(method, headers_of(context), _Stream(context).read)
        except Failed as failed:
            await _abort(context, failed)
            raise

    async def answers(_: object, context: _Context) -> None:
        stream = _Stream(context)
        try:
            await pipeline.open(method, headers_of(context), stream)
            stream.is_written = True
        except Failed as failed:
            await _abort(context, failed)
        finally:
            stream.end()

    if method.stream is not None:
        return grpc.stream_stream_rpc_method_handler(answers)
    return grpc.stream_unary_rpc_method_handler(answer)


def headers_of(context: _Context) -> Headers:
    """Return what came with a call."""
    fields = pairs(tuple(by_key(context.invocation_metadata()).items()))
    remaining_s = context.time_remaining()
    return Headers(
        fields,
        dict(fields),
        peer=context.peer(),
        connection=0,
        deadline_s=None if remaining_s is None else asyncio.get_running_loop().time() + remaining_s,
    )


class _Stream(AwaitedStream):
    """A call's two directions. Implements `contract.Stream`."""

    def __init__(self, context: _Context) -> None:
        self._context = context
        self._arrivals: list[Arrival] = []
        self.is_written = False

    async def read(self) -> bytes | None:
        """Return the next message."""
        message = await self._context.read()
        return None if message is grpc.aio.EOF else bytes(message)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self.read()) is not None:
            yield message

    async def send(self, message: bytes) -> None:
        """Write a message."""
        await self._context.write(message)

    def send_now(self, message: bytes) -> None:
        """Refuse: this server has to be waited for."""
        raise NotImplementedError

    def prove(self, arrival: Arrival) -> None:
        """Tell *arrival* once all is written, which is taken for arrived."""
        self._arrivals.append(arrival)

    def end(self) -> None:
        """Tell what became of the answers."""
        for arrival in self._arrivals:
            if self.is_written:
                arrival.proved()
            else:
                arrival.lost()


async def _abort(context: _Context, failed: Failed) -> None:
    """End a call with a status.

    gRPC keeps the exception that ends a call alive until the next garbage collection. So its
    traceback is cleared here: the frames in it hold the request.
    """
    failed.__traceback__ = None
    trailers = tuple(
        (name.decode(), value.decode("ascii", "replace")) for name, value in failed.trailers
    )
    await context.abort(_CODES[failed.code], failed.message, trailing_metadata=trailers)
