"""QueryRoute and QueryAssignment: a topic's queues, and the nodes that serve them.

SDKs differ in how they use a list of addresses; `takes_one_address` is the rule for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dledger.broker.topics import TYPES, Topic
from dledger.calls.caller import Caller
from dledger.checks.resources import group_name, topic_name
from dledger.requests.config import RequestConfig
from dledger.requests.engine import ClientEndpoint, Engine
from dledger.requests.topic_resolver import TopicResolver
from dledger.rocketmq.long_polls import ANY_QUEUE
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import ok
from dledger.types import NodeId

_ONE_ADDRESS: Final = frozenset({"HTTP"})
"""SDKs, by the language they state, that can use one address of a broker, whatever the port.

The Node.js SDK, which states HTTP, joins a list of addresses into one host name that does not
resolve.
"""
_ONE_ADDRESS_OVER_TLS: Final = frozenset({"PYTHON"})
"""SDKs with that limit over TLS only: gRPC verifies a list of addresses as one host name, which no
certificate has. Rust verifies certificates too, but connects to each address separately; Java, Go
and C++ accept any certificate."""


class Router:
    """Serves routes on any node that knows the topic, on the leader if it is to be created."""

    def __init__(self, engine: Engine, resolver: TopicResolver, config: RequestConfig) -> None:
        self._engine, self._resolver, self._config = engine, resolver, config

    def is_known(self, request: service.QueryRouteRequest | service.QueryAssignmentRequest) -> bool:
        """Whether this node can answer without the leader.

        A client keeps using the addresses in its route, so a node that lacks some asks the leader.
        """
        if not self._engine.knows_members() and self._engine.leader() is not None:
            return False
        return self._engine.state.topics.get(topic_name(request.topic)) is not None

    async def route(
        self, request: service.QueryRouteRequest, caller: Caller
    ) -> service.QueryRouteResponse:
        """Return the topic's queues."""
        queues = await self._queues(request.topic, caller)
        return service.QueryRouteResponse(status=ok(), message_queues=queues)

    async def assignment(
        self, request: service.QueryAssignmentRequest, caller: Caller
    ) -> service.QueryAssignmentResponse:
        """Return the queues that a push consumer should poll: all of them.

        Consumers of a group share messages rather than queues, so none has to wait until the
        queues of a dead consumer are reassigned. Where the highest queue comes first, they are
        polled as one, as RocketMQ has it: what waits in the client waits before what is urgent.
        """
        group_name(request.group)
        queues = await self._queues(request.topic, caller, to_poll=True)
        assignments = [definition.Assignment(message_queue=queue) for queue in queues]
        return service.QueryAssignmentResponse(status=ok(), assignments=assignments)

    async def _queues(
        self, resource: definition.Resource, caller: Caller, *, to_poll: bool = False
    ) -> list[definition.MessageQueue]:
        name = topic_name(resource)
        topic = await self._resolver.topic(name)
        nodes = self._engine.endpoints()
        if takes_one_address(caller):
            brokers = as_brokers(self._engine.node_id, nodes, tls=caller.tls)
        else:
            brokers = [(self._engine.group, addresses_of(nodes, tls=caller.tls))]
        as_one = to_poll and TYPES[topic.type].highest_first
        queue_ids = range(ANY_QUEUE, 0) if as_one else range(topic.queues)
        return message_queues(topic, resource, brokers, queue_ids=queue_ids)


def takes_one_address(caller: Caller) -> bool:
    """Whether the caller's SDK can use one address of a broker only; the others get them all."""
    return caller.language in _ONE_ADDRESS or (
        caller.tls and caller.language in _ONE_ADDRESS_OVER_TLS
    )


def message_queues(
    topic: Topic,
    resource: definition.Resource,
    brokers: Sequence[tuple[str, Sequence[definition.Address]]],
    *,
    queue_ids: range | None = None,
) -> list[definition.MessageQueue]:
    """Return a topic's queues in protocol form: each queue once per entry of *brokers*.

    They are those of *queue_ids*; None: all.
    A broker is a name and its addresses. Usually the group is the only broker, and every queue
    names all nodes in a stable order: an SDK keys its channel by that set, and fails over to the
    next node in it by itself.
    """
    scheme = definition.AddressScheme.IPv4
    places = [
        definition.Broker(
            name=name, id=0, endpoints=definition.Endpoints(scheme=scheme, addresses=addresses)
        )
        for name, addresses in brokers
    ]
    return [
        definition.MessageQueue(
            topic=resource,
            id=queue_id,
            permission=definition.Permission.READ_WRITE,
            broker=broker,
            accept_message_types=[definition.MessageType.Value(topic.type)],
        )
        for queue_id in (range(topic.queues) if queue_ids is None else queue_ids)
        for broker in places
    ]


def addresses_of(nodes: Iterable[ClientEndpoint], *, tls: bool) -> list[definition.Address]:
    """Return the client addresses of *nodes*, in order, for TLS or plaintext ports."""
    ports = ((node.host, node.tls_port if tls else node.port) for node in nodes)
    return [definition.Address(host=host, port=port) for host, port in ports if port]


def as_brokers(
    answering: NodeId, nodes: Sequence[ClientEndpoint], *, tls: bool
) -> list[tuple[str, list[definition.Address]]]:
    """Return each node as a broker of its own: the one that answers, then the rest as they stand.

    So a consumer polls every queue through every node, none waits for one that is down, and a
    producer's retry goes to the next node. The Node.js SDK asks only the first broker for
    assignments, and sends only to queues with the id 0: one that answers now comes first, and every
    node has such a queue. A node that this one does not hear is left out, as each of its turns is
    an error to the caller; but not where so few are heard that it is this one that is cut off.
    """
    heard = [node for node in nodes if node.heard]
    useful = heard if 2 * len(heard) > len(nodes) else nodes
    here_first = sorted(useful, key=lambda node: node.node_id != answering)
    brokers = ((node.name, addresses_of([node], tls=tls)) for node in here_first)
    return [(name, addresses) for name, addresses in brokers if addresses]
