"""The base of the ``dledger.v1`` client services: forwarding, holding and typed errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc

from dledger.calls.caller import Caller
from dledger.errors import DledgerError
from dledger.requests.context import RequestContext
from dledger.rpc.requests import parsed
from dledger.rpc.status import abort, bug, grpc_code_of

logger = logging.getLogger(__name__)


class NativeHandlers:
    """Base of a dledger.v1 service at one port: raw bytes in, raw bytes out."""

    def __init__(self, context: RequestContext, *, tls: bool, peer_port: bool) -> None:
        self._context, self._engine = context, context.engine
        self._tls, self._peer_port = tls, peer_port
        self._admission = context.intake_of(peer_port=peer_port)

    def _at_leader(
        self, path: str, request_type: Any, serve: Callable[[Any], Awaitable[Any]]
    ) -> Callable[[Any, Any], Awaitable[bytes]]:
        """Return a unary handler that runs *serve* here if this node leads, else forwards.

        It reads its request itself (`admission`), so it must be registered as ``stream_unary``.
        Each request is counted once: a response on the node that made it, an error on the node
        that the client called.
        """
        method = method_of(path)

        async def once(raw: bytes, caller: Caller) -> bytes:
            if not self._engine.is_leader():
                return await self._context.relay.unary(path, raw, caller)
            answer = bytes((await serve(parsed(request_type, raw))).SerializeToString())
            self._answered(method)
            return answer

        async def admitted(context: Any, caller: Caller) -> bytes:
            async with self._admission.request(context, path.rpartition("/")[2]) as raw:
                return await self._context.relay.run(caller, len(raw), lambda: once(raw, caller))

        async def handle(_: Any, context: Any) -> bytes:
            caller = Caller.of(context, tls=self._tls, peer_port=self._peer_port)
            try:
                return await admitted(context, caller)
            except DledgerError as error:
                await self._refuse(context, method, error, forwarded=caller.forwarded)
            except Exception as error:
                logger.exception("group %s: %s failed", self._engine.group, path)
                await self._refuse(context, method, bug(error), forwarded=caller.forwarded)

        return handle

    async def _refuse(
        self,
        context: Any,
        method: str,
        error: DledgerError,
        *more: tuple[str, str],
        forwarded: bool = False,
    ) -> NoReturn:
        if not forwarded:
            self._answered(method, grpc_code_of(error))
        await abort(context, error, *more)

    def _answered(self, method: str, code: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        self._context.metrics.requests.answered(method, code.name)


def method_of(path: str) -> str:
    """Return ``Ledger/Append`` for ``/dledger.v1.Ledger/Append``."""
    return path.rpartition(".")[2]
