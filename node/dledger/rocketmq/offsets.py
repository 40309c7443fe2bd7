"""GetOffset, UpdateOffset, QueryOffset: where a group stands in a queue, and where queues end."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from dledger.broker.commands import SeekGroup
from dledger.broker.results import GroupSought
from dledger.broker.topics import Topic
from dledger.calls.caller import Caller
from dledger.checks.resources import client_id, group_name, topic_name
from dledger.errors import UnknownGroup
from dledger.requests.engine import Engine
from dledger.requests.places import Place, Places
from dledger.requests.topic_resolver import TopicResolver
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code, Rejected, ok
from dledger.types import MAX_NUMBER

_POLICY = definition.QueryOffsetPolicy


class Offsets:
    """Serves them on the leader."""

    def __init__(self, engine: Engine, resolver: TopicResolver) -> None:
        self._engine, self._resolver = engine, resolver
        self._places = Places(engine)

    async def get(
        self, request: service.GetOffsetRequest, caller: Caller
    ) -> service.GetOffsetResponse:
        """Return the lowest offset of a queue that a group has not consumed.

        Raises:
            UnknownTopic, UnknownGroup: There is none; a group that only reads nothing is not made.
        """
        client_id(caller)
        group, name = group_name(request.group), topic_name(request.message_queue.topic)
        await self._places.settle()
        groups = self._engine.state.groups
        topic = queue_of(request.message_queue, self._engine.state.topics.named(name))
        if not groups.exists(group):
            raise UnknownGroup(group)
        offset = groups.committed(group, topic.name, request.message_queue.id)
        return service.GetOffsetResponse(status=ok(), offset=offset)

    async def update(
        self, request: service.UpdateOffsetRequest, caller: Caller
    ) -> service.UpdateOffsetResponse:
        """Let a group go on from an offset of one queue; what it holds of that is not its any more.

        An offset that retention has passed is moved up, which the answer says. The group is made if
        there is none, as by its first ReceiveMessage.
        """
        client_id(caller)
        group, name = group_name(request.group), topic_name(request.message_queue.topic)
        await self._places.settle()
        topics = self._engine.state.topics
        topic = queue_of(request.message_queue, topics.named(name))
        queue_id = request.message_queue.id
        end = topics.queue(name, queue_id).end
        if not 0 <= request.offset <= end:
            raise Rejected(
                Code.ILLEGAL_OFFSET,
                f"queue {queue_id} of topic {name!r} ends at offset {end}: {request.offset}",
            )
        await self._resolver.group(group)
        command = SeekGroup(
            group=group,
            topic=name,
            generation=topic.generation,
            offsets=((queue_id, request.offset),),
        )
        result = await self._engine.propose(command.encode())
        if not isinstance(result, GroupSought):
            raise TypeError(f"SEEK_GROUP answered {result!r}")
        at = result.queues[0].offset
        if at == request.offset:
            return service.UpdateOffsetResponse(status=ok())
        said = f"moved up to offset {at}: what was before is not kept any more"
        return service.UpdateOffsetResponse(status=definition.Status(code=Code.OK, message=said))

    async def query(
        self, request: service.QueryOffsetRequest, caller: Caller
    ) -> service.QueryOffsetResponse:
        """Return where a queue begins or ends, or its first message of a time or later."""
        client_id(caller)
        name = topic_name(request.message_queue.topic)
        place = _place_of(request)
        await self._places.settle()
        topic = queue_of(request.message_queue, self._engine.state.topics.named(name))
        offset = await self._places.offset(topic, request.message_queue.id, place)
        return service.QueryOffsetResponse(status=ok(), offset=offset)


def queue_of(queue: definition.MessageQueue, topic: Topic) -> Topic:
    """Return the topic, if it has the queue. Raises Rejected (BAD_REQUEST)."""
    if not 0 <= queue.id < topic.queues:
        raise Rejected(
            Code.BAD_REQUEST,
            f"topic {topic.name!r} has queues 0 to {topic.queues - 1}: {queue.id}",
        )
    return topic


def _place_of(request: service.QueryOffsetRequest) -> Place:
    policy = request.query_offset_policy
    if policy == _POLICY.BEGINNING:
        return Place()
    if policy == _POLICY.END:
        return Place(at_end=True)
    if policy != _POLICY.TIMESTAMP:
        raise Rejected(Code.BAD_REQUEST, f"there is no policy {policy} for offsets")
    if not request.HasField("timestamp"):
        raise Rejected(Code.BAD_REQUEST, "an offset by TIMESTAMP needs a timestamp")
    return Place(stored_ms=_time_of(request.timestamp))


def _time_of(timestamp: Timestamp) -> int:
    milliseconds = timestamp.seconds * 1000 + timestamp.nanos // 1_000_000
    if not 0 <= milliseconds < MAX_NUMBER:
        raise Rejected(Code.BAD_REQUEST, f"there is no time {milliseconds} ms since 1970")
    return int(milliseconds)
