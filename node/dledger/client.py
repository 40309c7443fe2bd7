"""The public Python client: administration, topics, batched appends and reads.

Frozen values in and out; errors are the classes of `dledger.errors`. Used by the operator, the
command line, the end-to-end stories and by users.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import grpc
import grpc.aio

from dledger.errors import (
    AlreadyBootstrapped,
    DiskFull,
    DledgerError,
    InvalidArgument,
    NotJoined,
    NotLeader,
    Overloaded,
    Refused,
    Unavailable,
    UnknownTopic,
)
from dledger.failover import FailoverRecord
from dledger.records import Appended, Record, StoredRecord
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.pb import dledger_pb2_grpc as pb_grpc
from dledger.status import MemberStatus, NodeStatus
from dledger.types import Member, NodeId

__all__ = ["AdminClient", "Appended", "Client", "Record", "StoredRecord", "TopicInfo", "error_of"]

_RETRY_S: Final = 0.1
_OPTIONS: Final = (
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """One topic; *messages* is the sum of its queues' end offsets."""

    name: str
    type: str
    queues: int
    messages: int


class _Channel:
    """A gRPC channel as an async context manager."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=self.timeout_s)
        except grpc.aio.AioRpcError as error:
            raise error_of(error, self.address) from error


class AdminClient(_Channel):
    """Asks and steers one node through its peer port (20911)."""

    def __init__(self, address: str, *, timeout_s: float = 5.0) -> None:
        super().__init__(address, timeout_s)
        self._stub = pb_grpc.AdminStub(self._channel)

    async def status(self) -> NodeStatus:
        """Return the node's own view of itself and its group. Raises Unavailable."""
        return _status(await self._call(self._stub.Status, pb.StatusRequest()))

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
        await self._call(self._stub.Bootstrap, request)

    async def export_size(self, first_index: int = 1) -> tuple[int, int]:
        """Return the commit index of the asked node, and the bytes of records up to it.

        The records are counted from *first_index* on, as an export would copy them.

        Raises:
            NotJoined: The node is in no group yet.
            Refused: The entries from *first_index* on are not there any more, or not yet.
        """
        request = pb.ExportPlanRequest(first_index=first_index, target_bytes=1 << 40)
        response = await self._call(self._stub.ExportPlan, request)
        return int(response.commit_index), sum(one.bytes for one in response.ranges)

    async def transfer_leader(self, target_id: str = "") -> str:
        """Hand leadership to *target_id*, or to the best follower; return who was chosen.

        Raises:
            NotLeader: The asked node does not lead.
            InvalidArgument: The target is no voter.
        """
        request = pb.TransferLeaderRequest(target_id=target_id)
        response = await self._call(self._stub.TransferLeader, request)
        return str(response.leader_id)


class Client(_Channel):
    """Writes and reads messages in batches through any node's client port (8081).

    Appends are retried until *timeout_s* with the same message ids, so that a failover neither
    loses nor repeats a record.
    """

    def __init__(self, address: str, *, timeout_s: float = 30.0, client_id: str = "") -> None:
        super().__init__(address, timeout_s)
        self.client_id = client_id or f"dledger-py-{uuid.uuid4()}"
        self._ledger = pb_grpc.LedgerStub(self._channel)
        self._topics = pb_grpc.TopicsStub(self._channel)

    async def create_topic(self, name: str, type: str = "NORMAL", queues: int = 8) -> bool:  # noqa: A002
        """Create a topic; False when it existed with the same settings. Raises Refused."""
        request = pb.CreateTopicRequest(name=name, type=type, queues=queues)
        return bool((await self._call(self._topics.CreateTopic, request)).created)

    async def topics(self) -> tuple[TopicInfo, ...]:
        """Return all topics, sorted by name."""
        response = await self._call(self._topics.ListTopics, pb.ListTopicsRequest())
        found = (
            TopicInfo(name=t.name, type=t.type, queues=t.queues, messages=t.messages)
            for t in response.topics
        )
        return tuple(sorted(found, key=lambda topic: topic.name))

    async def append(
        self, topic: str, records: Iterable[Record | bytes], *, queue_id: int = -1
    ) -> Appended:
        """Append one batch to one queue; returns when a majority has synced it.

        Args:
            topic: The topic.
            records: Records or bare bodies.
            queue_id: The queue; -1 lets the leader choose.

        Raises:
            Refused: The batch is at fault; the message says how.
            Unavailable: No leader took it within the timeout.
            DiskFull: The group's disks are full.
        """
        request = pb.AppendRequest(
            client_id=self.client_id,
            topic=topic,
            queue_id=queue_id,
            records=[_to_pb(record) for record in records],
        )
        response = await self._retried(self._ledger.Append, request)
        return Appended(
            queue_id=response.queue_id, offsets=tuple(response.offsets), index=response.index
        )

    async def read(
        self,
        topic: str,
        queue_id: int,
        *,
        start_offset: int = 0,
        max_records: int = 0,
        follow: bool = False,
    ) -> AsyncIterator[StoredRecord]:
        """Yield committed records of one queue from *start_offset* on.

        Ends at the committed end of the asked node, or after *max_records*; never with *follow*.
        """
        request = pb.ReadRequest(
            topic=topic,
            queue_id=queue_id,
            start_offset=start_offset,
            max_records=max_records,
            follow=follow,
        )
        try:
            async for response in self._ledger.Read(request):
                for stored in response.records:
                    yield _stored(stored)
        except grpc.aio.AioRpcError as error:
            raise error_of(error, self.address) from error

    async def _retried(self, method: Any, request: Any) -> Any:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.timeout_s
        while True:
            try:
                return await method(request, timeout=max(0.1, deadline_s - loop.time()))
            except grpc.aio.AioRpcError as error:
                typed = error_of(error, self.address)
                if not isinstance(typed, Unavailable) or loop.time() + _RETRY_S >= deadline_s:
                    raise typed from error
            await asyncio.sleep(_RETRY_S)


_BY_NAME: Final[dict[str, type[DledgerError]]] = {
    cls.__name__: cls for cls in (Refused, InvalidArgument, Unavailable, Overloaded, DiskFull)
}


def error_of(error: grpc.aio.AioRpcError, address: str) -> DledgerError:
    """Return the error that a node meant by a gRPC status.

    Nodes name their error class in the trailing metadata ``dledger-error``.
    """
    metadata = dict(error.trailing_metadata() or ())
    text = f"{address}: {error.details()}"
    name = str(metadata.get("dledger-error", ""))
    argument = str(metadata.get("dledger-error-argument", ""))
    if name == "AlreadyBootstrapped":
        return AlreadyBootstrapped(argument)
    if name == "NotJoined":
        return NotJoined()
    if name == "NotLeader":
        return NotLeader(NodeId(argument) if argument else None)
    if name == "UnknownTopic":
        return UnknownTopic(argument)
    if name in _BY_NAME:
        return _BY_NAME[name](text)
    return _by_code(error.code(), text)


def _by_code(code: grpc.StatusCode, text: str) -> DledgerError:
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE):
        return InvalidArgument(text)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Overloaded(text)
    transient = (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
    )
    return Unavailable(text) if code in transient else Refused(text)


def _to_pb(record: Record | bytes) -> pb.Record:
    if isinstance(record, bytes):
        record = Record(body=record)
    return pb.Record(
        message_id=record.message_id or uuid.uuid4().hex,
        body=record.body,
        tag=record.tag,
        keys=record.keys,
        properties=record.properties,
        born_at_ms=record.born_at_ms,
    )


def _stored(stored: pb.StoredRecord) -> StoredRecord:
    record = stored.record
    return StoredRecord(
        record=Record(
            body=record.body,
            message_id=record.message_id,
            tag=record.tag,
            keys=tuple(record.keys),
            properties=dict(record.properties),
            born_at_ms=record.born_at_ms,
        ),
        offset=stored.offset,
        index=stored.index,
        stored_at_ms=stored.stored_at_ms,
    )


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
