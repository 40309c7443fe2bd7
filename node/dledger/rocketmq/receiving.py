"""ReceiveMessage: wait for messages, lease them through the log, read their bodies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.commands import Ack, ChangeInvisible, LeaseRef, Receive, ReceiveAt
from dledger.broker.fifo_deliveries import groups_in
from dledger.broker.filters import parse_tags, tag_codes
from dledger.broker.message import Encoding, Message
from dledger.broker.produce import ProduceFrame
from dledger.broker.queue_positions import Payload
from dledger.broker.rekeep import REKEPT, Origin, origins
from dledger.broker.results import Delivery, Received
from dledger.broker.topics import FIFO, TYPES, Topic
from dledger.calls.caller import Caller
from dledger.checks.resources import client_id, group_name, topic_name
from dledger.common.limits import (
    DEFAULT_POLL_MS,
    FIRST_INVISIBLE_MS,
    MAX_ATTEMPT_LENGTH,
    MAX_INVISIBLE_MS,
    MAX_POLL_MS,
    MAX_RECEIVE_BATCH,
)
from dledger.common.metrics import NodeMetrics
from dledger.common.shares import address_of
from dledger.errors import (
    DledgerError,
    InvalidArgument,
    NotLeader,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
)
from dledger.requests.engine import Engine
from dledger.requests.outflow import Outflow
from dledger.requests.topic_resolver import TopicResolver
from dledger.requests.unpacking import Unpacking
from dledger.requests.unreadable import UnreadableMessages
from dledger.rocketmq.client_registry import ClientRegistry
from dledger.rocketmq.dead_letters import DeadLetters
from dledger.rocketmq.delivery_form import (
    SMALL_FRAME_BYTES,
    DeliveryForm,
    is_taken,
    repack,
)
from dledger.rocketmq.expression_scans import ExpressionScans
from dledger.rocketmq.expressions import Expression, expression
from dledger.rocketmq.long_polls import ANY_QUEUE, LongPollQueue, NoTurn, Turn, Want
from dledger.rocketmq.receipts import Receipts
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code, Rejected, ok
from dledger.types import Entry

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Poll:
    """One ReceiveMessage request, checked."""

    command: Receive
    topic: Topic
    resource: definition.Resource
    wait_s: float
    since_s: float
    address: str = ""
    line: str = ""
    expression: Expression | None = None
    scans: ExpressionScans | None = None

    @property
    def want(self) -> Want:
        """What the poll waits for, in competition with other polls."""
        command = self.command
        first = command.queue_id
        return Want(
            group=command.group,
            topic=self.topic,
            queue_id=ANY_QUEUE if command.any_queue else first,
            queue_ids=None if command.any_queue else range(first, first + 1),
            codes=tag_codes(command.tags) if self.expression is None else self.expression.text,
            scans=self.scans,
            limit=command.limit if self.topic.type != FIFO.name else groups_in(command.limit),
            attempt_id=command.attempt_id,
            since_s=self.since_s,
            address=self.address,
            line=self.line,
        )


class Receiver:
    """Serves ReceiveMessage on the leader.

    A RECEIVE is proposed only when the state has messages for it that no earlier poll has asked
    for (`long_polls`), so a waiting consumer costs nothing, and a message wakes a single poll.
    """

    def __init__(
        self,
        engine: Engine,
        resolver: TopicResolver,
        turns: LongPollQueue,
        clients: ClientRegistry,
        metrics: NodeMetrics,
        *,
        broken: UnreadableMessages,
        outflow: Outflow,
        unpacking: Unpacking,
        dead_letters: DeadLetters,
    ) -> None:
        self._engine, self._resolver = engine, resolver
        self._turns, self._clients, self._broken = turns, clients, broken
        self._outflow, self._unpacking = outflow, unpacking
        self._scans = ExpressionScans(engine, metrics)
        self._dead_letters = dead_letters

    async def receive(
        self, request: service.ReceiveMessageRequest, caller: Caller
    ) -> AsyncGenerator[service.ReceiveMessageResponse]:
        """Yield the status, the time of delivery, and the messages.

        The Python SDK's push consumer loses a batch without the delivery timestamp.
        """
        poll = await self._check(request, caller)
        del request  # free its memory while the poll waits
        secret = await self._resolver.secret()
        received = await self._poll(poll, caller)
        if received is None:
            yield nothing_new()
            return
        yield service.ReceiveMessageResponse(status=ok())
        response = service.ReceiveMessageResponse()
        response.delivery_timestamp.FromMilliseconds(self._engine.now_ms())
        yield response
        receipts = Receipts(
            secret,
            group=poll.command.group,
            topic=received.topic,
            generation=received.generation,
        )
        written = self._clients.answering(poll.command, received, caller)
        largest_bytes = max([one.payload.end - one.payload.start for one in received.deliveries])
        async with self._outflow.room(caller.connection, largest_bytes):
            async for message in self._messages(poll, received, receipts, caller):
                yield message
        written()

    async def _check(self, request: service.ReceiveMessageRequest, caller: Caller) -> _Poll:
        consumer = client_id(caller)
        group = group_name(request.group)
        topic_ref = request.message_queue.topic
        name = topic_name(topic_ref)
        asked, wanted, tags = request.filter_expression, None, None
        if asked.type == definition.FilterType.SQL:
            wanted = expression_of(asked)
        else:
            tags = tags_of(asked)
        invisible_ms = invisible_of(request)
        if request.batch_size < 1:
            raise Rejected(Code.BAD_REQUEST, f"batch_size must be positive: {request.batch_size}")
        topic = await self._resolver.topic(name)
        if wanted is not None and topic.type == FIFO.name:
            raise Rejected(
                Code.ILLEGAL_FILTER_EXPRESSION,
                f"topic {name!r} is FIFO, where an SQL92 filter is not served: filter by tag",
            )
        await self._resolver.group(group)
        if request.message_queue.id >= topic.queues:
            raise Rejected(
                Code.BAD_REQUEST,
                f"topic {name!r} has queues 0 to {topic.queues - 1}: {request.message_queue.id}",
            )
        if wanted is None:
            await self._resolver.use_filter(group, name, tags)
        else:
            await self._resolver.use_expression(group, name, wanted.text)
        command = Receive(
            group=group,
            topic=name,
            queue_id=max(request.message_queue.id, 0),
            # A push consumer polls every queue. A simple consumer picks one at random each time,
            # and would wait at an empty queue while messages lie in the next. Where the highest
            # queue comes first, it comes first for all.
            any_queue=(
                not request.auto_renew
                or request.message_queue.id < 0
                or TYPES[topic.type].highest_first
            ),
            limit=min(request.batch_size, MAX_RECEIVE_BATCH),
            invisible_ms=invisible_ms,
            tags=tags,
            attempt_id=attempt_of(request, caller),
            client_id=consumer if request.auto_renew else "",
        )
        return _Poll(
            command=command,
            topic=topic,
            resource=topic_ref,
            wait_s=wait_of(request),
            since_s=caller.since_s,
            address=address_of(caller.host),
            line=caller.line,
            expression=wanted,
            scans=None if wanted is None else self._scans,
        )

    async def _poll(self, poll: _Poll, caller: Caller) -> Received | None:
        """Return the first non-empty result, or None when the poll times out.

        Raises:
            UnknownTopic, UnknownGroup: The topic or group was deleted while the poll waited.
        """
        loop = asyncio.get_running_loop()
        until_s = min(poll.since_s + poll.wait_s, caller.deadline_s)
        want = poll.want
        while True:
            if not self._engine.is_leader():
                raise NotLeader(None)
            self._check_exists(poll)
            turn = await self._turns.take(want, until_s - loop.time())
            if isinstance(turn, Turn):
                received: Received | None
                with turn:
                    self._check_way_back(caller)
                    if poll.expression is None:
                        received = await self._ask(poll.command)
                    else:
                        received = await self._ask_at(poll, poll.expression, turn)
                if received is not None and received.spent:
                    self._dead_letters.begin(poll.command.group, poll.topic, received.spent)
                if received is not None and received.deliveries:
                    return received
            elif turn is NoTurn.FOR_GOOD or loop.time() >= until_s:
                return None

    def _check_way_back(self, caller: Caller) -> None:
        """Raise Unavailable if the response would go through an unreachable follower.

        A frozen follower keeps its connections and accepts responses, but relays nothing.
        """
        if caller.through is not None and not self._engine.hears(caller.through):
            raise Unavailable(f"node {caller.through}, which relays this call, is unreachable")

    def _check_exists(self, poll: _Poll) -> None:
        state = self._engine.state
        if not state.topics.is_there(poll.topic):
            raise UnknownTopic(poll.topic.name)
        if not state.groups.exists(poll.command.group):
            raise UnknownGroup(poll.command.group)

    async def _ask_at(self, poll: _Poll, wanted: Expression, turn: Turn) -> Received | None:
        """Propose what an expression finds; None: it finds nothing more.

        A claim that is not applied for sure is looked for anew: then nothing is passed over.
        """
        command, groups = poll.command, self._engine.state.groups
        attempt = command.attempt_id
        if attempt and groups.holds_attempt(command.group, command.topic, attempt):
            return await self._ask(self._scans.repeat(command, poll.topic, wanted))
        claim = await self._scans.claim(command, poll.topic, wanted)
        if claim is None:
            return None
        received: Received | None = None
        try:
            turn.pass_on()
            received = await self._ask(claim.command)
        finally:
            self._scans.settle(claim, received)
        return received

    async def _ask(self, command: Receive | ReceiveAt) -> Received:
        received = await self._engine.propose(command.encode())
        if not isinstance(received, Received):
            raise TypeError(f"RECEIVE answered {received!r}")
        return received

    async def _messages(
        self, poll: _Poll, received: Received, receipts: Receipts, caller: Caller
    ) -> AsyncIterator[service.ReceiveMessageResponse]:
        """Yield one response per message; messages of one payload share its decoded fields.

        A message that cannot be decoded is acknowledged on the consumer's behalf; otherwise it
        would be redelivered for ever. One that this consumer's library cannot take goes back.
        """
        form = DeliveryForm(poll.command, poll.topic, poll.resource, received.receive_id, receipts)
        broken: list[LeaseRef] = []
        withheld: list[Delivery] = []
        entry: Entry | None = None
        payload: Payload | None = None
        rekept: list[Origin] | None = None
        for delivery in received.deliveries:
            if entry is None or entry.index != delivery.payload.index:
                entry = await self._engine.read_entry(delivery.payload.index)
            if payload != delivery.payload:
                payload = delivery.payload
                frame = ProduceFrame(entry.data, payload.start, payload.end)
                is_rekept = entry.data[payload.start - 1] == REKEPT
                rekept = origins(entry, payload.start, payload.end) if is_rekept else None
                form.begin(frame.born_host, entry.timestamp_ms)
            if rekept is not None:
                form.begin(rekept[delivery.row].born_host, rekept[delivery.row].stored_at_ms)
            try:
                message = frame.message(delivery.row)
            except MalformedCommandError as error:
                queue_id, offset = delivery.queue_id, delivery.offset
                self._broken.note(poll.command.topic, queue_id, offset, error)
                broken.append(LeaseRef(queue_id, offset, received.receive_id))
                continue
            if message.encoding is not Encoding.IDENTITY:
                message = await self._repack(message, caller)
            response = form.response(message, delivery)
            if not is_taken(response, payload, caller.language):
                withheld.append(delivery)
                continue
            yield response
        if broken:
            await self._set_aside(poll.command, broken)
        if withheld:
            await self._give_back(poll.command, received.receive_id, withheld, caller.language)

    async def _repack(self, message: Message, caller: Caller) -> Message:
        """Return a message whose body is packed as it says, or that does not say so."""
        try:
            content = await self._unpacking.content_of(message.body, caller.host)
        except Rejected:
            content = None
        return repack(message, content, caller.language)

    async def _give_back(
        self, command: Receive, receive_id: int, deliveries: Sequence[Delivery], language: str
    ) -> None:
        """Give messages back that are too large for a client; they come again as if it had failed.

        Another member of the group may be able to take them.
        """
        for each in deliveries:
            logger.info(
                "group %s: the message at offset %d of queue %d of topic %s is over %d bytes, more "
                "than clients of %s take; it goes back into consumer group %s",
                self._engine.group,
                each.offset,
                each.queue_id,
                command.topic,
                SMALL_FRAME_BYTES,
                language,
                command.group,
            )
            retries = self._engine.state.groups.retries(command.group, command.topic)
            change = ChangeInvisible(
                group=command.group,
                topic=command.topic,
                lease=LeaseRef(each.queue_id, each.offset, receive_id),
                invisible_ms=retries.delay_ms(each.attempt),
            )
            try:
                await self._engine.propose(change.encode())
            except DledgerError as error:
                logger.info("a message comes again sooner than it should: %s", error)

    async def _set_aside(self, command: Receive, leases: Sequence[LeaseRef]) -> None:
        ack = Ack(group=command.group, topic=command.topic, leases=tuple(leases))
        try:
            await self._engine.propose(ack.encode())
        except DledgerError as error:
            logger.info("%d broken messages will be redelivered: %s", len(leases), error)


def nothing_new() -> service.ReceiveMessageResponse:
    """Return the whole response to a poll that timed out."""
    status = definition.Status(code=Code.MESSAGE_NOT_FOUND, message="no new message")
    return service.ReceiveMessageResponse(status=status)


def expression_of(asked: definition.FilterExpression) -> Expression:
    """Return the SQL92 expression of a ``FilterExpression``."""
    try:
        return expression(asked.expression)
    except InvalidArgument as error:
        raise Rejected(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from error


def tags_of(asked: definition.FilterExpression) -> tuple[str, ...] | None:
    """Return the tags of a ``FilterExpression``; None: all messages."""
    try:
        return parse_tags(asked.expression)
    except InvalidArgument as error:
        raise Rejected(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from error


def invisible_of(request: service.ReceiveMessageRequest) -> int:
    """Return the lease's duration in milliseconds."""
    if request.auto_renew:
        return FIRST_INVISIBLE_MS
    return checked_invisible(request.invisible_duration)


def checked_invisible(duration: Duration, *, least_ms: int = 1) -> int:
    """Return a ``Duration`` in milliseconds, or raise Rejected (ILLEGAL_INVISIBLE_TIME)."""
    milliseconds = duration.seconds * 1000 + duration.nanos // 1_000_000
    if not least_ms <= milliseconds <= MAX_INVISIBLE_MS:
        raise Rejected(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisible duration must be {least_ms} to {MAX_INVISIBLE_MS} ms, "
            f"not {milliseconds}",
        )
    return milliseconds


def attempt_of(request: service.ReceiveMessageRequest, caller: Caller) -> str:
    """Return the id that identifies a repeated request: the SDK's attempt id, or this request's."""
    attempt = request.attempt_id or caller.request_id
    return f"{caller.client_id}/{attempt}"[-2 * MAX_ATTEMPT_LENGTH :] if attempt else ""


def wait_of(request: service.ReceiveMessageRequest | service.PullMessageRequest) -> float:
    """Return how long a poll waits for messages, in seconds."""
    if not request.HasField("long_polling_timeout"):
        return DEFAULT_POLL_MS / 1000
    duration = request.long_polling_timeout
    wait_s: float = duration.seconds + duration.nanos / 1e9
    return min(max(wait_s, 0.0), MAX_POLL_MS / 1000)
