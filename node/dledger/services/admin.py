"""The Admin service: the life cycle of one node, on its peer port. It translates, decides nothing.

Its calls about topics and consumer groups are in `topic_admin`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Final, Protocol

import grpc

from dledger.common.status import NodeStatus
from dledger.replica.force_group import Force, Forced
from dledger.replica.member_change import Changed, MemberChange
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.admin_port import admin_service
from dledger.services.export import CommittedLog, Export
from dledger.services.status_stream import StatusStreams
from dledger.types import Member, NodeId

_MAX_INT64: Final = (1 << 63) - 1


class AdminBackend(Protocol):
    """What the node does for the Admin service."""

    def status(self) -> NodeStatus:
        """Return the node's view of itself and its group."""

    async def wait_change(self, timeout_s: float) -> None:
        """Return when role, leader or members change, or after *timeout_s*."""

    async def bootstrap(self, group_id: str, members: tuple[Member, ...]) -> None:
        """Bootstrap a group."""

    def transfer_leadership(self, target: NodeId | None) -> NodeId:
        """Transfer leadership; return the target."""

    async def change_members(self, change: MemberChange, *, timeout_s: float) -> Changed:
        """Add learners and remove members; return when the change is committed."""

    async def force_new_group(self, force: Force, *, timeout_s: float) -> Forced:
        """Make this node the only member of its group; return once it leads."""

    async def snapshot(self) -> int:
        """Write a snapshot of the state; return its last index. Raises NotJoined, DiskFull."""

    def committed_log(self) -> CommittedLog:
        """Return the committed log that may be exported now. Raises NotJoined."""


class AdminServicer:
    """Serves bootstrap, status, membership, leadership and export."""

    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend
        self._export = Export(backend.committed_log)
        self._streams = StatusStreams(backend)

    def close(self) -> None:
        """End the streams of the node's status; other calls are still served."""
        self._streams.close()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service to register on the peer port's server."""
        return admin_service(
            {
                "Bootstrap": (pb.BootstrapRequest, self._bootstrap),
                "Status": (pb.StatusRequest, self._status),
                "TransferLeader": (pb.TransferLeaderRequest, self._transfer_leader),
                "AddLearner": (pb.AddLearnerRequest, self._add_learner),
                "RemoveMember": (pb.RemoveMemberRequest, self._remove_member),
                "ChangeMembers": (pb.ChangeMembersRequest, self._change_members),
                "ForceNewGroup": (pb.ForceNewGroupRequest, self._force_new_group),
                "Snapshot": (pb.SnapshotRequest, self._snapshot),
                "ExportPlan": (pb.ExportPlanRequest, self._export_plan),
            },
            {
                "WatchStatus": (pb.WatchStatusRequest, self._watch_status),
                "ExportSnapshot": (pb.ExportSnapshotRequest, self._export.snapshot),
                "ExportPlaces": (pb.ExportPlacesRequest, self._export.places),
                "Export": (pb.ExportRequest, self._export.chunks),
            },
        )

    async def _bootstrap(self, request: pb.BootstrapRequest, _: float) -> pb.BootstrapResponse:
        await self._backend.bootstrap(request.group_id, _members(request.members))
        return pb.BootstrapResponse()

    async def _status(self, request: pb.StatusRequest, _: float) -> pb.StatusResponse:
        del request
        return status_response(self._backend.status())

    async def _watch_status(self, request: pb.WatchStatusRequest) -> AsyncGenerator[bytes]:
        del request
        async with aclosing(self._streams.follow()) as news:
            async for status in news:
                said = pb.StatusNews(status=status_response(status) if status else None)
                yield said.SerializeToString()

    async def _transfer_leader(
        self, request: pb.TransferLeaderRequest, _: float
    ) -> pb.TransferLeaderResponse:
        target = NodeId(request.target_id) if request.target_id else None
        return pb.TransferLeaderResponse(leader_id=self._backend.transfer_leadership(target))

    async def _add_learner(
        self, request: pb.AddLearnerRequest, timeout_s: float
    ) -> pb.MembershipResponse:
        learner = Member(id=NodeId(request.id), name=request.name, address=request.address)
        return await self._change(MemberChange(add=(learner,)), timeout_s)

    async def _remove_member(
        self, request: pb.RemoveMemberRequest, timeout_s: float
    ) -> pb.MembershipResponse:
        return await self._change(MemberChange(remove=(NodeId(request.id),)), timeout_s)

    async def _change_members(
        self, request: pb.ChangeMembersRequest, timeout_s: float
    ) -> pb.MembershipResponse:
        remove = tuple(NodeId(node_id) for node_id in request.remove)
        return await self._change(MemberChange(add=_members(request.add), remove=remove), timeout_s)

    async def _change(self, change: MemberChange, timeout_s: float) -> pb.MembershipResponse:
        changed = await self._backend.change_members(change, timeout_s=timeout_s)
        return pb.MembershipResponse(
            index=changed.index,
            voters=map(_member, changed.membership.voters),
            learners=map(_member, changed.membership.learners),
        )

    async def _force_new_group(
        self, request: pb.ForceNewGroupRequest, timeout_s: float
    ) -> pb.ForceNewGroupResponse:
        """Make this node its group, after a majority's disks are lost for good."""
        force = Force(
            group_id=request.group_id,
            node_id=NodeId(request.node_id),
            last_term=request.expected_last_term,
            last_index=request.expected_last_index,
        )
        forced = await self._backend.force_new_group(force, timeout_s=timeout_s)
        return pb.ForceNewGroupResponse(
            term=forced.term,
            index=forced.index,
            epoch=forced.epoch,
            committed_index=forced.committed_index,
            removed=map(_member, forced.removed),
        )

    async def _snapshot(self, request: pb.SnapshotRequest, _: float) -> pb.SnapshotResponse:
        del request
        return pb.SnapshotResponse(last_index=await self._backend.snapshot())

    async def _export_plan(self, request: pb.ExportPlanRequest, _: float) -> pb.ExportPlanResponse:
        return await self._export.plan(request)


def status_response(status: NodeStatus) -> pb.StatusResponse:
    """Return the protobuf form of a node's status.

    A number that does not fit its field is clamped, so that a faulty group's status stays readable.
    """
    response = pb.StatusResponse(
        node_id=status.node_id,
        name=status.name,
        group=status.group,
        group_id=status.group_id,
        role=status.role,
        term=_fitting(status.term),
        leader_id=status.leader_id,
        commit_index=_fitting(status.commit_index),
        applied_index=_fitting(status.applied_index),
        last_index=_fitting(status.last_index),
        synced_index=_fitting(status.synced_index),
        ready=status.ready,
        not_ready_reason=status.not_ready_reason,
        version=status.version,
        storage_used_bytes=status.storage_used_bytes,
        storage_capacity_bytes=status.storage_capacity_bytes,
        writes_refused_reason=status.writes_refused_reason,
        recovered_to=status.recovered_to,
        faulty_entries=status.faulty_entries,
        feature_level=status.feature_level,
        told_group_id=status.told_group_id,
        commit_waits_ms=_fitting(status.commit_waits_ms),
        now_ms=_fitting(status.now_ms),
        last_term=_fitting(status.last_term),
        epoch=_fitting(status.epoch),
        older_copy=status.older_copy,
        clock_ahead_ms=_fitting(status.clock_ahead_ms),
        clock_behind_ms=_fitting(status.clock_behind_ms),
        log_ahead_ms=_fitting(status.log_ahead_ms),
        client_certificate_fault=status.client_certificate_fault,
        client_certificate_begins_ms=_fitting(status.client_certificate_begins_ms),
        client_certificate_ends_ms=_fitting(status.client_certificate_ends_ms),
        held_waiting=status.held_waiting,
    )
    for row in status.members:
        response.members.add(
            member=_member(row.member),
            role=row.role,
            match_index=_fitting(row.match_index),
            lag=_fitting(row.lag),
            connected=row.connected,
            voter=row.voter,
            feature_level=row.feature_level,
        )
    if status.last_failover is not None:
        record = status.last_failover
        response.last_failover.CopyFrom(
            pb.Failover(
                from_id=record.from_id,
                to_id=record.to_id,
                term=_fitting(record.term),
                cause=record.cause,
                detected_ms=record.detected_ms,
                elected_ms=record.elected_ms,
                first_ack_ms=record.first_ack_ms,
                at_ms=record.at_ms,
            )
        )
    return response


def _fitting(number: int) -> int:
    return max(-_MAX_INT64 - 1, min(number, _MAX_INT64))


def _members(members: Iterable[pb.Member]) -> tuple[Member, ...]:
    return tuple(Member(id=NodeId(m.id), name=m.name, address=m.address) for m in members)


def _member(member: Member) -> pb.Member:
    return pb.Member(id=member.id, name=member.name, address=member.address)
