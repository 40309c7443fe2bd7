"""``dledger.v1.Topics``: create topics through the log, list them from this node's state."""

from __future__ import annotations

from typing import Final

from dledger.broker.commands import CreateTopic
from dledger.broker.results import TopicCreated
from dledger.broker.topics import NORMAL, Compaction, check_served
from dledger.calls.caller import Caller
from dledger.calls.service import Service
from dledger.checks.names import check_may_be_made
from dledger.door.contract import Stream
from dledger.requests.context import RequestContext
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.native import NativeHandlers, native_method, native_stream
from dledger.services.topic_message import topic_message

SERVICE_NAME: Final = "dledger.v1.Topics"


class TopicsHandlers(NativeHandlers):
    """The service at one port of a node."""

    def __init__(self, context: RequestContext, *, tls: bool, peer_port: bool) -> None:
        super().__init__(context, tls=tls, peer_port=peer_port)
        self._listing = native_stream(
            f"/{SERVICE_NAME}/ListTopics", pb.ListTopicsRequest, self._list_topics
        )

    def service(self) -> Service:
        """Return its methods."""
        path = f"/{SERVICE_NAME}/CreateTopic"
        create = native_method(path, pb.CreateTopicRequest, self._create_topic)
        return Service(self._pipeline, [create, self._listing])

    async def _create_topic(
        self, request: pb.CreateTopicRequest, _: Caller
    ) -> pb.CreateTopicResponse:
        check_may_be_made(request.name)
        kind = request.type or NORMAL.name
        check_served(kind)
        queues = request.queues or self._context.config.default_queues
        command = CreateTopic(
            name=request.name,
            type=kind,
            queues=queues,
            compaction=_compaction(request.compaction) if request.HasField("compaction") else None,
        )
        result = await self._engine.propose(command.encode())
        if not isinstance(result, TopicCreated):
            raise TypeError(f"CREATE_TOPIC answered {result!r}")
        return pb.CreateTopicResponse(created=result.created)

    async def _list_topics(self, caller: Caller, stream: Stream) -> None:
        """Write the one answer: it may be large, so it has room until it has left."""
        state = self._engine.state
        topics = [topic_message(state.topics, topic) for topic in state.topics.all()]
        self._answered(self._listing)
        answer = pb.ListTopicsResponse(topics=topics).SerializeToString()
        async with self._context.outflow.room(caller.connection, len(answer)):
            await stream.send(answer)


def _compaction(asked: pb.Compaction) -> Compaction:
    """Return what is asked for; times that are not set are as usual: 0 would drop at once."""
    return Compaction(**{field.name: value for field, value in asked.ListFields()})
