"""The leader's end of the links over which followers pass requests on (`follower`)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc

from dledger.door.bounds import Bounds
from dledger.door.contract import Handlers
from dledger.link.calls_in import CallsIn, ServedPort
from dledger.link.offer import Offer, Wish
from dledger.peers.replication_port import ReplicationPort
from dledger.rpc import callers

_SERVICE: Final = "dledger.Peers"
_METHOD: Final = "Relay"
RELAY_PATH: Final = f"/{_SERVICE}/{_METHOD}"
_MAX_OFFERS: Final = 64
"""More than any group has members; in plain text anyone may ask."""


class RelayPort:
    """Takes the links of followers.

    Args:
        handlers: What the peer port serves of clients' methods, by path.
        replication: The port to which followers connect.
    """

    def __init__(self, handlers: Handlers, replication: ReplicationPort) -> None:
        self._handlers: Handlers = {
            path: each
            for path, each in handlers.items()
            if "member" in callers.MAY_CALL.get(path, ())
        }
        self._methods = tuple(self._handlers)
        self._offers = 0
        self._replication = replication

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler by which followers ask for a link."""
        serve = grpc.unary_stream_rpc_method_handler(self._offer)
        return grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: serve})

    async def _offer(self, request: bytes, context: Any) -> None:
        """Offer a link, which lasts as long as this call."""
        try:
            agreed = Wish.decode(request).newest_format()
        except ValueError as error:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, str(error))
            raise
        if self._offers >= _MAX_OFFERS:
            reason = f"{self._offers} links are open"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        self._offers += 1
        try:
            role = callers.role_of_call(context, self._replication.group)
            with self._replication.admitted_as(self._link, role) as token:
                port = self._replication.number
                offer = Offer(format=agreed, port=port, token=token, methods=self._methods)
                await context.write(offer.encode())
                await asyncio.Event().wait()
        finally:
            self._offers -= 1

    def end(self) -> CallsIn:
        """Return this end of a new link."""
        port = ServedPort(handlers=self._handlers, resumed={})
        return CallsIn([port], self._methods, Bounds(), same_clock=False)

    def _link(self) -> asyncio.Protocol:
        return self.end().link
