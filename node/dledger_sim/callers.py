"""Clients of RocketMQ's own calls, and of the unary append, in virtual time.

A *caller* asks any node, leader or not, over `wire`, and keeps what it was told: what was answered
well, what was refused so that nothing was done, and what nobody knows. *Consumers* of one group
receive and acknowledge until nothing is left; what they see is checked in `deliveries`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Final, TypeAlias

import grpc.aio

from dledger.broker.topics import FIFO, NORMAL
from dledger.errors import DiskFull, DledgerError, NotLeader, OutcomeUnknown, Overloaded, Refused
from dledger.requests.forward import NOTHING_HAPPENED
from dledger.rpc.channel import outcome_of
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from dledger.types import NodeId
from dledger_sim.call import Asked, SimCall
from dledger_sim.checkers import ViolationError
from dledger_sim.deliveries import Deliveries, Lease, Place
from dledger_sim.loop import MS, ProcessLoop, S
from dledger_sim.ordered import Ordered
from dledger_sim.senders import Told
from dledger_sim.wire import Wire, one

CALLED: Final = "called"
"""The topic of all of them, made on its first use unless it is FIFO."""
_CONSUMERS: Final = "callers"
_APPEND_PATH: Final = "/dledger.v1.Ledger/Append"
_CREATE_PATH: Final = "/dledger.v1.Topics/CreateTopic"
_IN_ORDER: Final = 0.4
_BATCH: Final = 4
_GROUPS: Final = 3
_QUEUES: Final = 2
_PAUSE_US: Final = 60 * MS
_PATIENT_S: Final = 5.0
_NO_LEADER: Final = str(NotLeader(None))
Code = definition.Code

Outcome: TypeAlias = int | DledgerError
"""Where a message is in its queue, or why it is not there, or perhaps not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """All callers of a run.

    Attributes:
        senders: How many clients send.
        messages: How many messages each sends.
        at_once: How many of them are under way, at most.
        tries: How often a message is sent, at most, with the same id.
        timeout_s: The clients' deadlines, of which each call has one.
        consumers: How many clients receive.
        invisible_ms: How long they hide what they receive.
        links_only: Whether only followers are asked, as long as there are any.
        in_order: Whether their topic is FIFO.
    """

    senders: int = 1
    messages: int = 30
    at_once: int = 1
    tries: int = 1
    timeout_s: tuple[float, ...] = (1.0,)
    consumers: int = 1
    invisible_ms: int = 1000
    links_only: bool = False
    in_order: bool = False

    @classmethod
    def draw(cls, rng: Random) -> CallOptions:
        """Draw one."""
        return cls(
            senders=rng.choice((1, 2)),
            messages=rng.choice((20, 40)),
            at_once=rng.choice((1, 1, 4)),
            tries=rng.choice((1, 1, 3)),
            timeout_s=rng.choice(((0.3,), (0.3, 1.0), (0.5, 3.0))),
            consumers=rng.choice((1, 2)),
            invisible_ms=rng.choice((300, 1000, 3000)),
            links_only=rng.random() < 0.5,
            in_order=rng.random() < _IN_ORDER,
        )


def group_of(number: int) -> str:
    """Return the message group of a sender's message."""
    return f"group {number % _GROUPS}"


class _Caller:
    """One client, on an event loop of its own."""

    def __init__(self, name: str, wire: Wire, options: CallOptions) -> None:
        self.name, self.wire, self.options = name, wire, options
        self.rng = wire.cluster.random(name)
        self.clock = wire.cluster.clock
        self.loop = ProcessLoop(self.clock, job_us=lambda: (1, 1))
        self.is_done = False
        self._pairs = ((b"x-mq-client-id", name.encode()), (b"x-mq-language", b"PYTHON"))

    def start(self) -> None:
        """Begin."""
        self.loop.run(lambda: self.loop.create_task(self.watch(self._run())))

    async def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Do *work*; what it finds broken ends the run."""
        try:
            await work
        except ViolationError as error:
            self.wire.broken.append(str(error))

    async def _run(self) -> None:
        raise NotImplementedError

    async def pause(self, longest_us: int = _PAUSE_US) -> None:
        """Do nothing for a while."""
        await asyncio.sleep(self.rng.randint(1, longest_us) / S)

    def _node(self) -> NodeId:
        cluster = self.wire.cluster
        nodes = list(cluster.nodes())
        if self.options.links_only:
            leading = {process.id for process in cluster.leaders()}
            nodes = [node for node in nodes if node not in leading] or nodes
        return self.rng.choice(nodes)

    def ask(self, path: str, request: Any, timeout_s: float) -> SimCall:
        """Ask any node."""
        node = self._node()
        asked = Asked(
            path=path, pairs=self._pairs, timeout_s=timeout_s, peer=f"ipv4:{self.name}.{node}:1"
        )
        return SimCall(self.wire, self.loop, node, one(request.SerializeToString()), asked)

    async def make_topic(self) -> None:
        """Make the FIFO topic of all callers; ask until it is there."""
        request = pb.CreateTopicRequest(name=CALLED, type=FIFO.name, queues=_QUEUES)
        while True:
            try:
                await _only(self.ask(_CREATE_PATH, request, self.timeout_s()))
            except grpc.aio.AioRpcError as error:
                _meaning_of(error)
                await self.pause()
            else:
                return

    def timeout_s(self) -> float:
        """Draw a deadline."""
        return _PATIENT_S if self.wire.cluster.calm else self.rng.choice(self.options.timeout_s)


class CallingSender(_Caller):
    """Sends by SendMessage, or by the unary append."""

    def __init__(self, name: str, wire: Wire, options: CallOptions) -> None:
        super().__init__(name, wire, options)
        self.sent: list[Told] = []

    async def _run(self) -> None:
        if self.options.in_order:
            await self.make_topic()
        free = asyncio.Semaphore(self.options.at_once)
        sends: set[asyncio.Task[None]] = set()
        for number in range(self.options.messages):
            await free.acquire()
            told = Told(number, -1)
            self.sent.append(told)
            task = asyncio.create_task(self.watch(self._send(told)))
            sends.add(task)
            task.add_done_callback(sends.discard)
            task.add_done_callback(lambda _: free.release())
            await self.pause()
        if sends:
            await asyncio.wait(sends)
        self.is_done = True

    async def _send(self, told: Told) -> None:
        """Send a message until it is stored, or often enough; note what is known of it."""
        send = self._append if self.rng.random() < 0.5 else self._send_message
        unknown: DledgerError | None = None
        for _ in range(self.rng.randint(1, self.options.tries)):
            outcome = await send(told.number)
            if isinstance(outcome, int):
                told.offset, told.error = outcome, None
                return
            unknown = unknown or (outcome if isinstance(outcome, OutcomeUnknown) else None)
            told.error = unknown or outcome
            await self.pause()

    def _body(self, number: int) -> bytes:
        return b"%d of %s" % (number, self.name.encode())

    def _id(self, number: int) -> str:
        return f"01{self.name}-{number:08X}"

    @property
    def _type(self) -> str:
        return FIFO.name if self.options.in_order else NORMAL.name

    def _group(self, number: int) -> str:
        return group_of(number) if self.options.in_order else ""

    async def _send_message(self, number: int) -> Outcome:
        message = definition.Message(
            topic=definition.Resource(name=CALLED),
            system_properties=definition.SystemProperties(
                message_id=self._id(number),
                message_type=definition.MessageType.Value(self._type),
                body_encoding=definition.Encoding.IDENTITY,
                born_host=self.name,
                message_group=self._group(number) or None,
            ),
            body=self._body(number),
        )
        request = service.SendMessageRequest(messages=[message])
        try:
            raw = await _only(self.ask(f"/{SERVICE_NAME}/SendMessage", request, self.timeout_s()))
        except grpc.aio.AioRpcError as error:
            return _meaning_of(error)
        response = service.SendMessageResponse.FromString(raw)
        if response.status.code == Code.OK:
            return int(response.entries[0].offset)
        return meaning_of(response.status)

    async def _append(self, number: int) -> Outcome:
        record = pb.Record(
            message_id=self._id(number),
            body=self._body(number),
            born_at_ms=0,
            typed=pb.Typed(message_group=group) if (group := self._group(number)) else None,
        )
        request = pb.AppendRequest(client_id=self.name, topic=CALLED, queue_id=-1, records=[record])
        try:
            raw = await _only(self.ask(_APPEND_PATH, request, self.timeout_s()))
        except grpc.aio.AioRpcError as error:
            return _meaning_of(error)
        return int(pb.AppendResponse.FromString(raw).offsets[0])

    def check(self, stored: dict[int, list[Place]]) -> None:
        """Compare what was told with where each number is. Raises ViolationError."""
        for told in self.sent:
            places = stored.get(told.number, [])
            what = f"{self.name}'s {told.number}"
            if len(places) > 1:
                raise ViolationError(f"{what} is stored {len(places)} times")
            if told.is_acknowledged and not places:
                raise ViolationError(f"{what} was acknowledged and is lost")
            if told.is_acknowledged and places[0][1] != told.offset:
                raise ViolationError(f"{what} is not where it was told to be")
            if places and told.error is not None and not isinstance(told.error, OutcomeUnknown):
                raise ViolationError(f"{what} is stored, in spite of {told.error!r}")
        if self.options.at_once == 1:
            self._check_order(stored)

    def _check_order(self, stored: dict[int, list[Place]]) -> None:
        """Check that what was sent after an answer is behind it in its queue."""
        known = [stored[told.number][0] for told in self.sent if told.is_acknowledged]
        for queue_id in {place[0] for place in known}:
            offsets = [place[1] for place in known if place[0] == queue_id]
            if any(after < before for before, after in pairwise(offsets)):
                raise ViolationError(f"{self.name}'s messages are at {offsets} of {queue_id}")


@dataclass(slots=True)
class _Receive:
    """One attempt to receive; it may be repeated."""

    attempt_id: str
    began_us: int
    messages: list[Any] = field(default_factory=list)
    failed: bool = False


class CallingConsumer(_Caller):
    """Receives by ReceiveMessage, at any node, and acknowledges by AckMessage, at any other."""

    def __init__(
        self,
        name: str,
        wire: Wire,
        options: CallOptions,
        deliveries: Deliveries,
        ordered: Ordered,
    ) -> None:
        super().__init__(name, wire, options)
        self._deliveries, self._asked, self._stopping = deliveries, 0, False
        self._ordered = ordered

    def stop(self) -> None:
        """Let it end when it has done what it does."""
        self._stopping = True

    async def _run(self) -> None:
        if self.options.in_order:
            await self.make_topic()
        while not self._stopping:
            self._asked += 1
            receive = _Receive(f"{self.name}-{self._asked}", self.clock.now_us)
            await self._receive(receive)
            if receive.failed and not receive.messages and self.rng.random() < 0.5:
                await self._receive(receive)  # as SDKs do, with the same attempt id
            handed = [self._take(receive, message) for message in receive.messages]
            if len({place for place, _ in handed}) < len(handed):
                raise ViolationError(f"a message is twice in one answer: {handed}")
            if self.options.in_order:
                names = [each.system_properties.message_group for each in receive.messages]
                rows = [(*one, name) for one, name in zip(handed, names, strict=True)]
                self._ordered.note(
                    receive.attempt_id, [(place, name, lease) for place, lease, name in rows]
                )
            if handed and (self.wire.cluster.calm or self.rng.random() < 0.8):
                await self._acknowledge(handed)
            await self.pause()
        self.is_done = True

    async def _receive(self, receive: _Receive) -> None:
        wait_s = self.rng.choice((0.0, 0.2, 1.0))
        request = service.ReceiveMessageRequest(
            group=definition.Resource(name=_CONSUMERS),
            message_queue=definition.MessageQueue(
                topic=definition.Resource(name=CALLED),
                id=-1,
                accept_message_types=[definition.MessageType.NORMAL],
            ),
            filter_expression=definition.FilterExpression(
                type=definition.FilterType.TAG, expression="*"
            ),
            batch_size=_BATCH,
            attempt_id=receive.attempt_id,
        )
        request.invisible_duration.FromMilliseconds(self.options.invisible_ms)
        request.long_polling_timeout.FromMilliseconds(round(wait_s * 1000))
        receive.failed, has_begun = False, False
        timeout_s = wait_s + self.timeout_s()
        try:
            async for raw in self.ask(f"/{SERVICE_NAME}/ReceiveMessage", request, timeout_s):
                answer = service.ReceiveMessageResponse.FromString(raw)
                if answer.HasField("status") and has_begun:
                    raise ViolationError("an answer to a receive begins twice")
                has_begun = True
                if answer.HasField("message"):
                    receive.messages.append(answer.message)
                elif answer.HasField("status") and answer.status.code != Code.OK:
                    receive.failed = answer.status.code != Code.MESSAGE_NOT_FOUND
                    if receive.failed:
                        meaning_of(answer.status)
        except grpc.aio.AioRpcError as error:
            _meaning_of(error)
            receive.failed = True

    def _take(self, receive: _Receive, message: Any) -> tuple[Place, Lease]:
        system = message.system_properties
        place = (system.queue_id, system.queue_offset)
        lease = Lease(
            handle=system.receipt_handle,
            attempt=system.delivery_attempt,
            body=message.body,
            arrived_us=self.clock.now_us,
            least_us=receive.began_us + self.options.invisible_ms * MS,
        )
        self._deliveries.note(place, lease, began_us=receive.began_us)
        return place, lease

    async def _acknowledge(self, handed: Sequence[tuple[Place, Lease]]) -> None:
        request = service.AckMessageRequest(
            group=definition.Resource(name=_CONSUMERS),
            topic=definition.Resource(name=CALLED),
            entries=[
                service.AckMessageEntry(message_id="any", receipt_handle=lease.handle)
                for _, lease in handed
            ],
        )
        for _ in range(self.rng.randint(1, self.options.tries)):
            for _, lease in handed:
                self._deliveries.note_ack(lease, self.clock.now_us)
            call = self.ask(f"/{SERVICE_NAME}/AckMessage", request, self.timeout_s())
            try:
                response = service.AckMessageResponse.FromString(await _only(call))
            except grpc.aio.AioRpcError as error:
                _meaning_of(error)
            else:
                if self._read(handed, response):
                    return
            await self.pause()

    def _read(self, handed: Sequence[tuple[Place, Lease]], response: Any) -> bool:
        """Note what was said of each; return whether anything was."""
        if not response.entries:
            if isinstance(meaning_of(response.status), OutcomeUnknown):
                return False
            for _, lease in handed:
                self._deliveries.note_refusal(lease)
            return False
        for (place, lease), entry in zip(handed, response.entries, strict=True):
            if entry.status.code not in (Code.OK, Code.INVALID_RECEIPT_HANDLE):
                meaning_of(entry.status)
                continue
            held = entry.status.code == Code.OK
            self._deliveries.note_answer(place, lease, self.clock.now_us, held=held)
        return True


async def _only(call: SimCall) -> bytes:
    """Return a call's one answer. Raises AioRpcError."""
    answers = [answer async for answer in call]
    if len(answers) != 1:
        raise ViolationError(f"{len(answers)} answers to a call that has one")
    return answers[0]


def meaning_of(status: Any) -> DledgerError:
    """Return what a status of RocketMQ says: OutcomeUnknown, or a refusal that did nothing.

    Raises:
        ViolationError: It is none that a good request may get.
    """
    words, code = status.message, status.code
    match code:
        case Code.HA_NOT_AVAILABLE if words.endswith("is not known"):
            return OutcomeUnknown(words)  # whatever the last attempt of several said
        case Code.HA_NOT_AVAILABLE if words == _NO_LEADER or "nothing was done" in words:
            return NotLeader(None)
        case Code.HA_NOT_AVAILABLE:
            return OutcomeUnknown(words)
        case Code.TOO_MANY_REQUESTS:
            return Overloaded(words)
        case Code.INTERNAL_SERVER_ERROR:
            return DiskFull(words)
    raise ViolationError(f"a good request is told {Code.Name(code)}: {words}")


def _meaning_of(error: Any) -> DledgerError:
    """Return what the end of a call says. Raises ViolationError: as `meaning_of`."""
    meant = outcome_of(error, "a node")
    if isinstance(meant, NOTHING_HAPPENED):
        return meant
    if isinstance(meant, Refused) or error.code() in _NEVER:
        raise ViolationError(f"a good request ends with {error.code()}: {error.details()}")
    return OutcomeUnknown(str(meant))


_NEVER: Final = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED)
