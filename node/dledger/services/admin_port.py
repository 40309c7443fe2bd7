"""The way of an Admin call: its request, its deadline, and how its errors end it.

It is not the way of clients' requests (`calls`), and shares nothing with it but the table of
errors: the operator's calls are answered at once or not at all, by the node that was asked, which
may belong to no group yet, and they must get through while clients have filled all room. Who may
make them is said by certificates (`rpc.callers`). Used by `admin`, `topic_admin` and `group_admin`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeAlias, TypeVar

import grpc
import grpc.aio

from dledger.errors import DledgerError, NotLeader
from dledger.requests.engine import Engine
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.requests import check_size, parsed
from dledger.rpc.status import abort

_NO_DEADLINE_S: Final = 10.0
_ANSWER_MARGIN_S: Final = 0.2

_Q = TypeVar("_Q")
_A = TypeVar("_A")
_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Unary: TypeAlias = tuple[type[Any], Callable[[Any, float], Awaitable[Any]]]
"""The type of a method's requests, and what serves one within so many seconds."""
Streamed: TypeAlias = tuple[type[Any], Callable[[Any], AsyncGenerator[bytes]]]
"""The same for a method with many responses, which come serialized."""


def admin_service(
    unary: Mapping[str, Unary], streams: Mapping[str, Streamed] | None = None
) -> grpc.GenericRpcHandler:
    """Return what serves these methods of the Admin service, given by name, on the peer port."""
    handlers = {name: _unary(name, *each) for name, each in unary.items()}
    handlers |= {name: _stream(name, *each) for name, each in (streams or {}).items()}
    return grpc.method_handlers_generic_handler(f"{pb.DESCRIPTOR.package}.Admin", handlers)


def at_leader(
    engine: Engine, serve: Callable[[_Q], Awaitable[_A]]
) -> Callable[[_Q, float], Awaitable[_A]]:
    """Return what serves a method on the leader only; others name it."""

    async def handle(request: _Q, _: float) -> _A:
        if not engine.is_leader():
            leader = engine.leader()
            raise NotLeader(leader.id if leader is not None else None)
        return await serve(request)

    return handle


def _unary(
    name: str, kind: type[Any], serve: Callable[[Any, float], Awaitable[Any]]
) -> grpc.RpcMethodHandler:
    async def answer(raw: bytes, context: _Context) -> bytes:
        try:
            response = await serve(_request(name, kind, raw), _patience_s(context))
        except DledgerError as error:
            await abort(context, error)
        return bytes(response.SerializeToString())

    return grpc.unary_unary_rpc_method_handler(answer)


def _stream(
    name: str, kind: type[Any], serve: Callable[[Any], AsyncGenerator[bytes]]
) -> grpc.RpcMethodHandler:
    async def answers(raw: bytes, context: _Context) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(serve(_request(name, kind, raw))) as responses:
                async for response in responses:
                    yield response
        except DledgerError as error:
            await abort(context, error)

    return grpc.unary_stream_rpc_method_handler(answers)


def _request(name: str, kind: type[Any], raw: bytes) -> Any:
    check_size(name, len(raw))
    return parsed(kind, raw)


def _patience_s(context: _Context) -> float:
    """Return the caller's remaining time in seconds, less that for the response; at least 0."""
    remaining_s = context.time_remaining()
    return max((_NO_DEADLINE_S if remaining_s is None else remaining_s) - _ANSWER_MARGIN_S, 0.0)
