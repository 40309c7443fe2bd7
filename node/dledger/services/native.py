"""The base of the ``dledger.v1`` client services: rows of `calls` whose refusals are statuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from google.protobuf.message import Message

from dledger.calls.caller import Caller
from dledger.calls.method import AnyMethod, Method
from dledger.door.contract import Stream
from dledger.requests.context import RequestContext
from dledger.rpc.requests import parsed

_Q = TypeVar("_Q", bound=Message)
_A = TypeVar("_A", bound=Message)


class NativeHandlers:
    """Base of a dledger.v1 service at one port."""

    def __init__(self, context: RequestContext, *, tls: bool, peer_port: bool) -> None:
        self._context, self._engine, self._tls = context, context.engine, tls
        self._pipeline = context.pipeline(tls=tls, peer_port=peer_port)
        self._admission = self._pipeline.admission

    def _answered(self, method: AnyMethod, code: str = "OK") -> None:
        self._context.metrics.requests.answered(method.label, code)


def native_method(
    path: str,
    request: type[_Q],
    serve: Callable[[_Q, Caller], Awaitable[_A]],
    messages: Callable[[bytes], int] = lambda _: 0,
) -> Method[_Q, _A]:
    """Return the row of a unary method that *serve* serves on the leader."""
    return Method(
        path=path,
        label=_label(path),
        parse=partial(parsed, request),
        code=lambda _: "OK",
        serve=serve,
        messages=messages,
    )


def native_stream(
    path: str, request: type[_Q], serve: Callable[[Caller, Stream], Awaitable[None]]
) -> AnyMethod:
    """Return the row of a method that *serve* serves as a stream, on any node."""
    return Method(
        path=path,
        label=_label(path),
        parse=partial(parsed, request),
        code=lambda _: "OK",
        stream=serve,
    )


def _label(path: str) -> str:
    """Return ``Ledger/Append`` for ``/dledger.v1.Ledger/Append``."""
    return path.rpartition(".")[2]
