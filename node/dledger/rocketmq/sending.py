"""SendMessage: check the messages, store them with one PRODUCE command, return their offsets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final

from prometheus_client import Counter

from dledger.broker.command_frame import CommandType, MalformedCommandError
from dledger.broker.held_refs import HELD_QUEUE, HeldMessage, Ref
from dledger.broker.message import Message
from dledger.broker.produce import ProduceFrame
from dledger.broker.queue_choice import chooses_queues
from dledger.broker.queue_positions import Position
from dledger.broker.results import NOWHERE, Produced
from dledger.broker.topics import NORMAL, TRANSACTION, Topic
from dledger.calls.caller import Caller
from dledger.calls.method import Submitted
from dledger.checks.names import SCOPE_DIGEST_BYTES
from dledger.door.contract import REPLAY_FIELD
from dledger.errors import (
    DiskFull,
    DledgerError,
    MessageIdConflict,
    OffsetOutOfRange,
    Unavailable,
)
from dledger.requests.delivery_times import is_to_wait
from dledger.requests.engine import Engine
from dledger.requests.recall_handles import RecallHandles
from dledger.requests.topic_resolver import TopicResolver
from dledger.requests.transaction_ids import TransactionIds
from dledger.requests.unpacking import Unpacking
from dledger.rocketmq.command_batcher import CommandBatcher, Place
from dledger.rocketmq.producers import Producers
from dledger.rocketmq.send_requests import (
    Origin,
    Sending,
    by_queue,
    checked,
    encoded,
    encoded_halves,
    encoded_held,
    response_of,
)
from dledger.rpc.rocketmq_stubs import service

_HALF: Final = TRANSACTION.name


class Sender:
    """Serves SendMessage on the leader."""

    def __init__(
        self,
        engine: Engine,
        resolver: TopicResolver,
        conflicts: Counter,
        *,
        unpacking: Unpacking,
        producers: Producers,
    ) -> None:
        """*conflicts* counts messages whose id was already used for another message."""
        self._producers = producers
        self._engine, self._resolver, self._conflicts = engine, resolver, conflicts
        self._unpacking = unpacking
        self._batches: CommandBatcher[Origin, Message] = CommandBatcher(
            engine, CommandType.PRODUCE, encoded
        )
        self._held: CommandBatcher[Origin, Message] = CommandBatcher(
            engine, CommandType.PRODUCE_HELD, encoded_held
        )
        self._halves: CommandBatcher[Origin, Message] = CommandBatcher(
            engine,
            CommandType.PRODUCE_HELD,
            lambda origin, messages: encoded_halves(
                engine.date_ms() or engine.now_ms(), origin, messages
            ),
        )

    async def send(
        self, request: service.SendMessageRequest, caller: Caller
    ) -> service.SendMessageResponse:
        """Store the request's messages as one batch; return each one's position."""
        sending = checked(request, caller.client_id, caller.line, caller.fields.get(REPLAY_FIELD))
        await self._unpacking.check(sending.unchecked, caller.host)
        topic = await self._topic_of(sending)
        if (topics := self._engine.state.topics).full:
            topics.check_takes(sending.origin.topic)
        if sending.is_timed:
            return await self._send_timed(sending, topic)
        if sending.is_half:
            return await self._send_halves(sending, topic)
        if chooses_queues(topic):
            offsets = await self._offsets_of(by_queue(sending, topic))
        else:
            offsets = await self._offsets(sending, await self._submitted(sending))
        return response_of(sending.messages, offsets)

    async def _topic_of(self, sending: Sending) -> Topic:
        """Return the topic of a request, whose messages it takes.

        Raises:
            UnknownTopic: It does not exist, and is not made on its first use.
            TopicTypeMismatch: It is of another type than the messages.
        """
        topic = await self._resolver.topic(sending.origin.topic, kind=sending.kind)
        sending.check_topic(topic)
        return topic

    async def _send_timed(self, sending: Sending, topic: Topic) -> service.SendMessageResponse:
        """Hold messages until they are due, or store them if they are; a retry may find either."""
        secret = await self._resolver.secret()  # before: nothing is to be held without a handle
        is_later = is_to_wait(sending.due_ms(), self._engine.date_ms())
        if is_later and (why := self._engine.holding_refusal()):
            raise DiskFull(why)
        places = await self._places(sending, await self._submitted(sending, is_held=is_later))
        return _timed_response(sending, places, _handles(secret, topic))

    async def _send_halves(self, sending: Sending, topic: Topic) -> service.SendMessageResponse:
        """Hold messages until their transactions end; a retry is told the same ids."""
        secret = await self._resolver.secret()  # before: no half is to be held without an id
        if self._engine.state.held.full:
            raise DiskFull(self._engine.state.held.full)
        self._producers.note(topic.name, sending.origin.client_id)
        places = await self._places(sending, await self._submitted(sending))
        response = response_of(sending.messages, [-1] * len(places))
        ids = TransactionIds(secret, topic=topic.name, generation=topic.generation)
        for entry, (queue_id, packed) in zip(response.entries, places, strict=True):
            if queue_id != HELD_QUEUE:
                raise MessageIdConflict.of_message(entry.message_id)
            entry.transaction_id = ids.encode(Ref.unpack(packed))
        return response

    async def _offsets(self, sending: Sending, place: Place) -> list[int]:
        """Return the offsets of messages that were stored at a place, in their order."""
        return [offset for _, offset in await self._places(sending, place)]

    async def _places(self, sending: Sending, place: Place) -> list[tuple[int, int]]:
        """Return queue and offset of messages that were stored at a place, in their order."""
        stored, first = _placed(place)
        messages = sending.messages
        rows = slice(first, first + len(messages))
        places = list(zip(stored.queue_ids[rows], stored.offsets[rows], strict=True))
        unsure = [row - first for row in _unsure(stored) if 0 <= row - first < len(messages)]
        own = (self._own(sending, messages[row], stored, first + row) for row in unsure)
        for row, found in zip(unsure, await asyncio.gather(*own), strict=True):
            places[row] = found
        return places

    async def _offsets_of(self, parts: Sequence[Sending]) -> list[int]:
        """Store a request in parts of one queue each; return all offsets, in their order.

        They are submitted together, in order, so that what a lost leader has of them is the first
        ones. Of a replay with an id that another message had before, each waits for the one before
        it: the lane's sequence is never past a message that is not stored yet.

        Raises:
            Unavailable: Some of it may be stored; the same request again stores each message once.
        """
        if parts[0].origin.replay is not None and self._has_conflict(parts):
            return [
                offset
                for each in parts
                for offset in await self._offsets(each, await self._submitted(each))
            ]
        submitted = list[asyncio.Future[Place]]()
        try:
            for each in parts:
                submitted.append(self._submitted(each))
        except DledgerError as error:
            if not submitted:
                raise
            raise Unavailable(
                f"{error}; of the request's {len(parts)} parts of one queue each "
                f"{len(submitted)} may be stored: send it again with the same message ids"
            ) from error
        try:
            places = await asyncio.gather(*submitted)
        finally:
            submitted.clear()  # a failed one has this frame in its traceback: they would not go
        stored = map(self._offsets, parts, places)
        return [offset for each in await asyncio.gather(*stored) for offset in each]

    def _has_conflict(self, parts: Sequence[Sending]) -> bool:
        """Whether the id of a message is another's: of one in the window, or in these parts."""
        bodies: dict[str, bytes] = {}
        messages = [message for each in parts for message in each.messages]
        origin, topics = parts[0].origin, self._engine.state.topics
        return any(
            bodies.setdefault(message.message_id, message.body) != message.body
            for message in messages
        ) or any(
            topics.is_taken(origin.client_id, origin.topic, message.message_id, message.body)
            for message in messages
        )

    def begin(
        self, request: service.SendMessageRequest, caller: Caller
    ) -> Submitted[service.SendMessageResponse] | None:
        """Submit the request's messages now.

        None if their topic has to be created first, or is compacted, or chooses several queues for
        them, or perhaps takes none for want of room; or if it is of another type than they are, or
        they are halves, or a body of theirs takes long to look into. They are no replay's: the
        group often knows some of it, and it has thousands, which nobody is to parse and check
        twice. So `send` serves it.

        The response is None if an id of theirs was used before: `send` has to look by whom.
        """
        sending = checked(request, caller.client_id, caller.line)
        topics = self._engine.state.topics
        topic = topics.get(sending.origin.topic)
        if topic is None or topic.compaction is not None or sending.unchecked or topics.full:
            return None
        if topic.type != sending.kind:
            return None
        if topic.type != NORMAL.name:
            return self._begin_typed(sending, topic)
        return Submitted(
            self._submitted(sending), lambda place: _plain_response(sending, *_placed(place))
        )

    def _begin_typed(
        self, sending: Sending, topic: Topic
    ) -> Submitted[service.SendMessageResponse] | None:
        """Submit what is not NORMAL."""
        if sending.is_half:
            return None
        if sending.is_timed:
            return self._begin_timed(sending, topic)
        part, *more = by_queue(sending, topic)
        if more:
            return None
        return Submitted(
            self._submitted(part), lambda place: _plain_response(part, *_placed(place))
        )

    def _begin_timed(
        self, sending: Sending, topic: Topic
    ) -> Submitted[service.SendMessageResponse] | None:
        """Do what `_send_timed` does, unless it has to wait for a secret or says why it may not."""
        secret = self._engine.state.secret
        is_later = is_to_wait(sending.due_ms(), self._engine.date_ms())
        if not secret or (is_later and self._engine.holding_refusal()):
            return None

        def response(place: Place) -> service.SendMessageResponse | None:
            stored, first = _placed(place)
            if stored.repeats or stored.conflicts:
                return None
            rows = slice(first, first + len(sending.messages))
            places = list(zip(stored.queue_ids[rows], stored.offsets[rows], strict=True))
            return _timed_response(sending, places, _handles(secret, topic))

        return Submitted(self._submitted(sending, is_held=is_later), response)

    def _submitted(self, sending: Sending, *, is_held: bool = False) -> asyncio.Future[Place]:
        batches = self._held if is_held else self._batches
        return (self._halves if sending.kind == _HALF else batches).submit(
            sending.origin,
            sending.messages,
            sending.size_bytes,
            line=sending.line,
            producer=sending.origin.client_id,
            alone=sending.origin.replay is not None,
        )

    async def _own(
        self, sending: Sending, message: Message, stored: Produced, row: int
    ) -> tuple[int, int]:
        """Return the own place of a message whose id was used before, maybe for another message.

        Raises:
            MessageIdConflict: It is not stored: another message has its id even in its own scope.
        """
        origin, queue_id, offset = sending.origin, stored.queue_ids[row], stored.offsets[row]
        if offset != NOWHERE and await is_stored(
            self._engine, origin.topic, queue_id, offset, message
        ):
            return queue_id, offset
        self._conflicts.inc()
        scope = scope_of(origin.client_id, message)
        origin = origin._replace(client_id=scope, replay=None)
        again = Sending(origin, [message], len(message.body), sending.line, (), sending.kind)
        is_later = sending.is_timed and is_to_wait(again.due_ms(), self._engine.date_ms())
        stored, row = _placed(await self._submitted(again, is_held=is_later))
        if row in stored.conflicts:
            raise MessageIdConflict.of_message(message.message_id)
        return stored.queue_ids[row], stored.offsets[row]


def _placed(place: Place) -> tuple[Produced, int]:
    """Return a command's result, and the position of a request's first row in it."""
    stored, first = place
    if not isinstance(stored, Produced):
        raise TypeError(f"PRODUCE answered {stored!r}")
    return stored, first


def _unsure(stored: Produced) -> list[int]:
    """Return the rows whose ids were used before.

    Not those of a replay that are known by their sequence, and of which nothing says where they
    are: their offset is -1.
    """
    return [*stored.conflicts, *(row for row in stored.repeats if stored.offsets[row] != NOWHERE)]


def _plain_response(
    sending: Sending, stored: Produced, first: int
) -> service.SendMessageResponse | None:
    """Return the response, unless an id of the command's messages was used before."""
    if stored.repeats or stored.conflicts:
        return None
    messages = sending.messages
    return response_of(messages, stored.offsets[first : first + len(messages)])


def _handles(secret: bytes, topic: Topic) -> RecallHandles:
    return RecallHandles(secret, topic=topic.name, generation=topic.generation)


def _timed_response(
    sending: Sending, places: Sequence[tuple[int, int]], handles: RecallHandles
) -> service.SendMessageResponse:
    """Return the response for messages with a time: a handle for each that is held."""
    response = response_of(sending.messages, [-1 if q == HELD_QUEUE else o for q, o in places])
    for entry, (queue_id, offset) in zip(response.entries, places, strict=True):
        if queue_id == HELD_QUEUE:
            entry.recall_handle = handles.encode(Ref.unpack(offset), entry.message_id)
    return response


# An SDK builds ids from its machine's address, its process id, the time and a counter: anyone who
# has seen some ids can guess others, and use them first (docs/adr/0020). So if the deduplication
# window reports a message as a repetition, the stored message is read and compared. A message whose
# id is taken by a different one is stored in a scope named by a digest of all that consumers see of
# it: a retry of the same message finds it there, and no other message matches.


def scope_of(client_id: str, message: Message) -> str:
    """Return the scope for a message whose id is taken in its client's own scope.

    No client may use such a client id (`names.is_scope`).
    """
    digest = blake2b(digest_size=SCOPE_DIGEST_BYTES)
    for part in _parts(message):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return f"{client_id}#{digest.hexdigest()}"


def _parts(message: Message) -> Iterator[bytes]:
    yield message.body
    yield bytes([message.encoding, len(message.keys)])
    yield message.tag.encode()
    yield from (key.encode() for key in message.keys)
    for name, value in sorted(message.properties.items()):
        yield name.encode()
        yield value.encode()
    if (typed := message.typed) is not None:
        yield typed.message_group.encode()
        yield struct.pack("<qi", typed.deliver_at_ms, typed.priority)


def is_same(message: Message, other: Message) -> bool:
    """Whether consumers see no difference; times and traces may differ between attempts."""
    return (
        message.body == other.body
        and message.encoding == other.encoding
        and message.tag == other.tag
        and message.keys == other.keys
        and message.properties == other.properties
        and message.typed == other.typed
    )


async def is_stored(
    engine: Engine, topic: str, queue_id: int, offset: int, message: Message
) -> bool:
    """Whether *message* is stored at that offset; assumed if it is gone from there by now.

    Raises:
        Unavailable: It cannot be read now.
    """
    try:
        place: HeldMessage | Position | None
        if queue_id == HELD_QUEUE:
            place = engine.state.held.find(Ref.unpack(offset))
        else:
            place = engine.state.topics.queue(topic, queue_id).locate(offset)
        if place is None:
            return True
        payload = place.payload
        entry = await engine.read_entry(payload.index)
        stored = ProduceFrame(entry.data, payload.start, payload.end).message(place.row)
    except OffsetOutOfRange:
        return True
    except MalformedCommandError:
        return False
    return is_same(message, stored)
