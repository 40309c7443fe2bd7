"""The routes that clients get: the group's, with the sidecar's own address, or made up.

Pure. An SDK sends to the addresses in its route, so that with the group's it would go round the
sidecar. Used by `passing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dledger.broker.topics import SERVED
from dledger.checks.names import check_name
from dledger.errors import InvalidArgument
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import ok

_BROKER: Final = "dledger-spool"


@dataclass(frozen=True, slots=True)
class Here:
    """Where clients reach the sidecar: a host and a port, as they are to dial it."""

    host: str
    port: int


def named_topics(options: Iterable[str]) -> dict[str, str]:
    """Return the type of each topic that ``--topic NAME:TYPE`` names.

    Raises:
        InvalidArgument: It is not of that form, no valid name, a type that the group does not have,
            or named twice with different types.
    """
    named: dict[str, str] = {}
    for option in options:
        name, colon, kind = option.partition(":")
        if not colon:
            raise InvalidArgument(f"--topic takes NAME:TYPE, not {option!r}")
        check_name("topic", name)
        if kind not in SERVED:
            raise InvalidArgument(
                f"topic {name}: the group has no type {kind!r}; it has {', '.join(sorted(SERVED))}"
            )
        if named.setdefault(name, kind) != kind:
            raise InvalidArgument(f"topic {name} is named twice: {named[name]} and {kind}")
    return named


def rewritten_route(answer: bytes, here: Here) -> bytes:
    """Return a route with the sidecar's address alone. Raises DecodeError."""
    response = service.QueryRouteResponse.FromString(answer)
    queues = _rewritten(response.message_queues, here)
    del response.message_queues[:]
    response.message_queues.extend(queues)
    return bytes(response.SerializeToString())


def rewritten_assignment(answer: bytes, here: Here) -> bytes:
    """Return an assignment with the sidecar's address alone. Raises DecodeError."""
    response = service.QueryAssignmentResponse.FromString(answer)
    queues = _rewritten((each.message_queue for each in response.assignments), here)
    assignments = [definition.Assignment(message_queue=queue) for queue in queues]
    del response.assignments[:]
    response.assignments.extend(assignments)
    return bytes(response.SerializeToString())


def _rewritten(
    queues: Iterable[definition.MessageQueue], here: Here
) -> list[definition.MessageQueue]:
    """Return each queue once: SDKs that use one address of a broker get a broker a node."""
    kept: dict[int, definition.MessageQueue] = {}
    for queue in queues:
        if queue.id not in kept:
            mine = definition.MessageQueue()
            mine.CopyFrom(queue)
            mine.broker.CopyFrom(_broker(here))
            kept[queue.id] = mine
    return list(kept.values())


def made_up_route(topic: definition.Resource, kind: str, here: Here) -> bytes:
    """Return a route of one queue for a topic that the group was not asked for yet."""
    queue = definition.MessageQueue(
        topic=topic,
        id=0,
        permission=definition.Permission.READ_WRITE,
        broker=_broker(here),
        accept_message_types=[definition.MessageType.Value(kind)],
    )
    response = service.QueryRouteResponse(status=ok(), message_queues=[queue])
    return bytes(response.SerializeToString())


def _broker(here: Here) -> definition.Broker:
    endpoints = definition.Endpoints(
        scheme=definition.AddressScheme.IPv4,
        addresses=[definition.Address(host=here.host, port=here.port)],
    )
    return definition.Broker(name=_BROKER, id=0, endpoints=endpoints)


def route_while_away(
    topic: definition.Resource, cached: bytes | None, named: Mapping[str, str], here: Here
) -> bytes | None:
    """Return the route of a topic while the group is away; None: nobody has ever told of it.

    A misspelt topic would be accepted now and be refused days later, so nothing is made up for one
    that nobody has named.
    """
    if cached is not None:
        return rewritten_route(cached, here)
    kind = named.get(topic.name)
    return None if kind is None else made_up_route(topic, kind, here)


def unknown_topic(name: str) -> str:
    """Return the sentence for a topic of which nothing is known while the group is away."""
    return (
        f"the group is away, and topic {name!r} was never asked for through this spool: start it "
        f"with --topic {name}:TYPE to send to it before the group is back"
    )
