"""Creates topics, appends batches and reads, through any node's client port.

Exported from `dledger.client` as `Client`; used there by `batch_reader` and `spooling`.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any, Final, TypedDict, Unpack

import grpc.aio

from dledger.broker.produce import NO_QUEUE
from dledger.broker.topics import MAX_TOPICS, NORMAL, Compaction
from dledger.client.message_ids import MessageIds
from dledger.client.stored_batch import StoredBatch
from dledger.client.transactions import Transaction, TransactionCheck, checks
from dledger.common.backoff import Backoff, retry
from dledger.common.limits import MAX_ANSWER_BYTES
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
from dledger.rpc.messages import optional_fields, own_retention, same_fields
from dledger.rpc.mutual_tls import MutualTls
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.pb import dledger_pb2_grpc as pb_grpc
from dledger.rpc.typed_messages import typed_message
from dledger.types import Appended, Record, StoredRecord

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.1
_CHECKS_RETRY_S: Final = 5.0
_NOTHING_TAKEN: Final = (NotLeader, NotJoined, Overloaded, RateLimited, DiskFull)
"""If a node answers with one of these, nothing of the request was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """One topic.

    Attributes:
        messages: How many it keeps now.
        retention_hours: For how long; 0: for ever; None: as its group's retention says.
        compaction: How it is compacted; None: it is not.
    """

    name: str
    type: str
    queues: int
    messages: int
    retention_hours: int | None = None
    compaction: Compaction | None = None


class ReadOptions(TypedDict, total=False):
    """What to read of a queue.

    Attributes:
        start_offset: The first queue offset; default 0.
        max_records: The number of records after which to stop; default 0: no limit.
        follow: Whether to wait for new records at the end; default False.
        linearizable: Whether to return everything that was acknowledged before; default False.
        generation: Of which topic of that name *start_offset* is, as `StoredBatch.generation` told
            it; default 0: whichever there is. An offset that was kept means nothing in a topic that
            was deleted and made again.
    """

    start_offset: int
    max_records: int
    follow: bool
    linearizable: bool
    generation: int


class Client(Channel):
    """Writes and reads messages in batches through any node's client port (8081).

    Appends are retried until *timeout_s* with the same message ids, so that a failover neither
    loses nor duplicates a record.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 30.0,
        client_id: str = "",
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        tls: MutualTls | None = None,
    ) -> None:
        super().__init__(address, timeout_s, max_answer_bytes=max_answer_bytes, tls=tls)
        self.client_id = client_id or f"dledger-py-{uuid.uuid4()}"
        self._ids = MessageIds()
        self._ledger = pb_grpc.LedgerStub(self.channel)
        self._topics = pb_grpc.TopicsStub(self.channel)

    async def create_topic(
        self,
        name: str,
        type: str = NORMAL.name,  # noqa: A002
        queues: int = 8,
        compaction: Compaction | None = None,
    ) -> bool:
        """Create a topic; False if it existed with the same settings. Raises Refused."""
        request = pb.CreateTopicRequest(
            name=name,
            type=type,
            queues=queues,
            compaction=None if compaction is None else pb.Compaction(**asdict(compaction)),
        )
        return bool((await self.call(self._topics.CreateTopic, request)).created)

    async def topics(self) -> tuple[TopicInfo, ...]:
        """Return all topics, sorted by name."""
        response = await self.call(self._topics.ListTopics, pb.ListTopicsRequest())
        if (named := len(response.topics)) > MAX_TOPICS:
            raise DledgerError(
                f"{self.address}: names {named} topics; a group has at most {MAX_TOPICS}"
            )
        found = (
            same_fields(
                TopicInfo,
                topic,
                retention_hours=own_retention(topic),
                compaction=optional_fields(Compaction, topic, "compaction"),
            )
            for topic in response.topics
        )
        return tuple(sorted(found, key=lambda topic: topic.name))

    async def append(
        self,
        topic: str,
        records: Iterable[Record | bytes],
        *,
        queue_id: int = -1,
        deliver_at_ms: int = 0,
    ) -> Appended:
        """Append one batch to one queue; return once a majority has synced it.

        Args:
            topic: The topic.
            records: Records or bare bodies.
            queue_id: The queue; -1 lets the leader choose; in a compacted topic the keys do.
            deliver_at_ms: For a topic of type DELAY: not to be delivered before, Unix milliseconds,
                40 days ahead at most; 0: each as its own `Typed.deliver_at_ms` says. What waits has
                a recall handle, and no offset yet (-1).

        Raises:
            MessageIdConflict: Some messages have ids that other messages used; the rest is stored.
            SeveralQueues: The topic is compacted, and the keys are of several of its queues: send
                one batch for each (`queue_of_key`); nothing of it is stored.
            Refused: Another error in the batch, named by the message; nothing of it is stored.
            DiskFull: The group's disks are full; nothing of it is stored.
            OutcomeUnknown: No leader answered within the timeout, or the group accepts no more;
                the batch may be stored now or later.
            Unavailable: Likewise, but no node accepted the batch: it is not stored.
        """
        request = self._append_request(topic, records, queue_id)
        request.deliver_at_ms = deliver_at_ms
        return _appended(await self._retried(self._ledger.Append, request))

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Recall a record that waits for its time; return its id: nobody ever gets it.

        Repeated, it says the same.

        Raises:
            UnknownTopic: The topic does not exist.
            Refused: The record was delivered, or that is too long ago to be known; or the handle is
                none of this topic.
            OutcomeUnknown: No leader answered within the timeout.
        """
        request = pb.RecallRequest(topic=topic, recall_handle=recall_handle)
        return str((await self._retried(self._ledger.Recall, request)).message_id)

    def transaction(self, topic: str, *, check_after_ms: int = 0) -> Transaction:
        """Return a transaction of one message for a topic of type TRANSACTION.

        ::

            async with client.transaction("payments") as transaction:
                await transaction.append(b"100 to Ada")
                pay()

        Leaving the block commits, an exception rolls back. Should neither come, producers of the
        topic are asked (`transaction_checks`) after *check_after_ms*, an hour at most; 0: 6 s.
        """
        return Transaction(self, topic, check_after_ms=check_after_ms)

    def new_message_id(self) -> str:
        """Return an id that no other message has."""
        return self._ids.take(1)[0]

    async def append_half(self, topic: str, record: Record, *, check_after_ms: int = 0) -> str:
        """Have the group hold the half of a transaction; return the transaction's id.

        Nobody gets it until it is committed. The same record with an id, sent again, has the same
        transaction. For *check_after_ms* see `transaction`; raises as `Transaction.append`.
        """
        request = self._append_request(topic, [record], NO_QUEUE)
        request.half.check_after_ms = check_after_ms
        response = await self._retried(self._ledger.Append, request)
        return str(response.transaction_ids[0])

    async def end_transaction(self, topic: str, transaction_id: str, *, commits: bool) -> None:
        """End a transaction, of whomever: a majority has it when this returns.

        May be repeated for an hour, at any node.

        Args:
            topic: The topic.
            transaction_id: Which; as it was told to who sent the half, or to who was asked.
            commits: Whether the message is delivered; else nobody ever gets it.

        Raises:
            Refused: It has the other end, or ended too long ago for anybody to know how; or the id
                is none of this topic.
            UnknownTopic: The topic does not exist.
            DiskFull: There is no room for a committed message; it has no end yet.
            OutcomeUnknown: No leader answered within the timeout: it may have ended.
            Unavailable: Likewise, but no node took it: it has not.
        """
        request = pb.EndTransactionRequest(
            topic=topic, transaction_id=transaction_id, commits=commits
        )
        doubt = "the transaction may have ended"
        await self._retried(self._ledger.EndTransaction, request, doubt)

    async def transaction_checks(self, *topics: str) -> AsyncGenerator[TransactionCheck]:
        """Yield, for ever, transactions of topics that nobody has ended, as producers are asked.

        One producer is asked at a time, now the half's own, now another one of its topic. Who knows
        answers by `end_transaction`; who does not does nothing, and somebody is asked again, each
        30 s, after 15 times each hour. While the node is away the stream is opened again and again.
        """
        backoff = Backoff(_RETRY_S, _CHECKS_RETRY_S)
        while True:
            asked = checks(self.channel, self.address, client_id=self.client_id, topics=topics)
            try:
                async with aclosing(asked):
                    async for each in asked:
                        backoff.reset()
                        yield each
            except Unavailable as error:
                logger.debug("%s asks about no transactions: %s", self.address, error)
            await asyncio.sleep(backoff.next_s())

    async def append_once(
        self, topic: str, records: Iterable[Record], *, queue_id: int, timeout_s: float
    ) -> Appended:
        """Append one batch in a single attempt; the records should have ids.

        Raises:
            MessageIdConflict: Some messages have ids that other messages used; the rest is stored.
            Refused: A node of the group names another error in the batch; nothing is stored.
            Unavailable: No node answered, or something that is not a node; the outcome is unknown.
            DledgerError: Another failure of a node; the outcome is unknown.
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
            typed=None if record.typed is None else typed_message(record.typed),
        )

    async def read(
        self, topic: str, queue_id: int, **options: Unpack[ReadOptions]
    ) -> AsyncIterator[StoredRecord]:
        """Yield committed records of one queue from *start_offset* on; see `read_batches`."""
        batches = self.read_batches(topic, queue_id, **options)
        async with aclosing(batches):
            async for batch in batches:
                for stored in batch.records():
                    yield stored

    async def read_batches(
        self, topic: str, queue_id: int, **options: Unpack[ReadOptions]
    ) -> AsyncGenerator[StoredBatch]:
        """Yield committed records of one queue in the batches they were appended in.

        Records that were appended singly, by whomever, come in batches with their neighbours. Of a
        topic that keeps some records longer than others, each comes with the offset that it had.

        Ends at the last record that this node knows to be committed, or after *max_records*; with
        *follow*, never. With *linearizable*, any node returns everything that was acknowledged
        before the call. The node sends only as fast as batches are taken, so a slow reader costs
        it no memory.

        Raises:
            UnknownTopic: The topic does not exist.
            TopicMadeAnew: It is not the one that *generation* names. This is an UnknownTopic, too:
                a node that is behind may not know the newest topic yet, without *linearizable*.
            InvalidArgument: The queue does not have *start_offset*, or no longer.
            Unavailable: The node failed; continue at another node from the last offset. Or the
                leader could not be reached for a linearizable read.
        """
        parts = self.read_parts(topic, queue_id, **options)
        async with aclosing(parts):
            async for _, batches in parts:
                for batch in batches:
                    yield batch

    async def read_parts(
        self, topic: str, queue_id: int, **options: Unpack[ReadOptions]
    ) -> AsyncGenerator[tuple[int, list[StoredBatch]]]:
        """Yield what `read_batches` does as it comes: the topic's generation, and batches of it.

        With *follow* the first comes at once, and has no batches.
        """
        request = pb.ReadRequest(
            topic=topic, queue_id=queue_id, joined=True, with_gaps=True, **options
        )
        try:
            async for response in self._ledger.ReadBatches(request):
                told = response.generation
                yield told, [StoredBatch.of(batch, told) for batch in response.batches]
        except grpc.aio.AioRpcError as error:
            raise error_of(error, self.address) from error

    async def _retried(
        self, method: Any, request: Any, doubt: str = "the batch may be stored"
    ) -> Any:
        unknown = False

        async def attempt(left_s: float) -> Any:
            nonlocal unknown
            try:
                return await method(request, timeout=left_s)
            except grpc.aio.AioRpcError as error:
                typed = error_of(error, self.address)
                unknown = unknown or not isinstance(typed, (Refused, *_NOTHING_TAKEN))
                raise typed from error

        try:
            return await retry(attempt, timeout_s=self.timeout_s, pause_s=_RETRY_S)
        except Refused:
            raise
        except DledgerError as error:
            if not unknown:
                raise
            raise OutcomeUnknown(f"{error}; {doubt}") from error


def _appended(response: pb.AppendResponse) -> Appended:
    return Appended(
        queue_id=response.queue_id,
        offsets=tuple(response.offsets),
        index=response.index,
        recall_handles=tuple(response.recall_handles),
    )
