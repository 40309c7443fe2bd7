"""The Admin service: the life cycle of one node, on its peer port. It translates, decides nothing.

Its calls about topics and consumer groups are in `topic_admin`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any, Final, Protocol

import grpc

from dledger.common.status import NodeStatus
from dledger.errors import DledgerError
from dledger.replica.force_group import Force, Forced
from dledger.replica.member_change import Changed, MemberChange
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.requests import check_size, parsed
from dledger.rpc.status import abort
from dledger.services.export import CommittedLog, Export
from dledger.services.status_stream import StatusStreams
from dledger.types import Member, NodeId

_NO_DEADLINE_S: Final = 10.0
_ANSWER_MARGIN_S: Final = 0.2
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
        methods = pb.DESCRIPTOR.services_by_name["Admin"].methods
        return grpc.method_handlers_generic_handler(
            f"{pb.DESCRIPTOR.package}.Admin",
            {m.name: self._method_handler(m) for m in methods if hasattr(self, m.name)},
        )

    def _method_handler(self, method: Any) -> grpc.RpcMethodHandler:
        """Return the handler of one method; streaming methods yield serialized responses."""
        behaviour, kind = getattr(self, method.name), getattr(pb, method.input_type.name)

        async def request_of(raw: bytes, context: Any) -> Any:
            try:
                check_size(method.name, len(raw))
                return parsed(kind, raw)
            except DledgerError as error:
                await abort(context, error)

        async def answer(raw: bytes, context: Any) -> bytes:
            response = await behaviour(await request_of(raw, context), context)
            return bytes(response.SerializeToString())

        async def answers(raw: bytes, context: Any) -> AsyncIterator[bytes]:
            async for response in behaviour(await request_of(raw, context), context):
                yield response

        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(answers)
        return grpc.unary_unary_rpc_method_handler(answer)

    async def Bootstrap(self, request: pb.BootstrapRequest, context: Any) -> pb.BootstrapResponse:
        """Bootstrap a group on this node."""
        try:
            await self._backend.bootstrap(request.group_id, _members(request.members))
        except DledgerError as error:
            await abort(context, error)
        return pb.BootstrapResponse()

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusResponse:
        """Return this node's status."""
        del request, context
        return status_response(self._backend.status())

    async def WatchStatus(
        self, request: pb.WatchStatusRequest, context: Any
    ) -> AsyncIterator[bytes]:
        """Stream this node's status."""
        del request
        try:
            async with aclosing(self._streams.follow()) as news:
                async for status in news:
                    said = pb.StatusNews(status=status_response(status) if status else None)
                    yield said.SerializeToString()
        except DledgerError as error:
            await abort(context, error)

    async def TransferLeader(
        self, request: pb.TransferLeaderRequest, context: Any
    ) -> pb.TransferLeaderResponse:
        """Transfer leadership to another member."""
        target = NodeId(request.target_id) if request.target_id else None
        try:
            chosen = self._backend.transfer_leadership(target)
        except DledgerError as error:
            await abort(context, error)
        return pb.TransferLeaderResponse(leader_id=chosen)

    async def AddLearner(
        self, request: pb.AddLearnerRequest, context: Any
    ) -> pb.MembershipResponse:
        """Add one learner."""
        learner = Member(id=NodeId(request.id), name=request.name, address=request.address)
        return await self._change(MemberChange(add=(learner,)), context)

    async def RemoveMember(
        self, request: pb.RemoveMemberRequest, context: Any
    ) -> pb.MembershipResponse:
        """Remove one member permanently."""
        return await self._change(MemberChange(remove=(NodeId(request.id),)), context)

    async def ChangeMembers(
        self, request: pb.ChangeMembersRequest, context: Any
    ) -> pb.MembershipResponse:
        """Add and remove several members in one change."""
        remove = tuple(NodeId(node_id) for node_id in request.remove)
        return await self._change(MemberChange(add=_members(request.add), remove=remove), context)

    async def _change(self, change: MemberChange, context: Any) -> pb.MembershipResponse:
        try:
            changed = await self._backend.change_members(change, timeout_s=_patience_s(context))
        except DledgerError as error:
            await abort(context, error)
        return pb.MembershipResponse(
            index=changed.index,
            voters=map(_member, changed.membership.voters),
            learners=map(_member, changed.membership.learners),
        )

    async def ForceNewGroup(
        self, request: pb.ForceNewGroupRequest, context: Any
    ) -> pb.ForceNewGroupResponse:
        """Make this node its group, after a majority's disks are lost for good."""
        force = Force(
            group_id=request.group_id,
            node_id=NodeId(request.node_id),
            last_term=request.expected_last_term,
            last_index=request.expected_last_index,
        )
        try:
            forced = await self._backend.force_new_group(force, timeout_s=_patience_s(context))
        except DledgerError as error:
            await abort(context, error)
        return pb.ForceNewGroupResponse(
            term=forced.term,
            index=forced.index,
            epoch=forced.epoch,
            committed_index=forced.committed_index,
            removed=map(_member, forced.removed),
        )

    async def Snapshot(self, request: pb.SnapshotRequest, context: Any) -> pb.SnapshotResponse:
        """Write a snapshot of this node's state."""
        del request
        try:
            return pb.SnapshotResponse(last_index=await self._backend.snapshot())
        except DledgerError as error:
            await abort(context, error)

    async def ExportPlan(
        self, request: pb.ExportPlanRequest, context: Any
    ) -> pb.ExportPlanResponse:
        """Return how to split the committed entries into ranges."""
        try:
            return await self._export.plan(request)
        except DledgerError as error:
            await abort(context, error)

    async def ExportSnapshot(
        self, request: pb.ExportSnapshotRequest, context: Any
    ) -> AsyncIterator[bytes]:
        """Stream the newest snapshot."""
        try:
            async with aclosing(self._export.snapshot(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except DledgerError as error:
            await abort(context, error)

    async def ExportPlaces(
        self, request: pb.ExportPlacesRequest, context: Any
    ) -> AsyncIterator[bytes]:
        """Stream where the messages of committed entries are."""
        try:
            async with aclosing(self._export.places(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except DledgerError as error:
            await abort(context, error)

    async def Export(self, request: pb.ExportRequest, context: Any) -> AsyncIterator[bytes]:
        """Stream the records of committed entries."""
        try:
            async with aclosing(self._export.chunks(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except DledgerError as error:
            await abort(context, error)


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


def _patience_s(context: Any) -> float:
    """Return the caller's remaining time in seconds, less that for the response; at least 0."""
    remaining_s = context.time_remaining()
    return max((_NO_DEADLINE_S if remaining_s is None else remaining_s) - _ANSWER_MARGIN_S, 0.0)


def _members(members: Iterable[pb.Member]) -> tuple[Member, ...]:
    return tuple(Member(id=NodeId(m.id), name=m.name, address=m.address) for m in members)


def _member(member: Member) -> pb.Member:
    return pb.Member(id=member.id, name=member.name, address=member.address)
