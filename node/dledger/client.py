"""The public Python client: administration, topics, batched appends and reads.

Frozen values in and out; errors are the classes of `dledger.errors`. Used by the operator, the
command line, the end-to-end stories and by users.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc.aio

from dledger.admin_client import AdminClient
from dledger.append_stream import AppendStream
from dledger.broker.topics import check_name
from dledger.channel import Channel, error_of, outcome_of
from dledger.errors import (
    CorruptSpool,
    InvalidArgument,
    MessageRejected,
    Unavailable,
)
from dledger.records import Appended, Record, StoredRecord
from dledger.rpc.checks import check_body, check_properties, check_tag
from dledger.rpc.limits import MAX_ID_LENGTH
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.pb import dledger_pb2_grpc as pb_grpc
from dledger.spool.blocking import BlockingProducer
from dledger.spool.counters import SpoolCollector, SpoolCounters
from dledger.spool.format import Message
from dledger.spool.lane import SendResult
from dledger.spool.producer import DEFAULT_MAX_BYTES, DEFAULT_PATIENCE_S, Producer
from dledger.stored_batch import StoredBatch

__all__ = [
    "AdminClient",
    "AppendStream",
    "Appended",
    "BlockingProducer",
    "Client",
    "Record",
    "SendResult",
    "SpoolCollector",
    "SpoolCounters",
    "SpoolingProducer",
    "StoredBatch",
    "StoredRecord",
    "TopicInfo",
    "error_of",
]

_RETRY_S: Final = 0.1


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

    def __init__(self, address: str, *, timeout_s: float = 30.0, client_id: str = "") -> None:
        super().__init__(address, timeout_s)
        self.client_id = client_id or f"dledger-py-{uuid.uuid4()}"
        self._ledger = pb_grpc.LedgerStub(self.channel)
        self._topics = pb_grpc.TopicsStub(self.channel)

    async def create_topic(self, name: str, type: str = "NORMAL", queues: int = 8) -> bool:  # noqa: A002
        """Create a topic; False when it existed with the same settings. Raises Refused."""
        request = pb.CreateTopicRequest(name=name, type=type, queues=queues)
        return bool((await self.call(self._topics.CreateTopic, request)).created)

    async def topics(self) -> tuple[TopicInfo, ...]:
        """Return all topics, sorted by name."""
        response = await self.call(self._topics.ListTopics, pb.ListTopicsRequest())
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
        request = self._append_request(topic, records, queue_id)
        return _appended(await self._retried(self._ledger.Append, request))

    async def append_once(
        self, topic: str, records: Iterable[Record], *, queue_id: int, timeout_s: float
    ) -> Appended:
        """Append one batch in a single attempt; the records should have ids.

        Raises:
            Refused: A node of the group says that the batch is at fault; nothing is stored.
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
            records=[_to_pb(record) for record in records],
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
        while True:
            try:
                return await method(request, timeout=max(0.1, deadline_s - loop.time()))
            except grpc.aio.AioRpcError as error:
                typed = error_of(error, self.address)
                if not isinstance(typed, Unavailable) or loop.time() + _RETRY_S >= deadline_s:
                    raise typed from error
            await asyncio.sleep(_RETRY_S)


class SpoolingProducer(Producer):
    """A producer that goes on accepting while the whole group is down.

    Messages pass through while the group takes them. While it does not, they are written to the
    local disk and synced before `send` returns, and replayed in order, with their ids, when it
    takes writes again: nothing is lost or stored twice. See ``docs/outage-spool.md``.

    Args:
        addresses: Client ports (8081) of the group's nodes, ``host:port``; one is enough.
        directory: The spool's own directory, on a local disk; one process uses it at a time.
        max_bytes: What the spool may take on the disk.
        patience_s: How long the group is tried before a message is spooled.
        client_id: For a new spool; one is made up if empty. An existing one keeps its own.
        report: Is told of damage and of rejected messages, which are logged in any case.

    Raises:
        InvalidArgument: There is no address, or *max_bytes* is too small.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        directory: str | Path,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        patience_s: float = DEFAULT_PATIENCE_S,
        client_id: str = "",
        report: Callable[[CorruptSpool | MessageRejected], None] = lambda _: None,
    ) -> None:
        nodes = (addresses,) if isinstance(addresses, str) else tuple(addresses)
        if not nodes:
            raise InvalidArgument("a producer needs the address of a node at least")
        super().__init__(
            Path(directory),
            lambda client_id: _AnyNode(nodes, client_id),
            check=_check_message,
            max_bytes=max_bytes,
            patience_s=patience_s,
            client_id=client_id,
            report=report,
        )

    def blocking(self) -> BlockingProducer:
        """Return the same for programs without an event loop, as a context manager."""
        return BlockingProducer(self)


class _AnyNode:
    """Appends through one node, and through the next one when that fails."""

    def __init__(self, addresses: Sequence[str], client_id: str) -> None:
        self._clients = [Client(address, client_id=client_id) for address in addresses]
        self._current = 0

    async def append(
        self, topic: str, records: Sequence[Record], *, queue_id: int, timeout_s: float
    ) -> Appended:
        """Append one batch, trying until *timeout_s*. Raises as `Client.append_once` does."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        attempt_s = timeout_s / len(self._clients)
        while True:
            chosen = self._current
            left_s = max(0.1, deadline_s - loop.time())
            try:
                return await self._clients[chosen].append_once(
                    topic, records, queue_id=queue_id, timeout_s=min(attempt_s, left_s)
                )
            except Unavailable:
                if self._current == chosen:
                    self._current = (chosen + 1) % len(self._clients)
                if loop.time() + _RETRY_S >= deadline_s:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            await client.close()


def _check_message(message: Message) -> None:
    """Refuse what a node would refuse, by its own rules: after an outage it would be too late."""
    record = message.record
    check_name("topic", message.topic)
    check_body(record.body)
    check_tag(record.tag)
    check_properties(record.properties, record.keys)
    if len(record.message_id) > MAX_ID_LENGTH:
        raise InvalidArgument(f"message_id has at most {MAX_ID_LENGTH} characters")


def _appended(response: pb.AppendResponse) -> Appended:
    return Appended(
        queue_id=response.queue_id, offsets=tuple(response.offsets), index=response.index
    )


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


def _batch(batch: pb.StoredBatch) -> StoredBatch:
    return StoredBatch(
        first_offset=batch.first_offset,
        count=batch.count,
        index=batch.index,
        stored_at_ms=batch.stored_at_ms,
        payload=batch.payload,
        first_row=batch.first_row,
    )
