"""``dledger.v1.Topics``: create topics through the log, list them from this node's state."""

from __future__ import annotations

from typing import Any, Final

import grpc

from dledger.broker.commands import CreateTopic
from dledger.broker.results import TopicCreated
from dledger.broker.topics import NORMAL
from dledger.checks.names import check_may_be_made
from dledger.rpc.methods import Methods
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.native import NativeHandlers

SERVICE_NAME: Final = "dledger.v1.Topics"
_LIST_TOPICS: Final = "Topics/ListTopics"


class TopicsHandlers(NativeHandlers):
    """The service at one port of a node."""

    def generic_handler(self) -> Methods:
        """Return the handler to add to a server."""
        create = self._at_leader(
            f"/{SERVICE_NAME}/CreateTopic", pb.CreateTopicRequest, self._create_topic
        )
        return Methods(
            SERVICE_NAME,
            {
                "CreateTopic": grpc.stream_unary_rpc_method_handler(create),
                "ListTopics": grpc.stream_stream_rpc_method_handler(self._list_topics),
            },
        )

    async def _create_topic(self, request: pb.CreateTopicRequest) -> pb.CreateTopicResponse:
        check_may_be_made(request.name)
        queues = request.queues or self._context.config.default_queues
        command = CreateTopic(name=request.name, type=request.type or NORMAL.name, queues=queues)
        result = await self._engine.propose(command.encode())
        if not isinstance(result, TopicCreated):
            raise TypeError(f"CREATE_TOPIC answered {result!r}")
        return pb.CreateTopicResponse(created=result.created)

    async def _list_topics(self, _: Any, context: Any) -> None:
        """Write the one answer: it may be large, so it has room until it has left."""
        state = self._engine.state
        topics = [
            pb.Topic(
                name=topic.name,
                type=topic.type,
                queues=topic.queues,
                messages=state.topics.messages(topic.name),
            )
            for topic in state.topics.all()
        ]
        self._answered(_LIST_TOPICS)
        answer = pb.ListTopicsResponse(topics=topics).SerializeToString()
        connection = "" if self._peer_port else context.peer()
        async with self._context.outflow.room(connection, len(answer)):
            await context.write(answer)
