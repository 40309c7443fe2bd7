"""Following the leader from a member that knows little: the answers come over real gRPC."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.client import AdminClient
from dledger.errors import NotLeader, Unavailable
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.status import abort
from dledger.types import NodeId
from e2e.harness.ports import free_ports
from tests.requests.memory_group import WAIT_S, MemoryGroup

pytestmark = pytest.mark.found


class JustJoined(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    """A member that learns of its group after it was asked; it names the leader before that."""

    def __init__(self, leader: NodeId, address: str) -> None:
        self._rows = [
            pb.MemberStatus(member=pb.Member(id=leader, name="orders-0", address=address))
        ]
        self._leader: NodeId | None = None

    def service(self, details: Any) -> Any:
        """See `grpc.GenericRpcHandler`."""
        status = details.method.endswith("/Status")
        return grpc.unary_unary_rpc_method_handler(self._status if status else self._refuse)

    async def _status(self, request: bytes, context: Any) -> bytes:
        members = self._rows if self._leader else ()
        self._leader = NodeId(self._rows[0].member.id)
        return pb.StatusResponse(members=members).SerializeToString()

    async def _refuse(self, request: bytes, context: Any) -> bytes:
        await abort(context, NotLeader(self._leader))
        raise AssertionError("aborted")


async def test_members_that_the_asked_node_learns_of_later_are_found(group: MemoryGroup) -> None:
    """It had joined a moment ago: its first answer names no member, its second no one else."""
    leader = group.nodes[0]
    handler = JustJoined(leader.engine.node_id, f"127.0.0.1:{leader.peer_port}")
    server = grpc.aio.server(handlers=(handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    async with AdminClient(f"127.0.0.1:{port}", timeout_s=WAIT_S) as admin:
        created = await admin.create_group("audit")
    await server.stop(None)

    assert created
    assert leader.engine.state.groups.exists("audit")


async def test_a_client_is_not_told_of_a_refusal_that_another_met(group: MemoryGroup) -> None:
    """One that gRPC would keep for the address, whether the first client is closed or not."""
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    async with AdminClient(address, timeout_s=WAIT_S) as early:
        with pytest.raises(Unavailable, match="refused"):
            await early.status()

        server = grpc.aio.server(
            handlers=(JustJoined(group.nodes[0].engine.node_id, "127.0.0.1:1"),)
        )
        server.add_insecure_port(address)
        await server.start()
        async with AdminClient(address, timeout_s=WAIT_S) as later:
            answer = await later.status()
        await server.stop(None)

    assert answer.members == ()
