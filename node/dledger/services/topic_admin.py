"""The Admin service's calls about topics and their messages; of groups: `group_admin`.

Served by the leader, whose state is current. It translates, and decides nothing.
"""

from __future__ import annotations

from functools import partial

import grpc

from dledger.broker.commands import DeleteTopic, GrowTopic, SetRetention
from dledger.broker.results import RetentionSet, TopicDeleted, TopicGrown
from dledger.common.metrics import NodeMetrics
from dledger.requests.engine import Engine
from dledger.requests.topic_resolver import TopicResolver
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.admin_port import admin_service, at_leader
from dledger.services.erasing import Eraser, Older, Wanted
from dledger.services.finding import Finder, Sought
from dledger.services.group_message import Turns, backlog_message
from dledger.services.record_message import record_message
from dledger.services.topic_message import topic_message


class TopicAdminServicer:
    """Describes, grows, keeps, erases from and deletes topics."""

    def __init__(self, engine: Engine, resolver: TopicResolver, metrics: NodeMetrics) -> None:
        self._engine, self._resolver = engine, resolver
        self._eraser, self._finder = Eraser(engine, metrics), Finder(engine)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to register on the peer port's server, beside `AdminServicer`'s."""
        here = partial(at_leader, self._engine)
        return admin_service(
            {
                "DescribeTopic": (pb.DescribeTopicRequest, here(self._describe_topic)),
                "GrowTopic": (pb.GrowTopicRequest, here(self._grow_topic)),
                "SetTopicRetention": (pb.SetTopicRetentionRequest, here(self._set_retention)),
                "DeleteTopic": (pb.DeleteTopicRequest, here(self._delete_topic)),
                "Erase": (pb.EraseRequest, here(self._erase)),
                "FindMessages": (pb.FindMessagesRequest, here(self._find)),
                "ListErasures": (pb.ListErasuresRequest, here(self._list_erasures)),
            }
        )

    async def _describe_topic(self, request: pb.DescribeTopicRequest) -> pb.DescribeTopicResponse:
        state = self._engine.state
        topic = state.topics.named(request.name)
        response = pb.DescribeTopicResponse(
            topic=topic_message(state.topics, topic),
            generation=topic.generation,
            in_use=self._resolver.is_in_use(topic.name),
            made_again_queues=self._resolver.made_again_queues,
        )
        turns = Turns()
        for group in state.groups.readers_of(topic.name):
            if state.groups.exists(group):
                response.backlogs.append(backlog_message(state.groups.backlog(group, topic.name)))
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

    async def _find(self, request: pb.FindMessagesRequest) -> pb.FindMessagesResponse:
        looked = await self._finder.find(
            Sought(
                topic=request.topic,
                generation=request.generation,
                queue_id=request.queue_id,
                first=request.start_offset,
                end=request.end_offset,
                message_id=request.message_id,
                key=request.key,
            )
        )
        response = pb.FindMessagesResponse(
            generation=looked.generation, next_offset=looked.next, end_offset=looked.end
        )
        for each in looked.found:
            response.records.append(
                record_message(
                    each.message,
                    offset=each.offset,
                    index=each.entry,
                    stored_at_ms=each.stored_at_ms,
                )
            )
        return response

    async def _list_erasures(self, request: pb.ListErasuresRequest) -> pb.ListErasuresResponse:
        del request
        return pb.ListErasuresResponse(
            erasures=[pb.Erasure(**each._asdict()) for each in self._engine.state.erasures],
            first_index=self._engine.state.first_index,
            retention_hours=self._resolver.retention_hours,
        )
