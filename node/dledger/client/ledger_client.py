"""Topics, batched appends and reads through any node's client port; see `dledger.client`."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio

from dledger.broker.topics import MAX_TOPICS
from dledger.client.message_ids import MessageIds
from dledger.client.stored_batch import StoredBatch
from dledger.errors import (
    DiskFull,
    DledgerError,
    NotJoined,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    RateLimited,
    Refused,
    Unavailable,
)
from dledger.rpc.channel import Channel, error_of, outcome_of
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.pb import dledger_pb2_grpc as pb_grpc
from dledger.types import Appended, Record, StoredRecord

_RETRY_S: Final = 0.1
_NOTHING_TAKEN: Final = (NotLeader, NotJoined, Overloaded, RateLimited, DiskFull)
"""After these, when a node says so, nothing of a request was carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """One topic; *messages* is the sum of its queues' end offsets."""

    name: str
    type: str
    queues: int
    messages: int


class Client(Channel):
    """Writes and reads messages in batches through any node's client port (8081).

    Appends are retried until *timeout_s* with the same message ids, so that a failover neither
    loses nor repeats a record.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 30.0,
        client_id: str = "",
        max_answer_bytes: int = 64 << 20,
    ) -> None:
        super().__init__(address, timeout_s, max_answer_bytes=max_answer_bytes)
        self.client_id = client_id or f"dledger-py-{uuid.uuid4()}"
        self._ids = MessageIds()
        self._ledger = pb_grpc.LedgerStub(self.channel)
        self._topics = pb_grpc.TopicsStub(self.channel)

    async def create_topic(self, name: str, type: str = "NORMAL", queues: int = 8) -> bool:  # noqa: A002
        """Create a topic; False when it existed with the same settings. Raises Refused."""
        request = pb.CreateTopicRequest(name=name, type=type, queues=queues)
        return bool((await self.call(self._topics.CreateTopic, request)).created)

    async def topics(self) -> tuple[TopicInfo, ...]:
        """Return all topics, sorted by name."""
        response = await self.call(self._topics.ListTopics, pb.ListTopicsRequest())
        if (named := len(response.topics)) > MAX_TOPICS:
            raise DledgerError(
                f"{self.address}: names {named} topics, of which no group has over {MAX_TOPICS}"
            )
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
            MessageIdConflict: Some of its messages have the ids of others; the rest is stored.
            Refused: Any other: the batch is at fault; the message says how.
            DiskFull: The group's disks are full; nothing of it is stored.
            OutcomeUnknown: No leader answered within the timeout, or the group takes nothing more;
                the batch may be stored, or may be yet.
            Unavailable: Likewise, but no node took the batch: it is not stored.
        """
        request = self._append_request(topic, records, queue_id)
        return _appended(await self._retried(self._ledger.Append, request))

    async def append_once(
        self, topic: str, records: Iterable[Record], *, queue_id: int, timeout_s: float
    ) -> Appended:
        """Append one batch in a single attempt; the records should have ids.

        Raises:
            MessageIdConflict: Some of its messages have the ids of others; the rest is stored.
            Refused: Any other: a node of the group says that the batch is at fault; nothing is
                stored.
            Unavailable: No node took it, or somebody else answered; the outcome is unknown.
            DledgerError: Any other failure of a node; the outcome is unknown.
        """
        request = self._append_request(topic, records, queue_id)
        try:
            return _appended(await self._ledger.Append(request, timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            raise outcome_of(error, self.address) from error

    def _append_request(
        self, topic: str, records: Iterable[Record | bytes], queue_id: int
    ) -> pb.AppendRequest:
        return pb.AppendRequest(
            client_id=self.client_id,
            topic=topic,
            queue_id=queue_id,
            records=[self._to_pb(record) for record in records],
        )

    def _to_pb(self, record: Record | bytes) -> pb.Record:
        if isinstance(record, bytes):
            record = Record(body=record)
        return pb.Record(
            message_id=record.message_id or self._ids.take(1)[0],
            body=record.body,
            tag=record.tag,
            keys=record.keys,
            properties=record.properties,
            born_at_ms=record.born_at_ms,
        )

    async def read(
        self,
        topic: str,
        queue_id: int,
        *,
        start_offset: int = 0,
        max_records: int = 0,
        follow: bool = False,
        linearizable: bool = False,
    ) -> AsyncIterator[StoredRecord]:
        """Yield committed records of one queue from *start_offset* on; see `read_batches`."""
        batches = self.read_batches(
            topic,
            queue_id,
            start_offset=start_offset,
            max_records=max_records,
            follow=follow,
            linearizable=linearizable,
        )
        async with aclosing(batches):
            async for batch in batches:
                for stored in batch.records():
                    yield stored

    async def read_batches(
        self,
        topic: str,
        queue_id: int,
        *,
        start_offset: int = 0,
        max_records: int = 0,
        follow: bool = False,
        linearizable: bool = False,
    ) -> AsyncGenerator[StoredBatch]:
        """Yield committed records of one queue in the batches they were appended in.

        Ends at the committed end of the asked node, or after *max_records*; never with *follow*.
        With *linearizable*, whichever node is asked, all that was acknowledged before is there.
        What is not taken is not sent: a slow reader costs the node no memory.

        Raises:
            UnknownTopic: There is no such topic.
            InvalidArgument: The queue has nothing at *start_offset* any more, or not yet.
            Unavailable: The node is gone: go on from the last offset at another one. Or the leader
                could not be asked for a linearizable read.
        """
        request = pb.ReadRequest(
            topic=topic,
            queue_id=queue_id,
            start_offset=start_offset,
            max_records=max_records,
            follow=follow,
            linearizable=linearizable,
        )
        try:
            async for response in self._ledger.ReadBatches(request):
                for batch in response.batches:
                    yield _batch(batch)
        except grpc.aio.AioRpcError as error:
            raise error_of(error, self.address) from error

    async def _retried(self, method: Any, request: Any) -> Any:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.timeout_s
        unknown = False
        while True:
            try:
                return await method(request, timeout=max(0.1, deadline_s - loop.time()))
            except grpc.aio.AioRpcError as error:
                typed = error_of(error, self.address)
                if isinstance(typed, Refused):
                    raise typed from error
                unknown = unknown or not isinstance(typed, _NOTHING_TAKEN)
                if not isinstance(typed, Unavailable) or loop.time() + _RETRY_S >= deadline_s:
                    raise (_unknown(typed) if unknown else typed) from error
            await asyncio.sleep(_RETRY_S)


def _unknown(error: DledgerError) -> OutcomeUnknown:
    return OutcomeUnknown(f"{error}; the batch may be stored")


def _appended(response: pb.AppendResponse) -> Appended:
    return Appended(
        queue_id=response.queue_id, offsets=tuple(response.offsets), index=response.index
    )


def _batch(batch: pb.StoredBatch) -> StoredBatch:
    return StoredBatch(
        first_offset=batch.first_offset,
        count=batch.count,
        index=batch.index,
        stored_at_ms=batch.stored_at_ms,
        payload=batch.payload,
        first_row=batch.first_row,
    )
