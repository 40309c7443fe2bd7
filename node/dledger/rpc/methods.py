"""The methods of one service, by path: for gRPC's server, and for one that asks for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from dledger.errors import DledgerError


@dataclass(frozen=True, slots=True)
class ByCallback:
    """A unary method that can mostly be served without a coroutine, where its server can.

    Attributes:
        begin: Gets the call, its request, and the functions *answer* and *otherwise*. It serves the
            request by calling *answer*, now or later, and returns what gives it up; or it returns
            None, and `resume` is to serve it. If that turns out later, it calls *otherwise*, with
            the error of what was tried, if any.
        resume: Serves a call by a coroutine; gets the call, and the error of a first attempt.
    """

    begin: Callable[
        [Any, bytes, Callable[[bytes], None], Callable[[DledgerError | None], None]],
        Callable[[], object] | None,
    ]
    resume: Callable[[Any, DledgerError | None], Awaitable[bytes]]


class Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """What gRPC asks for the handler of each call.

    Args:
        service: The service's full name, such as ``dledger.v1.Ledger``.
        handlers: Its methods' handlers, by name.
        refusal: Returns the answer of the method of that name to a request that its server refuses
            unread; None: such a call ends with an error.
        by_callback: The methods among them that can be served without a coroutine, by name.
    """

    def __init__(
        self,
        service: str,
        handlers: Mapping[str, grpc.RpcMethodHandler],
        refusal: Callable[[str, DledgerError], bytes] | None = None,
        by_callback: Mapping[str, ByCallback] | None = None,
    ) -> None:
        self.by_callback = by_callback or {}
        self.by_path = {f"/{service}/{name}": handler for name, handler in handlers.items()}
        self.refusal = refusal

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call; None if the service has no such method."""
        return self.by_path.get(details.method)
