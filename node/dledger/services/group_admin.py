"""The Admin service's calls about consumer groups.

Served by the leader, whose state is current. What is asked for by time is found here, before a
command is proposed: a command has offsets and entries, which are the same on every node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import grpc

from dledger.broker.commands import CreateGroup, DeleteGroup, SeekGroup
from dledger.broker.results import GroupCreated, GroupSought, SoughtQueue
from dledger.broker.topics import Topic
from dledger.errors import InvalidArgument, UnknownGroup
from dledger.requests.engine import Engine
from dledger.requests.places import Place, Places
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.admin_port import admin_service, at_leader
from dledger.services.group_message import Turns, backlog_message, replace_surrogates


class GroupAdminServicer:
    """Lists, describes, makes and deletes groups, and lets them go on from elsewhere.

    Args:
        engine: The node.
        is_alive: Whether a client called lately.
    """

    def __init__(self, engine: Engine, is_alive: Callable[[str], bool]) -> None:
        self._engine, self._is_alive = engine, is_alive
        self._places = Places(engine)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to register on the peer port's server, beside `AdminServicer`'s."""
        here = partial(at_leader, self._engine)
        return admin_service(
            {
                "ListGroups": (pb.ListGroupsRequest, here(self._list)),
                "DescribeGroup": (pb.DescribeGroupRequest, here(self._describe)),
                "CreateGroup": (pb.CreateGroupRequest, here(self._create)),
                "DeleteGroup": (pb.DeleteGroupRequest, here(self._delete)),
                "SeekGroup": (pb.SeekGroupRequest, here(self._seek)),
            }
        )

    async def _list(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        del request
        response, state, turns = pb.ListGroupsResponse(), self._engine.state, Turns()
        for name in state.groups.names():
            topics = state.groups.topics_of(name)
            backlogs = [backlog_message(state.groups.backlog(name, topic)) for topic in topics]
            if state.groups.exists(name):
                response.groups.add(name=name, backlogs=backlogs)
            await turns.looked_at(1 + sum(state.topics.named(topic).queues for topic in topics))
        return response

    async def _describe(self, request: pb.DescribeGroupRequest) -> pb.DescribeGroupResponse:
        """Say how far a group is, who holds what, and which filters its members ask with."""
        state, name, turns = self._engine.state, request.name, Turns()
        if not state.groups.exists(name):
            raise UnknownGroup(name)
        response = pb.DescribeGroupResponse(begins_at_ms=state.groups.begins_at_ms(name))
        held = Counter[str]()
        for topic in state.groups.topics_of(name):
            if not state.groups.exists(name) or state.topics.get(topic) is None:
                continue
            response.backlogs.append(backlog_message(state.groups.backlog(name, topic)))
            for text in state.groups.filters_of(name, topic):
                response.filters.add(topic=topic, filter=replace_surrogates(text))
            for queue_id, queue in enumerate(state.topics.queues(topic)):
                progress = state.groups.progress(name, topic, queue_id)
                response.queues.add(
                    topic=topic,
                    queue_id=queue_id,
                    first=queue.first,
                    end=queue.end,
                    committed=progress.committed,
                    next=progress.next,
                    lag=queue.count_from(progress.committed),
                    held=progress.held.total(),
                )
                held += progress.held
            await turns.looked_at(len(state.topics.queues(topic)))
        for client, leases in sorted(held.items()):
            alive = bool(client) and self._is_alive(client)
            response.members.add(client_id=replace_surrogates(client), held=leases, alive=alive)
        return response

    async def _create(self, request: pb.CreateGroupRequest) -> pb.CreateGroupResponse:
        place = _place_of(request.begin)
        await self._places.settle()
        beginning = await self._places.beginning(place)
        command = CreateGroup(name=request.name, beginning=beginning)
        result = await self._engine.propose(command.encode())
        if not isinstance(result, GroupCreated):
            raise TypeError(f"CREATE_GROUP answered {result!r}")
        return pb.CreateGroupResponse(created=result.created)

    async def _delete(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        await self._engine.propose(DeleteGroup(name=request.name).encode())
        return pb.DeleteGroupResponse()

    async def _seek(self, request: pb.SeekGroupRequest) -> pb.SeekGroupResponse:
        place = _place_of(request.to)
        await self._places.settle()
        topic = self._engine.state.topics.named(request.topic)
        queue_ids = self._queues_of(topic, request)
        if not self._engine.state.groups.exists(request.group):
            raise UnknownGroup(request.group)
        asked = [(each, await self._places.offset(topic, each, place)) for each in queue_ids]
        command = SeekGroup(
            group=request.group,
            topic=topic.name,
            generation=topic.generation,
            offsets=tuple(asked),
        )
        groups = self._engine.state.groups
        if request.only_look:
            sought: object = groups.would_seek(command)
        else:
            sought = await self._engine.propose(command.encode())
        if not isinstance(sought, GroupSought):
            raise TypeError(f"SEEK_GROUP answered {sought!r}")
        rows = zip(sought.queues, asked, strict=True)
        return pb.SeekGroupResponse(
            queues=[self._queue_message(topic, each, offset) for each, (_, offset) in rows]
        )

    def _queues_of(self, topic: Topic, request: pb.SeekGroupRequest) -> range:
        if not request.HasField("queue_id"):
            return range(topic.queues)
        if not 0 <= request.queue_id < topic.queues:
            raise InvalidArgument(
                f"topic {topic.name!r} has queues 0 to {topic.queues - 1}: {request.queue_id}"
            )
        return range(request.queue_id, request.queue_id + 1)

    def _queue_message(self, topic: Topic, each: SoughtQueue, asked: int) -> pb.SoughtQueue:
        topics, unread = self._engine.state.topics, 0
        if topics.is_there(topic):
            unread = topics.queue(topic.name, each.queue_id).count_from(each.offset)
        return pb.SoughtQueue(
            queue_id=each.queue_id,
            before=each.before,
            offset=each.offset,
            held=each.held,
            asked=asked,
            unread=unread,
        )


def _place_of(place: pb.Place) -> Place:
    """Return a place that there may be. Raises InvalidArgument."""
    at = place.WhichOneof("at")
    found = Place(
        at_end=at == "newest" and place.newest,
        stored_ms=place.stored_ms if at == "stored_ms" else None,
        offset=place.offset if at == "offset" else None,
    )
    found.check()
    return found
