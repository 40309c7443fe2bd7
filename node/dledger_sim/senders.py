"""Producers as users run them, in virtual time, and clients that guess their ids.

A *sender* is one of the producers that we ship, on an event loop of its own, over `wire`
connections: much under way at once, in an order of its own. What each message is and what its
sender was told is kept for the check at the end. A *thief* stores junk under the ids that a
sender is about to use: it knows its client id and sees how far it is. Each attempt is made once,
and few: ids of others in a client's window make room for fewer of its own, and what is sent again
must still be remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, Protocol

from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.results import Produced
from dledger.client.append_stream import AppendStream
from dledger.client.batching_producer import BatchingProducer
from dledger.client.spooling import AnyNode
from dledger.errors import (
    CorruptSpool,
    DledgerError,
    MessageIdConflict,
    MessageRejected,
    Unavailable,
)
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.ledger import command_of
from dledger.spool.producer import Producer as SpoolProducer
from dledger.types import Appended, NodeId, Record
from dledger_sim.clients import TOPIC, Answer
from dledger_sim.cluster import Cluster
from dledger_sim.disk import SimFiles
from dledger_sim.loop import MS, ProcessLoop
from dledger_sim.wire import Wire, address_of

KINDS: Final = ("stream", "stream", "batching", "spooling")
"""The first is what has most under way, and in most ways."""
_PATIENT_S: Final = 3600.0
_SPOOL: Final = Path("/spool")


@dataclass(slots=True)
class Told:
    """One message, and what its sender was told: where it is, or an error; None: nothing yet."""

    number: int
    queue_id: int
    offset: int | None = None
    error: BaseException | None = None

    @property
    def is_acknowledged(self) -> bool:
        """Whether the sender may count on it."""
        return self.offset is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderOptions:
    """One producer.

    Attributes:
        kind: One of `KINDS`.
        messages: How many it sends.
        batch: Messages that it hands over together, at most.
        body_bytes: The longest body.
        think_us: The longest pause before the next.
        max_bytes: Its window in bytes.
        max_messages: Its window by number.
        queues: How many queues it sends to.
    """

    kind: str
    messages: int
    batch: int
    body_bytes: int
    think_us: int
    max_bytes: int
    max_messages: int
    queues: int


def id_of(name: str, number: int) -> str:
    """Return the id of a sender's message."""
    return f"{name}-{number:012d}"


class _Sends(Protocol):
    """What the kinds have in common."""

    async def __call__(self, batch: Sequence[Told], records: Sequence[Record]) -> None:
        """Send a batch; note what became of each message."""


@dataclass(slots=True)
class Sender:
    """One client; its ids are its own."""

    name: str
    cluster: Cluster
    wire: Wire
    options: SenderOptions
    rng: Random
    sent: list[Told] = field(default_factory=list)
    is_done: bool = False
    loop: ProcessLoop = field(init=False)

    def __post_init__(self) -> None:
        self.loop = ProcessLoop(self.cluster.clock, job_us=self._job_us)

    @property
    def stored_up_to(self) -> int:
        """The highest number that is stored as far as it was told; -1: none is."""
        known = (one.number for one in self.sent if one.offset is not None and one.offset >= 0)
        return max(known, default=-1)

    def start(self) -> None:
        """Begin to send: there is the topic."""
        self.loop.run(lambda: self.loop.create_task(self._run()))

    def _job_us(self) -> tuple[int, int]:
        total_us = self.rng.randint(100, 5 * MS)
        return total_us, self.rng.randint(0, total_us)

    async def _run(self) -> None:
        kinds: dict[str, Callable[[], Coroutine[None, None, None]]] = {
            "stream": self._by_stream,
            "batching": self._by_batches,
            "spooling": self._by_spool,
        }
        await kinds[self.options.kind]()
        self.is_done = True

    async def _by_stream(self) -> None:
        async with AppendStream(
            self._addresses,
            client_id=self.name,
            max_bytes=self.options.max_bytes,
            timeout_s=_PATIENT_S,
            max_messages=self.options.max_messages,
            connect=lambda address: self.wire.connect(self.loop, address),
        ) as stream:

            async def send(batch: Sequence[Told], records: Sequence[Record]) -> None:
                queue_id = batch[0].queue_id
                stored = await stream.append(TOPIC, records, queue_id=queue_id)
                for told, offset in zip(batch, stored.offsets, strict=True):
                    told.offset = offset

            await self._send_all(send)

    async def _by_batches(self) -> None:
        async with BatchingProducer(
            self._addresses,
            client_id=self.name,
            max_bytes=self.options.max_bytes,
            batch_bytes=min(4 << 10, self.options.max_bytes // 8),
            timeout_s=_PATIENT_S,
            max_messages=self.options.max_messages,
            connect=lambda address: self.wire.connect(self.loop, address),
        ) as producer:
            await self._send_each(producer.send)

    async def _by_spool(self) -> None:
        nodes = [_Node(self, node) for node in self.cluster.nodes()]
        async with SpoolProducer(
            _SPOOL,
            lambda _: AnyNode(nodes),
            client_id=self.name,
            files=SimFiles(),
            patience_s=self.rng.choice((0.05, 0.5, 2.0)),
            batch_records=self.options.max_messages,
            report=self._rejected,
        ) as producer:
            await self._send_each(producer.send)
            await producer.drained()

    async def _send_each(self, send_one: Callable[..., Awaitable[object]]) -> None:
        """Send everything one by one."""

        async def send(batch: Sequence[Told], records: Sequence[Record]) -> None:
            sends = (
                self._noted(told, send_one(TOPIC, record, queue_id=told.queue_id))
                for told, record in zip(batch, records, strict=True)
            )
            await asyncio.gather(*sends)

        await self._send_all(send)

    async def _noted(self, told: Told, sending: Awaitable[object]) -> None:
        """Keep what a single message's sender is told; what is spooled has no offset yet."""
        try:
            offset = getattr(await sending, "offset")  # noqa: B009 - `Sent` or `SendResult`
        except DledgerError as error:
            told.error = error
        else:
            told.offset = -1 if offset is None else offset

    def _rejected(self, what: CorruptSpool | MessageRejected) -> None:
        """Keep that a spooled message was refused after all."""
        assert isinstance(what, MessageRejected), "no disk is damaged"  # noqa: S101
        number = int(what.message_id.removeprefix(f"{self.name}-"))
        (told,) = (one for one in self.sent if one.number == number)
        told.offset, told.error = None, what

    async def _send_all(self, send: _Sends) -> None:
        """Send everything, awaiting nothing in between."""
        sends: set[asyncio.Task[None]] = set()
        while len(self.sent) < self.options.messages:
            batch = self._next_batch()
            task = asyncio.create_task(self._send(send, batch))
            sends.add(task)
            task.add_done_callback(sends.discard)
            if pause_us := self.rng.randint(0, self.options.think_us):
                await asyncio.sleep(pause_us / 1_000_000)
        while sends:
            await asyncio.wait(sends)

    async def _send(self, send: _Sends, batch: Sequence[Told]) -> None:
        records = [self._record(told) for told in batch]
        try:
            await send(batch, records)
        except MessageIdConflict as error:
            offsets = error.appended.offsets if error.appended else ()
            for row, (told, offset) in enumerate(zip(batch, offsets, strict=True)):
                told.error = error if row in error.rows else None
                told.offset = None if row in error.rows else offset
        except DledgerError as error:
            for told in batch:
                told.error = error

    def _next_batch(self) -> list[Told]:
        queue_id = self.rng.randrange(self.options.queues)
        first = len(self.sent)
        count = self.rng.randint(1, self.options.batch)
        batch = [Told(number, queue_id) for number in range(first, first + count)]
        self.sent += batch
        return batch

    def _record(self, told: Told) -> Record:
        body = b"%d " % told.number + bytes(self.rng.randint(0, self.options.body_bytes))
        return Record(body=body, message_id=id_of(self.name, told.number), born_at_ms=1)

    @property
    def _addresses(self) -> list[str]:
        return [address_of(node) for node in self.cluster.nodes()]


class _Node:
    """One node for unary appends; see `any_node.OneNode`."""

    def __init__(self, sender: Sender, node: NodeId) -> None:
        self._sender, self._node = sender, node

    async def append_once(
        self, topic: str, records: Sequence[Record], *, queue_id: int, timeout_s: float
    ) -> Appended:
        """Ask the node; whatever is lost on the way is noticed by the timeout."""
        request = pb.AppendRequest(
            client_id=self._sender.name,
            topic=topic,
            queue_id=queue_id,
            records=[
                pb.Record(message_id=r.message_id, body=r.body, born_at_ms=r.born_at_ms)
                for r in records
            ],
        )
        command, loop = command_of(request), self._sender.loop
        answered: asyncio.Future[Answer] = loop.create_future()

        def finish(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        self._sender.cluster.ask(self._node, command, lambda answer: loop.run(finish, answer))
        try:
            async with asyncio.timeout(timeout_s):
                answer = await answered
        except TimeoutError:
            raise Unavailable("no answer") from None
        if isinstance(answer, DledgerError):
            raise answer
        assert isinstance(answer, Produced), "a PRODUCE was asked for"  # noqa: S101
        if answer.conflicts:
            raise MessageIdConflict.of(answer.conflicts)
        return Appended(
            queue_id=answer.queue_ids[0], offsets=tuple(answer.offsets), index=answer.index
        )

    async def close(self) -> None:
        """Do nothing."""


FIRST_STOLEN: Final = 1_000_000
"""The number of a thief's first message; senders' are all below."""
_GUESS_EVERY_US: Final = 200 * MS


@dataclass(slots=True)
class IdThief:
    """Takes ids of one sender.

    Attributes:
        budget: How many messages it tries to store, at most.
        ahead: How far ahead of what its victim was told it guesses, at most.
    """

    victim: Sender
    cluster: Cluster
    rng: Random
    budget: int
    ahead: int
    sent: list[Told] = field(default_factory=list)

    def start(self) -> None:
        """Begin to guess: there is the topic."""
        self.cluster.clock.after(self.rng.randint(1, _GUESS_EVERY_US), self._guess)

    def _guess(self) -> None:
        left = self.budget - len(self.sent)
        if left <= 0 or self.victim.is_done:
            return
        count = self.rng.randint(1, min(2, left))
        first = self.victim.stored_up_to + 1 + self.rng.randint(0, self.ahead)
        queue_id = self.rng.randrange(self.victim.options.queues)
        number = FIRST_STOLEN + len(self.sent)
        tried = [Told(number + row, queue_id) for row in range(count)]
        self.sent += tried
        command = encode_produce(
            Columns(
                message_ids=[id_of(self.victim.name, first + row) for row in range(count)],
                bodies=[b"%d stolen" % told.number for told in tried],
                born_at_ms=[0] * count,
            ),
            client_id=self.victim.name,
            topic=TOPIC,
            queue_id=queue_id,
        )
        node = self.rng.choice(self.cluster.nodes())
        self.cluster.ask(node, command, lambda answer: _answered(tried, answer))
        self.start()


def _answered(tried: Sequence[Told], answer: Answer) -> None:
    """Note what became of a guess; of one that was not answered so it is unknown."""
    if not isinstance(answer, Produced):
        return
    for row, (told, offset) in enumerate(zip(tried, answer.offsets, strict=True)):
        if row in answer.conflicts:
            told.error = MessageIdConflict.of([row])
        else:
            told.offset = offset
