"""QueryRoute and QueryAssignment: which queues a topic has, and at which nodes."""

from __future__ import annotations

from typing import Any

from dledger.broker.topics import Topic
from dledger.rpc.engine import Engine
from dledger.rpc.forward import Caller
from dledger.rpc.gateway.catalog import Catalog
from dledger.rpc.gateway.config import GatewayConfig
from dledger.rpc.gateway.names import group_name, topic_name
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import ok

_VERIFYING_LANGUAGE = "PYTHON"
"""The one SDK that verifies the certificates of brokers; the others accept any."""


class Router:
    """Serves routes on any node that knows the topic, on the leader if it is to be created."""

    def __init__(self, engine: Engine, catalog: Catalog, config: GatewayConfig) -> None:
        self._engine, self._catalog, self._config = engine, catalog, config

    def is_known(self, request: Any) -> bool:
        """Whether this node can answer by itself, leader or not."""
        return self._engine.state.topics.get(topic_name(request.topic)) is not None

    async def route(self, request: Any, caller: Caller) -> Any:
        """Return the topic's queues."""
        queues = await self._queues(request.topic, caller)
        return service.QueryRouteResponse(status=ok(), message_queues=queues)

    async def assignment(self, request: Any, caller: Caller) -> Any:
        """Return the queues a push consumer shall poll: all of them.

        Members of a group share the messages, not the queues, so none has to wait until the
        queues of another, which is gone, are given to it.
        """
        group_name(request.group)
        queues = await self._queues(request.topic, caller)
        assignments = [definition.Assignment(message_queue=queue) for queue in queues]
        return service.QueryAssignmentResponse(status=ok(), assignments=assignments)

    async def _queues(self, resource: Any, caller: Caller) -> list[Any]:
        name = topic_name(resource)
        topic = await self._catalog.topic(name)
        addresses = addresses_of(self._engine, tls=caller.tls)
        if caller.tls and caller.language == _VERIFYING_LANGUAGE:
            return message_queues(self._engine.group, topic, resource, _one_each(addresses))
        return message_queues(self._engine.group, topic, resource, [addresses])


def message_queues(group: str, topic: Topic, resource: Any, sets: list[list[Any]]) -> list[Any]:
    """Return the protocol's form of a topic's queues; the *sets* of addresses go round.

    Usually there is one set: every queue names all nodes, in a stable order. An SDK keys its
    channel by that set, and finds the next node in it by itself when one dies.
    """
    scheme = definition.AddressScheme.IPv4
    endpoints = [definition.Endpoints(scheme=scheme, addresses=addresses) for addresses in sets]
    return [
        definition.MessageQueue(
            topic=resource,
            id=queue_id,
            permission=definition.Permission.READ_WRITE,
            broker=definition.Broker(
                name=group, id=0, endpoints=endpoints[queue_id % len(endpoints)]
            ),
            accept_message_types=[definition.MessageType.Value(topic.type)],
        )
        for queue_id in range(topic.queues)
    ]


def addresses_of(engine: Engine, *, tls: bool) -> list[Any]:
    """Return where clients reach the nodes, sorted by name, by the kind of port they use."""
    found = sorted(engine.endpoints(), key=lambda endpoint: endpoint.name)
    ports = ((each.host, each.tls_port if tls else each.port) for each in found)
    return [definition.Address(host=host, port=port) for host, port in ports if port]


def _one_each(addresses: list[Any]) -> list[list[Any]]:
    """Return a set for each address.

    gRPC takes a list of addresses for one host name, which no certificate has, so an SDK that
    verifies certificates needs one address a queue; its retries go to the next queue.
    """
    return [[address] for address in addresses]
