"""Asking and steering nodes: the public client of the Admin service.

Frozen values in and out; users have it as `dledger.client.AdminClient`.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger.channel import Channel
from dledger.failover import FailoverRecord
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.pb import dledger_pb2_grpc as pb_grpc
from dledger.status import MemberStatus, NodeStatus
from dledger.types import Member, NodeId


class AdminClient(Channel):
    """Asks and steers one node through its peer port (20911)."""

    def __init__(self, address: str, *, timeout_s: float = 5.0) -> None:
        super().__init__(address, timeout_s)
        self._stub = pb_grpc.AdminStub(self.channel)

    async def status(self) -> NodeStatus:
        """Return the node's own view of itself and its group. Raises Unavailable."""
        return _status(await self.call(self._stub.Status, pb.StatusRequest()))

    async def bootstrap(self, group_id: str, members: Sequence[Member]) -> None:
        """Found a group on the asked node; the other members join it by themselves.

        Raises:
            AlreadyBootstrapped: The node belongs to a group.
            InvalidArgument: The node is not among *members*, or they are malformed.
        """
        request = pb.BootstrapRequest(
            group_id=group_id,
            members=[pb.Member(id=m.id, name=m.name, address=m.address) for m in members],
        )
        await self.call(self._stub.Bootstrap, request)

    async def export_size(self, first_index: int = 1) -> tuple[int, int]:
        """Return the commit index of the asked node, and the bytes of records up to it.

        The records are counted from *first_index* on, as an export would copy them.

        Raises:
            NotJoined: The node is in no group yet.
            Refused: The entries from *first_index* on are not there any more, or not yet.
        """
        request = pb.ExportPlanRequest(first_index=first_index, target_bytes=1 << 40)
        response = await self.call(self._stub.ExportPlan, request)
        return int(response.commit_index), sum(one.bytes for one in response.ranges)

    async def transfer_leader(self, target_id: str = "") -> str:
        """Hand leadership to *target_id*, or to the best follower; return who was chosen.

        Raises:
            NotLeader: The asked node does not lead.
            InvalidArgument: The target is no voter.
        """
        request = pb.TransferLeaderRequest(target_id=target_id)
        response = await self.call(self._stub.TransferLeader, request)
        return str(response.leader_id)


def _status(response: pb.StatusResponse) -> NodeStatus:
    return NodeStatus(
        node_id=response.node_id,
        name=response.name,
        group=response.group,
        group_id=response.group_id,
        role=response.role,
        term=response.term,
        leader_id=response.leader_id,
        commit_index=response.commit_index,
        applied_index=response.applied_index,
        last_index=response.last_index,
        synced_index=response.synced_index,
        ready=response.ready,
        not_ready_reason=response.not_ready_reason,
        members=tuple(_member_status(member) for member in response.members),
        last_failover=_failover(response),
        version=response.version,
        storage_used_bytes=response.storage_used_bytes,
        storage_capacity_bytes=response.storage_capacity_bytes,
        writes_refused_reason=response.writes_refused_reason,
        recovered_to=response.recovered_to,
    )


def _member_status(status: pb.MemberStatus) -> MemberStatus:
    member = status.member
    return MemberStatus(
        member=Member(id=NodeId(member.id), name=member.name, address=member.address),
        role=status.role,
        match_index=status.match_index,
        lag=status.lag,
        connected=status.connected,
    )


def _failover(response: pb.StatusResponse) -> FailoverRecord | None:
    if not response.HasField("last_failover"):
        return None
    record = response.last_failover
    return FailoverRecord(
        from_id=record.from_id,
        to_id=record.to_id,
        term=record.term,
        cause=record.cause,
        detected_ms=record.detected_ms,
        elected_ms=record.elected_ms,
        first_ack_ms=record.first_ack_ms,
        at_ms=record.at_ms,
    )
