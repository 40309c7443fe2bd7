"""The Admin service's calls about the retries of consumer groups, and their dead letters.

Served by the leader. Of the dead letters those are open that their own group has not consumed: who
works them off here acts as a member of it, with leases, so two who do so at once get different
ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar

import grpc

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.commands import Ack, ChangeInvisible, LeaseRef, Receive, SetGroup
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.message import Columns, Message
from dledger.broker.produce import NO_QUEUE, ProduceFrame, encode_produce
from dledger.broker.redelivery import Retries, dead_letter_topic
from dledger.broker.results import Acked, GroupSet, Produced, Received
from dledger.common.limits import MAX_RECEIVE_BATCH
from dledger.errors import InvalidArgument, NotLeader, UnknownGroup, UnknownTopic
from dledger.requests.engine import Engine
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.admin_port import admin_service
from dledger.types import MovedFrom, Typed

_Q = TypeVar("_Q")
_A = TypeVar("_A")
_HELD_MS: Final = 60_000
"""How long a dead letter is on loan here until it is sent back or dropped."""


class DeadLetterAdminServicer:
    """Sets retries; shows dead letters, sends them back and drops them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to register on the peer port's server, beside the others of Admin."""
        return admin_service(
            {
                "SetGroup": (pb.SetGroupRequest, self._at_leader(self._set_group)),
                "ListDeadLetters": (
                    pb.DeadLettersRequest,
                    self._at_leader(self._list_dead_letters),
                ),
                "ResendDeadLetters": (pb.DeadLettersRequest, self._at_leader(self._resend)),
                "DropDeadLetters": (pb.DeadLettersRequest, self._at_leader(self._drop)),
            }
        )

    def _at_leader(
        self, serve: Callable[[_Q], Awaitable[_A]]
    ) -> Callable[[_Q, float], Awaitable[_A]]:
        async def handle(request: _Q, _: float) -> _A:
            if not self._engine.is_leader():
                leader = self._engine.leader()
                raise NotLeader(leader.id if leader is not None else None)
            return await serve(request)

        return handle

    async def _set_group(self, request: pb.SetGroupRequest) -> pb.SetGroupResponse:
        """Set what the request names; the rest stays."""
        groups = self._engine.state.groups
        if not groups.exists(request.name):
            raise UnknownGroup(request.name)
        now = groups.retries(request.name)
        attempts = request.max_attempts if request.HasField("max_attempts") else now.max_attempts
        wanted = Retries(attempts, tuple(request.backoff_ms) or now.backoff_ms)
        result = await self._engine.propose(SetGroup(name=request.name, retries=wanted).encode())
        if not isinstance(result, GroupSet):
            raise TypeError(f"SET_GROUP answered {result!r}")
        return pb.SetGroupResponse(
            before_max_attempts=result.before.max_attempts,
            before_backoff_ms=result.before.backoff_ms,
            max_attempts=wanted.max_attempts,
            backoff_ms=wanted.backoff_ms,
        )

    async def _list_dead_letters(self, request: pb.DeadLettersRequest) -> pb.DeadLettersResponse:
        """Return open dead letters by offset, and change nothing."""
        topic, queue = self._queue(request.group)
        response = pb.DeadLettersResponse()
        offsets = self._engine.state.groups.open_offsets(request.group, topic, 0)
        for offset, held in offsets:
            if len(response.letters) == _limit(request):
                response.more = True
                break
            if offset >= queue.end or not queue.has(offset):
                continue
            letter = _letter(offset, await self._message(queue, offset))
            letter.held = held
            response.letters.append(letter)
        return response

    async def _resend(self, request: pb.DeadLettersRequest) -> pb.DeadLettersResponse:
        """Send dead letters back to where they came from; what cannot go there stays."""
        return await self._work_off(request, self._send_back)

    async def _drop(self, request: pb.DeadLettersRequest) -> pb.DeadLettersResponse:
        """Acknowledge dead letters: the topic keeps them for as long as others."""

        async def drop(letter: pb.DeadLetter, message: Message | None, scope: str) -> str:
            del letter, message, scope
            return ""

        return await self._work_off(request, drop)

    async def _work_off(
        self,
        request: pb.DeadLettersRequest,
        settle: Callable[[pb.DeadLetter, Message | None, str], Awaitable[str]],
    ) -> pb.DeadLettersResponse:
        topic, queue = self._queue(request.group)
        command = Receive(
            group=request.group,
            topic=topic,
            queue_id=0,
            any_queue=False,
            limit=_limit(request),
            invisible_ms=_HELD_MS,
        )
        received = await self._engine.propose(command.encode())
        if not isinstance(received, Received):
            raise TypeError(f"RECEIVE answered {received!r}")
        response = pb.DeadLettersResponse(more=len(received.deliveries) == command.limit)
        kept: list[LeaseRef] = []
        for each in received.deliveries:
            lease = LeaseRef(0, each.offset, received.receive_id)
            message = await self._message(queue, each.offset)
            letter = _letter(each.offset, message)
            scope = f"{topic}#{received.generation << 40 | each.offset:016x}"
            letter.kept_because = await settle(letter, message, scope)
            if letter.kept_because:
                kept.append(lease)
            else:
                ack = Ack(group=request.group, topic=topic, leases=(lease,))
                result = await self._engine.propose(ack.encode())
                if not isinstance(result, Acked):
                    raise TypeError(f"ACK answered {result!r}")
            response.letters.append(letter)
        for lease in kept:
            await self._engine.propose(
                ChangeInvisible(
                    group=request.group, topic=topic, lease=lease, invisible_ms=0, suspend=True
                ).encode()
            )
        return response

    async def _send_back(self, letter: pb.DeadLetter, message: Message | None, scope: str) -> str:
        """Store a dead letter in its topic once more; return why that cannot be, if so.

        The *scope* of idempotency is the dead letter itself: if this was done, and its answer was
        lost, it is not stored again for as long as ids are remembered.
        """
        if message is None:
            return "it cannot be read"
        typed = message.typed
        origin = None if typed is None else typed.moved_from
        if typed is None or origin is None:
            return "it does not say where it came from: a producer sent it here"
        topic = self._engine.state.topics.get(origin.topic)
        if topic is None or topic.generation != origin.generation:
            return f"topic {origin.topic!r} is not there any more"
        left = replace(typed, moved_from=None)
        again = replace(message, typed=None if left == Typed() else left)
        command = encode_produce(
            Columns.of([again]),
            client_id=scope,
            topic=topic.name,
            queue_id=origin.queue_id if 0 <= origin.queue_id < topic.queues else NO_QUEUE,
            born_host=origin.born_host,
        )
        self._engine.state.topics.check_takes(topic.name)
        result = await self._engine.propose(command)
        if not isinstance(result, Produced):
            raise TypeError(f"PRODUCE answered {result!r}")
        letter.sent_to_queue, letter.sent_to_offset = result.queue_ids[0], result.offsets[0]
        letter.was_sent_before = not result.stored
        return ""

    def _queue(self, group: str) -> tuple[str, ConsumeQueue]:
        if not self._engine.state.groups.exists(group):
            raise UnknownGroup(group)
        topic = dead_letter_topic(group)
        try:
            return topic, self._engine.state.topics.queue(topic, 0)
        except UnknownTopic:
            raise InvalidArgument(f"consumer group {group!r} has no dead letters") from None

    async def _message(self, queue: ConsumeQueue, offset: int) -> Message | None:
        """Return a dead letter; None if it cannot be read."""
        found = queue.locate(offset)
        entry = await self._engine.read_entry(found.payload.index)
        try:
            frame = ProduceFrame(entry.data, found.payload.start, found.payload.end)
            return frame.message(found.row)
        except MalformedCommandError:
            return None


def _limit(request: pb.DeadLettersRequest) -> int:
    return min(max(request.limit, 1), MAX_RECEIVE_BATCH)


def _letter(offset: int, message: Message | None) -> pb.DeadLetter:
    letter = pb.DeadLetter(offset=offset)
    if message is None:
        return letter
    letter.message_id, letter.size_bytes = message.message_id, len(message.body)
    origin: MovedFrom | None = None if message.typed is None else message.typed.moved_from
    if origin is not None:
        letter.moved_from.topic, letter.moved_from.generation = origin.topic, origin.generation
        letter.moved_from.queue_id, letter.moved_from.offset = origin.queue_id, origin.offset
        letter.moved_from.stored_at_ms = origin.stored_at_ms
        letter.moved_from.born_host, letter.moved_from.attempts = origin.born_host, origin.attempts
    return letter
