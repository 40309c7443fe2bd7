"""A client of one node's Admin service over mutual TLS."""

from __future__ import annotations

from typing import Final

import grpc
import grpc.aio

from dledger.client.admin_client import ADMIN_ANSWER_BYTES, AdminClient
from dledger.rpc.channel import options
from dledger.rpc.pb import dledger_pb2_grpc as pb_grpc

_NAME_OPTION: Final = "grpc.ssl_target_name_override"


class SecureAdminClient(AdminClient):
    """An AdminClient over TLS; the server has to be the member *name*, whatever its address is.

    Args:
        address: ``host:port`` of a peer port.
        name: The member's name, as its certificate has it.
        trusted: The authorities that are believed, as PEM.
        chain: The certificate to show, as PEM.
        key: Its key, as PEM.
        timeout_s: Longest time for one call.
    """

    def __init__(
        self,
        address: str,
        *,
        name: str,
        trusted: bytes,
        chain: bytes,
        key: bytes,
        timeout_s: float = 5.0,
    ) -> None:
        super().__init__(address, timeout_s=timeout_s)
        self._plain = self.channel  # never connects, since nothing is called on it
        self.channel = grpc.aio.secure_channel(
            address,
            grpc.ssl_channel_credentials(trusted, key, chain),
            options=(*options(ADMIN_ANSWER_BYTES), (_NAME_OPTION, name)),
        )
        self._stub = pb_grpc.AdminStub(self.channel)

    async def close(self) -> None:
        """Close the connection."""
        await self._plain.close()
        await super().close()
