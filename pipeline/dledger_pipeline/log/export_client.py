"""Client of a node's Export: how to cut a log into ranges, and the records of a range.

Synchronous, since Spark's workers are; one client belongs to one thread. Used by `entry_ranges` and
the backup job.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

import grpc
import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from dledger.broker.topics import MAX_TOPICS
from dledger.checks.names import is_name
from dledger.errors import CorruptRecord, DledgerError
from dledger.rpc.channel import in_words
from dledger.rpc.dial import dial_blocking
from dledger.rpc.error_table import ARGUMENT_KEY, ERROR_KEY, TRANSIENT
from dledger.rpc.messages import same_fields
from dledger.rpc.metadata import by_key
from dledger.rpc.mutual_tls import identity_from
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.pb import dledger_pb2_grpc as pb_grpc
from dledger.rpc.wire import taken_out
from dledger_pipeline.errors import (
    ExportError,
    ForeignGroup,
    NodeUnavailable,
    RangeNotAvailable,
)
from dledger_pipeline.log.pacing import Pace
from dledger_pipeline.log.places import flaw, places_of
from dledger_pipeline.log.records import RecordBytes
from dledger_pipeline.log.segments import last_chain

TARGET_BYTES: Final = 64 << 20
"""Of a range, and so of an object before compression: as much as a segment has by default."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 1 << 30),  # a record may be larger than a chunk
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
_SNAPSHOT_S: Final = 600.0
_EXPORT: Final = "/dledger.v1.Admin/Export"
_RECORDS: Final = pb.ExportChunk.RECORDS_FIELD_NUMBER
_MOST: Final = 1 << 62
_MAX_RUNS: Final = 1 << 24
"""Of one range; the smallest messages, in queues of their own, have a million in 64 MiB."""
_TRANSIENT: Final = TRANSIENT | {grpc.StatusCode.RESOURCE_EXHAUSTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRange:
    """Entries [first_index, last_index]: *size_bytes* of records that follow *previous_chain*."""

    first_index: int
    last_index: int
    size_bytes: int
    previous_chain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """How a log is cut into ranges; the same from every node of the group.

    Attributes:
        group: The BrokerGroup's name.
        group_id: The group that the node belongs to.
        term: The term of the last planned entry; 0 if *ranges* is empty.
        commit_index: The node's newest committed entry that it has on disk.
        first_available: The oldest entry it keeps.
        kept_from: The oldest entry whose messages it keeps.
        applied_index: The newest entry that this takes into account.
        ranges: Ascending, without gap; empty if there is nothing from the first index on.
    """

    group: str
    group_id: str
    term: int
    commit_index: int
    first_available: int
    kept_from: int
    applied_index: int
    ranges: tuple[ExportRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPlaces:
    """Where the messages of some entries are.

    Attributes:
        places: Of `messages.QUEUE_SLICE_SCHEMA`.
        kept_from: Messages of older entries are left out.
        applied_index: Those of topics that were deleted up to here may be left out.
        topics_made: How many topics there ever were.
        topics: Name by generation of those that exist; empty unless asked for.
    """

    places: pa.RecordBatch
    kept_from: int
    applied_index: int
    topics_made: int
    topics: dict[int, str]


def peer_channel(address: str) -> Any:
    """Return a channel to a peer port: over TLS if the environment names a certificate for it.

    The node is then known by the host of the address. Raises InvalidArgument.
    """
    identity = identity_from(os.environ)
    tls = None if identity is None else identity.way(address, "")
    return dial_blocking(address, _OPTIONS, tls)


class ExportClient:
    """Reads from one node through its peer port (20911). A context manager."""

    def __init__(self, address: str, *, timeout_s: float = 60.0) -> None:
        """Connect when first asked.

        Args:
            address: ``host:port`` of the node's peer port.
            timeout_s: For a plan; a stream lives as long as the node answers pings.

        Raises:
            InvalidArgument: The directory with the certificate for nodes lacks a file.
        """
        self.address = address
        self.timeout_s = timeout_s
        self._channel = peer_channel(address)
        self._stub = pb_grpc.AdminStub(self._channel)
        self._export = self._channel.unary_stream(
            _EXPORT, pb.ExportRequest.SerializeToString, response_deserializer=None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, and with it every stream."""
        self._channel.close()

    def plan(
        self,
        *,
        group_id: str = "",
        first_index: int = 0,
        last_index: int = 0,
        target_bytes: int = TARGET_BYTES,
    ) -> ExportPlan:
        """Ask how to cut [first_index, last_index] into ranges of at most *target_bytes*.

        Args:
            group_id: The group it must be; "" takes the node's.
            first_index: 0 for the oldest entry kept. The last index plus one gives an empty plan.
            last_index: Inclusive; 0 for the commit index.
            target_bytes: Record bytes of a range; a single larger record has a range of its own.

        Raises:
            RangeNotAvailable: Past the commit index or below the oldest entry kept.
            ForeignGroup: The node belongs to another group.
            NodeUnavailable: It does not answer, is busy, or has joined no group.
            ExportError: It refuses for another reason.
        """
        request = pb.ExportPlanRequest(
            group_id=group_id,
            first_index=first_index,
            last_index=last_index,
            target_bytes=target_bytes,
        )
        with self._reported():
            return _plan(self._stub.ExportPlan(request, timeout=self.timeout_s))

    def read(self, group_id: str, first_index: int, last_index: int) -> Iterator[RecordBytes]:
        """Yield the records of [first_index, last_index] in chunks of about 4 MiB, for `parse`.

        Each chunk begins with the record after the previous chunk.

        Raises:
            RangeNotAvailable, ForeignGroup, NodeUnavailable, ExportError: Like `plan`.
            CorruptRecord: The node cannot read them from its disk, or they do not join.
        """
        request = pb.ExportRequest(
            group_id=group_id, first_index=first_index, last_index=last_index
        )
        expected, chain = first_index, None
        with self._reported(), _cancelled_at_end(self._export(request)) as stream:
            for message in stream:
                received, records = self._received(message)
                chunk = self._chunk(received, records)
                if chunk.first_index != expected or chain not in (None, chunk.previous_chain):
                    reason = f"expected entry {expected} behind chain CRC {chain}"
                    raise CorruptRecord(chunk.segment, chunk.offset, reason)
                yield chunk
                expected, chain = received.last_index + 1, last_chain(chunk)
        if expected != last_index + 1:
            raise NodeUnavailable(f"{self.address} ended the export before entry {expected}")

    def snapshot(self, group_id: str, *, bytes_per_s: float = 0.0, take: bool = True) -> bytes:
        """Let the node write a snapshot of its state now; return the file's bytes, unchecked.

        Args:
            group_id: The group it must be.
            bytes_per_s: How fast to read it; 0: as fast as it can.
            take: False to be content with the newest one that it has.

        Raises:
            ForeignGroup, NodeUnavailable, ExportError: Like `plan`.
        """
        with self._reported():
            if take:
                self._stub.Snapshot(pb.SnapshotRequest(), timeout=_SNAPSHOT_S)
            request = pb.ExportSnapshotRequest(group_id=group_id)
            with _cancelled_at_end(self._stub.ExportSnapshot(request)) as stream:
                return b"".join(_paced(stream, Pace(bytes_per_s)))

    def places(
        self, group_id: str, first_index: int, last_index: int, *, with_topics: bool = False
    ) -> ExportedPlaces:
        """Return where the messages of [first_index, last_index] are.

        Raises:
            RangeNotAvailable: Not of a range that the node's state includes, after some seconds.
            ForeignGroup, NodeUnavailable, ExportError: Like `plan`; ExportError also if the node is
                too old to tell, or what it tells is not possible.
        """
        request = pb.ExportPlacesRequest(
            group_id=group_id,
            first_index=first_index,
            last_index=last_index,
            with_topics=with_topics,
        )
        queues: list[pb.QueuePlaces] = []
        state, runs = None, 0
        with self._reported(), _cancelled_at_end(self._stub.ExportPlaces(request)) as stream:
            for chunk in stream:
                queues += chunk.queues
                runs += sum(len(each.indexes) // 8 for each in chunk.queues)
                if runs > _MAX_RUNS:
                    raise ExportError(f"{self.address} sent more than {_MAX_RUNS} places")
                if chunk.HasField("state"):
                    state = chunk.state
        if state is None:
            raise NodeUnavailable(f"{self.address} ended the export before its end")
        return _exported_places(self.address, queues, state, first_index, last_index)

    def _received(self, message: bytes) -> tuple[pb.ExportChunk, memoryview]:
        """Return a chunk without its records, and those as a view: they are not copied."""
        try:
            records, rest = taken_out(message, _RECORDS)
            return pb.ExportChunk.FromString(rest), records
        except (ValueError, DecodeError) as error:
            raise ExportError(
                f"{self.address} sent a chunk that cannot be read: {error}"
            ) from error

    def _chunk(self, received: pb.ExportChunk, records: memoryview) -> RecordBytes:
        count = received.last_index - received.first_index + 1
        if count < 1 or len(received.positions) != 4 * count:
            raise ExportError(
                f"{self.address} sent {len(received.positions)} bytes of positions for entries "
                f"[{received.first_index}, {received.last_index}]"
            )
        return RecordBytes(
            segment=f"{received.segment} of {self.address}",
            offset=received.offset,
            data=records,
            positions=np.frombuffer(received.positions, "<u4"),
            previous_chain=received.previous_chain,
            first_index=received.first_index,
        )

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Raise the pipeline's error for gRPC's."""
        try:
            yield
        except grpc.RpcError as error:
            raise _meaning(error, self.address) from error


def _paced(stream: Iterable[Any], pace: Pace) -> Iterator[bytes]:
    for received in stream:
        pace.has_read(len(received.data))
        yield received.data


@contextmanager
def _cancelled_at_end(stream: Any) -> Iterator[Any]:
    """Give the stream, and cancel it at the end, so that the node sees if we stop early."""
    try:
        yield stream
    finally:
        stream.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The nodes of a group that answer.

    Attributes:
        addresses: The best one to read from first.
        group_id: The group that all of them belong to.
        leader: The leader's address; empty if no leader answers.
        leader_ms: The leader's log clock, Unix milliseconds; 0 if no leader answers.
        leader_commit_index: What the leader had committed at that moment.
    """

    addresses: tuple[str, ...]
    group_id: str
    leader: str
    leader_ms: int
    leader_commit_index: int


def choose_nodes(addresses: Sequence[str], *, timeout_s: float = 5.0) -> Nodes:
    """Ask all nodes; put the one with the highest commit index first, a leader last.

    Args:
        addresses: Peer addresses (port 20911) of the group's nodes; some may be down.
        timeout_s: How long to wait for all of them together.

    Raises:
        NodeUnavailable: None of them answers and is in a group.
        ForeignGroup: They belong to different groups.
    """
    statuses, reasons = _statuses(addresses, timeout_s)
    if not statuses:
        raise NodeUnavailable(f"no node can be read from: {'; '.join(reasons)}")
    groups = {status.group_id for status in statuses.values()}
    if len(groups) > 1:
        raise ForeignGroup(f"{', '.join(statuses)} belong to different groups: {sorted(groups)}")
    best = max(statuses, key=lambda address: _preference(statuses[address]))
    leading = max(statuses, key=lambda address: statuses[address].now_ms)
    leader = statuses[leading]
    return Nodes(
        addresses=(best, *(address for address in addresses if address != best)),
        group_id=statuses[best].group_id,
        leader=leading if leader.now_ms else "",
        leader_ms=leader.now_ms,
        leader_commit_index=leader.commit_index if leader.now_ms else 0,
    )


def _preference(status: pb.StatusResponse) -> tuple[bool, int]:
    return status.role != "leader", min(status.commit_index, status.synced_index)


def _statuses(
    addresses: Sequence[str], timeout_s: float
) -> tuple[dict[str, pb.StatusResponse], list[str]]:
    """Return the statuses of the nodes that are in a group, and for the others the reasons."""
    channels = {address: peer_channel(address) for address in dict.fromkeys(addresses)}
    calls = {
        address: pb_grpc.AdminStub(channel).Status.future(
            pb.StatusRequest(), timeout=timeout_s, wait_for_ready=False
        )
        for address, channel in channels.items()
    }
    statuses: dict[str, pb.StatusResponse] = {}
    reasons: list[str] = []
    for address, call in calls.items():
        try:
            status = call.result()
        except grpc.RpcError as error:
            reasons.append(str(_meaning(error, address)))
            continue
        if status.group_id:
            statuses[address] = status
        else:
            reasons.append(f"{address}: the node has not joined a group")
    for channel in channels.values():
        channel.close()
    return statuses, reasons


def _plan(response: pb.ExportPlanResponse) -> ExportPlan:
    ranges = (same_fields(ExportRange, each, size_bytes=each.bytes) for each in response.ranges)
    return same_fields(ExportPlan, response, ranges=tuple(ranges))


def _exported_places(
    address: str,
    queues: Sequence[pb.QueuePlaces],
    state: pb.PlacesState,
    first_index: int,
    last_index: int,
) -> ExportedPlaces:
    """Return what a node sent; raises ExportError for what cannot be."""
    places = places_of(queues)
    topics = {topic.generation: topic.name for topic in state.topics}
    reason = flaw(places, first_index, last_index)
    if not reason and not (
        len(topics) == len(state.topics) <= MAX_TOPICS
        and all(1 <= each <= state.topics_made for each in topics)
        and all(map(is_name, topics.values()))
        and 0 <= state.topics_made < _MOST
        and 0 <= state.kept_from < _MOST
        and last_index <= state.applied_index < _MOST
    ):
        reason = "it sent a state that no node has"
    if reason:
        raise ExportError(f"{address} did not tell where messages are: {reason}")
    return ExportedPlaces(
        places=places,
        kept_from=state.kept_from,
        applied_index=state.applied_index,
        topics_made=state.topics_made,
        topics=topics,
    )


def _meaning(error: Any, address: str) -> DledgerError:
    """Return the error that a node reported; it names the class in the trailing metadata.

    Nodes of version 0.1 name a corrupt segment only in the message: then the result is an
    `ExportError` with that message.
    """
    metadata = by_key(error.trailing_metadata())
    name = metadata.get(ERROR_KEY, "")
    text = f"{address}: {in_words(error)}"
    segment, _, rest = str(metadata.get(ARGUMENT_KEY, "")).partition(" ")
    offset, _, reason = rest.partition(" ")
    if name == CorruptRecord.__name__ and offset.isdecimal():
        return CorruptRecord(f"{segment} of {address}", int(offset), reason)
    if error.code() is grpc.StatusCode.OUT_OF_RANGE:
        return RangeNotAvailable(text)
    if name == "WrongGroup":
        return ForeignGroup(text)
    return NodeUnavailable(text) if error.code() in _TRANSIENT else ExportError(text)
