"""The Admin service's calls about topics, their messages and consumer groups.

Served by the leader, whose state is current. It translates, and decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc

from dledger.broker.commands import CreateGroup, DeleteGroup, DeleteTopic, GrowTopic, SetRetention
from dledger.broker.results import GroupCreated, RetentionSet, TopicDeleted, TopicGrown
from dledger.common.metrics import NodeMetrics
from dledger.common.status import Backlog
from dledger.errors import NotLeader
from dledger.requests.engine import Engine
from dledger.requests.topic_resolver import TopicResolver
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.admin_port import admin_service
from dledger.services.erasing import Eraser, Older, Wanted
from dledger.services.topic_message import topic_message

_Q = TypeVar("_Q")
_A = TypeVar("_A")
_QUEUES_IN_A_TURN: Final = 1_024
"""Queues that ListGroups visits before it yields the event loop, so that others are not blocked."""


class TopicAdminServicer:
    """Describes, grows, keeps, erases from and deletes topics; lists, makes and deletes groups."""

    def __init__(self, engine: Engine, resolver: TopicResolver, metrics: NodeMetrics) -> None:
        self._engine, self._resolver = engine, resolver
        self._eraser = Eraser(engine, metrics)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to register on the peer port's server, beside `AdminServicer`'s."""
        return admin_service(
            {
                "DescribeTopic": (pb.DescribeTopicRequest, self._at_leader(self._describe_topic)),
                "GrowTopic": (pb.GrowTopicRequest, self._at_leader(self._grow_topic)),
                "SetTopicRetention": (
                    pb.SetTopicRetentionRequest,
                    self._at_leader(self._set_retention),
                ),
                "DeleteTopic": (pb.DeleteTopicRequest, self._at_leader(self._delete_topic)),
                "ListGroups": (pb.ListGroupsRequest, self._at_leader(self._list_groups)),
                "CreateGroup": (pb.CreateGroupRequest, self._at_leader(self._create_group)),
                "DeleteGroup": (pb.DeleteGroupRequest, self._at_leader(self._delete_group)),
                "Erase": (pb.EraseRequest, self._at_leader(self._erase)),
                "ListErasures": (pb.ListErasuresRequest, self._at_leader(self._list_erasures)),
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

    async def _describe_topic(self, request: pb.DescribeTopicRequest) -> pb.DescribeTopicResponse:
        state = self._engine.state
        topic = state.topics.named(request.name)
        response = pb.DescribeTopicResponse(
            topic=topic_message(state.topics, topic),
            generation=topic.generation,
            in_use=self._resolver.is_in_use(topic.name),
            made_again_queues=self._resolver.made_again_queues,
        )
        turns = _Turns()
        for group in state.groups.readers_of(topic.name):
            if state.groups.exists(group):
                response.backlogs.append(_backlog(state.groups.backlog(group, topic.name)))
            await turns.looked_at(topic.queues)
        return response

    async def _grow_topic(self, request: pb.GrowTopicRequest) -> pb.GrowTopicResponse:
        command = GrowTopic(name=request.name, queues=request.queues)
        result = await self._engine.propose(command.encode())
        if not isinstance(result, TopicGrown):
            raise TypeError(f"GROW_TOPIC answered {result!r}")
        return pb.GrowTopicResponse(before=result.before)

    async def _set_retention(
        self, request: pb.SetTopicRetentionRequest
    ) -> pb.SetTopicRetentionResponse:
        hours = request.hours if request.HasField("hours") else None
        self._resolver.check_retention(request.name, hours)
        command = SetRetention(name=request.name, hours=hours)
        result = await self._engine.propose(command.encode())
        if not isinstance(result, RetentionSet):
            raise TypeError(f"SET_RETENTION answered {result!r}")
        return pb.SetTopicRetentionResponse(before=result.before, dropped=result.dropped)

    async def _delete_topic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        command = DeleteTopic(name=request.name, generation=request.generation)
        result = await self._engine.propose(command.encode())
        if not isinstance(result, TopicDeleted):
            raise TypeError(f"DELETE_TOPIC answered {result!r}")
        return pb.DeleteTopicResponse(messages=result.messages)

    async def _list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        del request
        response, state, turns = pb.ListGroupsResponse(), self._engine.state, _Turns()
        for name in state.groups.names():
            topics = state.groups.topics_of(name)
            backlogs = [_backlog(state.groups.backlog(name, topic)) for topic in topics]
            if state.groups.exists(name):
                response.groups.add(name=name, backlogs=backlogs)
            await turns.looked_at(1 + sum(state.topics.named(topic).queues for topic in topics))
        return response

    async def _create_group(self, request: pb.CreateGroupRequest) -> pb.CreateGroupResponse:
        result = await self._engine.propose(CreateGroup(name=request.name).encode())
        if not isinstance(result, GroupCreated):
            raise TypeError(f"CREATE_GROUP answered {result!r}")
        return pb.CreateGroupResponse(created=result.created)

    async def _delete_group(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        await self._engine.propose(DeleteGroup(name=request.name).encode())
        return pb.DeleteGroupResponse()

    async def _erase(self, request: pb.EraseRequest) -> pb.EraseResponse:
        if request.offsets:
            return await self._erase_older(request)
        erasing = await self._eraser.erase(
            Wanted(
                topic=request.topic,
                key=request.key,
                generation=request.generation,
                first=request.start_offset,
                end=request.end_offset,
                only_count=request.only_count,
            )
        )
        return pb.EraseResponse(
            generation=erasing.generation,
            messages=erasing.messages,
            first_entry=erasing.first_entry,
            erase_entry=erasing.erase_entry,
            next_offset=erasing.next,
            end_offset=erasing.end,
        )

    async def _erase_older(self, request: pb.EraseRequest) -> pb.EraseResponse:
        erased = await self._eraser.erase_older(
            Older(
                topic=request.topic,
                key=request.key,
                generation=request.generation,
                queue_id=request.queue_id,
                offsets=tuple(request.offsets),
                first_entry=request.first_entry,
                only_check=request.only_count,
            )
        )
        return pb.EraseResponse(
            generation=request.generation,
            messages=erased.messages,
            erase_entry=erased.entry,
            named=len(request.offsets),
        )

    async def _list_erasures(self, request: pb.ListErasuresRequest) -> pb.ListErasuresResponse:
        del request
        return pb.ListErasuresResponse(
            erasures=[pb.Erasure(**each._asdict()) for each in self._engine.state.erasures],
            first_index=self._engine.state.first_index,
            retention_hours=self._resolver.retention_hours,
        )


class _Turns:
    """Yields the event loop now and then; the state may change meanwhile."""

    def __init__(self) -> None:
        self._queues = 0

    async def looked_at(self, queues: int) -> None:
        """Return at once, or, after very many queues, in the next iteration of the loop."""
        self._queues += queues
        if self._queues >= _QUEUES_IN_A_TURN:
            self._queues = 0
            await asyncio.sleep(0)


def _backlog(backlog: Backlog) -> pb.Backlog:
    response = pb.Backlog(
        group=backlog.group, topic=backlog.topic, unread=backlog.unread, held=backlog.held
    )
    for each in backlog.filters:
        # JSON in the log allows lone surrogates, which a protobuf text does not.
        said = each.filter.encode("utf-8", "replace").decode()
        response.filters.add(filter=said, unread=each.unread, waits=each.waits)
    return response
