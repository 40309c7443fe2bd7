"""What the Admin service accepts from any caller, and what its client accepts from a node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.client.admin_client import ADMIN_ANSWER_BYTES, AdminClient
from dledger.errors import Unavailable
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.requests import SMALL_BYTES
from dledger.services.admin import AdminServicer
from tests.services.part_of_admin_backend import PartOfAdminBackend

STATUS = "/dledger.v1.Admin/Status"


@asynccontextmanager
async def served(handler: grpc.GenericRpcHandler) -> AsyncIterator[str]:
    """Serve *handler*; gives the address."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@pytest.mark.found
async def test_a_node_takes_small_requests_only() -> None:
    """found: S2. Admin is asked by whoever reaches the port; none of its requests is large."""
    servicer = AdminServicer(PartOfAdminBackend())
    async with (
        served(servicer.handler()) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=f"the limit is {SMALL_BYTES}"):
            await channel.unary_unary(STATUS)(bytes(SMALL_BYTES + 1), timeout=30)
        with pytest.raises(grpc.aio.AioRpcError, match="not a valid BootstrapRequest"):
            await channel.unary_unary("/dledger.v1.Admin/Bootstrap")(b"\x0a", timeout=30)
        with pytest.raises(grpc.aio.AioRpcError, match="not a valid ExportRequest"):
            async for _ in channel.unary_stream("/dledger.v1.Admin/Export")(b"\x0a", timeout=30):
                pass


@pytest.mark.found
async def test_a_client_takes_small_answers_only() -> None:
    """found: K4. Two million members in 4 MiB took the operator of all 675 MiB and 37 s."""

    async def status(request: bytes, context: Any) -> bytes:
        del request, context
        return pb.StatusResponse(
            members=[pb.MemberStatus()] * ADMIN_ANSWER_BYTES
        ).SerializeToString()

    handler = grpc.unary_unary_rpc_method_handler(status)
    service = grpc.method_handlers_generic_handler("dledger.v1.Admin", {"Status": handler})
    async with served(service) as address, AdminClient(address, timeout_s=30) as client:
        with pytest.raises(Unavailable, match=f"larger than max .* vs. {ADMIN_ANSWER_BYTES}"):
            await client.status()
