"""What stands between sidecar and group, call by call: it can keep a node's answers for itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any

import grpc
import grpc.aio


class Line(Enum):
    """How the line is."""

    WHOLE = "calls and answers pass"
    ANSWERLESS = "calls pass, and no answer comes back"
    CUT = "nothing passes"


class Between(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Passes unary calls on as bytes, with who calls.

    Attributes:
        line: Set it at will; a call whose answer is out is answered by what the line is then.
        lost: How many calls of SendMessage the node answered, and nobody heard it.
    """

    def __init__(self, node: str) -> None:
        self._channel = grpc.aio.insecure_channel(node)
        self.line, self.lost, self.port = Line.WHOLE, 0, 0

    def service(self, details: Any) -> Any:
        """Return what serves a method: what grpc asks of a generic handler."""
        method: Any = self._channel.unary_unary(details.method)

        async def serve(body: bytes, context: Any) -> bytes:
            if self.line is Line.CUT:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the line is cut")
            fields = [pair for pair in context.invocation_metadata() if pair[0].startswith("x-")]
            answer = bytes(await method(body, metadata=fields, timeout=30))
            if self.line is not Line.WHOLE:
                self.lost += details.method.endswith("/SendMessage")
                await asyncio.Event().wait()  # until the caller has enough of it
            return answer

        return grpc.unary_unary_rpc_method_handler(serve)

    async def close(self) -> None:
        """Close the way to the node."""
        await self._channel.close()


@asynccontextmanager
async def between(node: str) -> AsyncIterator[Between]:
    """Stand before a node, at a port of its own."""
    made = Between(node)
    server = grpc.aio.server(handlers=[made], options=[("grpc.so_reuseport", 0)])
    made.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield made
    finally:
        await server.stop(0)
        await made.close()
