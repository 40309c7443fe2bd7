"""The methods of one service, by path: for gRPC's server, and for one that asks for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc

from dledger.errors import DledgerError


class Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """What gRPC asks for the handler of each call.

    Args:
        service: The service's full name, such as ``dledger.v1.Ledger``.
        handlers: Its methods' handlers, by name.
        refusal: Returns the answer of the method of that name to a request that its server refuses
            unread; None: such a call ends with an error.
    """

    def __init__(
        self,
        service: str,
        handlers: Mapping[str, grpc.RpcMethodHandler],
        refusal: Callable[[str, DledgerError], bytes] | None = None,
    ) -> None:
        self.by_path = {f"/{service}/{name}": handler for name, handler in handlers.items()}
        self.refusal = refusal

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call; None if the service has no such method."""
        return self.by_path.get(details.method)
