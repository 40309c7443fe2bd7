"""QueryRoute and QueryAssignment: which queues a topic has, and at which nodes."""

from __future__ import annotations

from typing import Any

from dledger.broker.topics import Topic
from dledger.errors import UnknownGroup
from dledger.rpc.engine import Engine
from dledger.rpc.forward import Caller
from dledger.rpc.gateway.catalog import Catalog
from dledger.rpc.gateway.config import GatewayConfig
from dledger.rpc.gateway.names import group_name, topic_name
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import ok


class Router:
    """Serves routes on any node that knows the topic, on the leader if it is to be created."""

    def __init__(self, engine: Engine, catalog: Catalog, config: GatewayConfig) -> None:
        self._engine, self._catalog, self._config = engine, catalog, config

    def is_known(self, request: Any) -> bool:
        """Whether this node can answer by itself, leader or not."""
        return self._engine.state.topic(topic_name(request.topic)) is not None

    async def route(self, request: Any, caller: Caller) -> Any:
        """Return the topic's queues."""
        queues = await self._queues(request.topic, caller)
        return service.QueryRouteResponse(status=ok(), message_queues=queues)

    async def assignment(self, request: Any, caller: Caller) -> Any:
        """Return the queues a push consumer shall poll: all of them.

        Members of a group share the messages, not the queues, so none has to wait until the
        queues of another, which is gone, are given to it.
        """
        group = group_name(request.group)
        queues = await self._queues(request.topic, caller)
        if not (self._config.auto_create or self._engine.state.has_group(group)):
            raise UnknownGroup(group)
        assignments = [definition.Assignment(message_queue=queue) for queue in queues]
        return service.QueryAssignmentResponse(status=ok(), assignments=assignments)

    async def _queues(self, resource: Any, caller: Caller) -> list[Any]:
        name = topic_name(resource)
        topic = self._engine.state.topic(name) or await self._catalog.topic(name)
        return message_queues(self._engine, topic, resource, tls=caller.tls)


def message_queues(engine: Engine, topic: Topic, resource: Any, *, tls: bool) -> list[Any]:
    """Return the protocol's form of a topic's queues.

    Every queue names all nodes, in a stable order, in one set of IPv4 endpoints: an SDK keys its
    channel by that set, and finds the next node by itself when one dies.
    """
    broker = definition.Broker(name=engine.group, id=0, endpoints=endpoints(engine, tls=tls))
    return [
        definition.MessageQueue(
            topic=resource,
            id=queue_id,
            permission=definition.Permission.READ_WRITE,
            broker=broker,
            accept_message_types=[definition.MessageType.Value(topic.type)],
        )
        for queue_id in range(topic.queues)
    ]


def endpoints(engine: Engine, *, tls: bool) -> Any:
    """Return where clients reach the nodes, by the kind of port that they use."""
    found = sorted(engine.endpoints(), key=lambda endpoint: endpoint.name)
    ports = ((each.host, each.tls_port if tls else each.port) for each in found)
    addresses = [definition.Address(host=host, port=port) for host, port in ports if port]
    return definition.Endpoints(scheme=definition.AddressScheme.IPv4, addresses=addresses)
