"""Exports the committed log to archivers: how to split it, its records, the newest snapshot.

Where the messages of its entries are is exported, too (`export_places`). The snapshot stands for
the entries that the node has dropped. Served from this node's own disk, in threads, with few reads
at a time; gRPC's flow control paces a stream. The records are sent unchecked: the receiver checks
the CRCs, and reports segment and byte of a damaged one. Used by the Admin service.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Final

from dledger.broker.topic_store import TopicStore
from dledger.errors import InvalidArgument, OffsetOutOfRange, Overloaded, WrongGroup
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.wire import length_prefix
from dledger.services.export_places import parts, serialized
from dledger.store.commit_log import CommitLog

_CHUNK_BYTES: Final = 4 << 20
_TARGET_BYTES: Final = 64 << 20
_MAX_READS: Final = 2
_MAX_STREAMS: Final = 16
_RECORDS: Final = pb.ExportChunk.RECORDS_FIELD_NUMBER
_APPLIED_S: Final = 5.0
"""How long a node may take to apply what another one has committed."""
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedLog:
    """The log that a node may export at this moment.

    Attributes:
        group: The broker group's name.
        last_index: The newest entry that is committed and synced on this node.
        kept_from: The oldest entry whose messages the node's state still has.
        applied_index: The newest entry that this state includes.
        topics: The topics and queues of this state.
        snapshot: Yields the bytes of the newest snapshot file.
    """

    group: str
    group_id: str
    log: CommitLog
    last_index: int
    kept_from: int
    applied_index: int
    topics: TopicStore
    snapshot: Callable[[], AsyncGenerator[bytes, None]]

    def check_group(self, group_id: str) -> None:
        """Check that a request is for this node's group; "" means any. Raises WrongGroup."""
        if group_id not in ("", self.group_id):
            raise WrongGroup(ours=self.group_id, theirs=group_id)

    def check(self, group_id: str, first: int, last: int) -> None:
        """Check that [first, last] of that group can be read; "" means any group.

        Raises:
            WrongGroup: This node belongs to another group.
            InvalidArgument: [first, last] is not a range.
            OffsetOutOfRange: Part of it was dropped, or is not committed yet.
        """
        self.check_group(group_id)
        low, high = self.log.first_index, self.last_index
        if first > high + 1 or 1 <= first < low:
            raise OffsetOutOfRange(first, first=low, last=high)
        if not 1 <= first <= last + 1:
            raise InvalidArgument(f"[{first}, {last}] is not a range of indexes")
        if last > high:
            raise OffsetOutOfRange(last, first=low, last=high)

    def check_applied(self, group_id: str, first: int, last: int) -> None:
        """Check that the state includes [first, last] of that group, too. Raises like `check`."""
        self.check(group_id, first, last)
        if last > self.applied_index:
            raise OffsetOutOfRange(last, first=self.kept_from, last=self.applied_index)


class Export:
    """Serves the Admin service's calls that begin with Export.

    They read the log that *committed* returns; it raises NotJoined.
    """

    def __init__(self, committed: Callable[[], CommittedLog]) -> None:
        self._committed = committed
        self._reads = asyncio.Semaphore(_MAX_READS)
        self._streams = 0

    async def plan(self, request: pb.ExportPlanRequest) -> pb.ExportPlanResponse:
        """Return how to split a range; see the proto. Raises Refused, NotJoined."""
        source = self._committed()
        first = request.first_index or source.log.first_index
        last = request.last_index or source.last_index
        if request.target_bytes < 0:
            raise InvalidArgument(f"target_bytes is {request.target_bytes}, must not be negative")
        source.check(request.group_id, first, last)
        return await asyncio.to_thread(
            _plan, source, first, last, request.target_bytes or _TARGET_BYTES
        )

    async def chunks(self, request: pb.ExportRequest) -> AsyncGenerator[bytes, None]:
        """Yield serialized chunks of a range.

        Raises:
            Refused, NotJoined: The range cannot be read here.
            Overloaded: Too many exports are in progress already.
            CorruptRecord: The disk cannot return a record.
        """
        source = self._committed()
        source.check(request.group_id, request.first_index, request.last_index)
        with self._stream():
            first = request.first_index
            while first <= request.last_index:
                async with self._reads:
                    last, chunk = await asyncio.to_thread(
                        _chunk, source.log, first, request.last_index
                    )
                yield chunk
                first = last + 1

    async def snapshot(self, request: pb.ExportSnapshotRequest) -> AsyncGenerator[bytes, None]:
        """Yield serialized chunks of the newest snapshot.

        Raises:
            Refused, NotJoined: Another group's, or there is none.
            Overloaded: Too many exports are in progress already.
            OffsetOutOfRange: Newer snapshots replaced it meanwhile; ask again.
            StorageError: The disk cannot return it.
        """
        source = self._committed()
        source.check_group(request.group_id)
        with self._stream():
            async with aclosing(source.snapshot()) as pieces:
                async for piece in pieces:
                    yield pb.ExportSnapshotChunk(data=piece).SerializeToString()

    async def places(self, request: pb.ExportPlacesRequest) -> AsyncGenerator[bytes, None]:
        """Yield serialized chunks of the places of a range's messages.

        The state goes on meanwhile. So the last chunk says what is not told: messages older than
        `kept_from`, and topics that were deleted up to `applied_index`.

        Raises:
            Refused, NotJoined: The range cannot be read here, or was not applied in time.
            Overloaded: Too many exports are in progress already.
        """
        first, last = request.first_index, request.last_index
        with self._stream():
            source = await self._applied(request.group_id, first, last)
            async for found in parts(source.topics, first, last):
                async with self._reads:
                    chunks = await asyncio.to_thread(serialized, found)
                for chunk in chunks:
                    yield chunk
            now = self._committed()
            now.check_group(source.group_id)
            state = pb.PlacesState(
                kept_from=max(now.kept_from, now.topics.copied_below),
                applied_index=now.applied_index,
                topics_made=now.topics.made,
            )
            for topic in now.topics.all() if request.with_topics else ():
                state.topics.add(name=topic.name, generation=topic.generation)
            yield pb.ExportPlacesChunk(state=state).SerializeToString()

    async def _applied(self, group_id: str, first: int, last: int) -> CommittedLog:
        """Return the log once the state includes *last*, for which it waits a little."""
        for _ in range(int(_APPLIED_S / _LOOK_S)):
            source = self._committed()
            try:
                source.check_applied(group_id, first, last)
            except OffsetOutOfRange as error:
                if error.offset != last or last <= error.last:
                    raise
                await asyncio.sleep(_LOOK_S)
            else:
                return source
        source = self._committed()
        source.check_applied(group_id, first, last)
        return source

    @contextmanager
    def _stream(self) -> Iterator[None]:
        if self._streams >= _MAX_STREAMS:
            raise Overloaded(f"{self._streams} exports are under way; try again later")
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


def _plan(source: CommittedLog, first: int, last: int, target_bytes: int) -> pb.ExportPlanResponse:
    ranges = source.log.cut(first, last, target_bytes) if first <= last else []
    return pb.ExportPlanResponse(
        group=source.group,
        group_id=source.group_id,
        term=source.log.term(last) if ranges else 0,
        commit_index=source.last_index,
        first_available=source.log.first_index,
        kept_from=source.kept_from,
        applied_index=source.applied_index,
        ranges=[
            pb.ExportRange(
                first_index=each.first_index,
                last_index=each.last_index,
                bytes=each.size_bytes,
                previous_chain=each.previous_chain,
            )
            for each in ranges
        ],
    )


def _chunk(log: CommitLog, first: int, last: int) -> tuple[int, bytes]:
    """Return the next chunk, serialized, and the index it ends with. Blocks on the disk.

    The records are copied once.
    """
    extent, records = log.read_extent(first, last, _CHUNK_BYTES)
    positions = extent.positions
    if sys.byteorder != "little":
        positions.byteswap()
    head = pb.ExportChunk(
        first_index=first,
        last_index=extent.last_index,
        previous_chain=extent.previous_chain,
        positions=positions.tobytes(),
        segment=extent.segment.name,
        offset=extent.offset,
    ).SerializeToString()
    return extent.last_index, b"".join((head, length_prefix(_RECORDS, len(records)), records))
