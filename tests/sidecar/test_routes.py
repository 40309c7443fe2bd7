"""Routes lead to the sidecar, whatever the group told; made up is what was named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import InvalidArgument
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code, ok
from dledger.sidecar.routes import (
    Here,
    named_topics,
    rewritten_assignment,
    rewritten_route,
    route_while_away,
)

HERE = Here("127.0.0.1", 18081)
TOPIC = definition.Resource(resource_namespace="ns", name="orders")


def queue(number: int, *ports: int, broker: str = "orders") -> definition.MessageQueue:
    """Return a queue as a node tells it."""
    addresses = [definition.Address(host="10.0.0.1", port=port) for port in ports]
    return definition.MessageQueue(
        topic=TOPIC,
        id=number,
        permission=definition.Permission.READ_WRITE,
        broker=definition.Broker(
            name=broker,
            endpoints=definition.Endpoints(
                scheme=definition.AddressScheme.IPv4, addresses=addresses
            ),
        ),
        accept_message_types=[definition.MessageType.NORMAL],
    )


def addresses(queues: object) -> set[tuple[str, int]]:
    """Return all addresses of a route."""
    return {(a.host, a.port) for each in queues for a in each.broker.endpoints.addresses}  # type: ignore[attr-defined]


@given(st.lists(st.tuples(st.integers(0, 7), st.lists(st.integers(1, 65535), max_size=3))))
def test_a_route_names_the_sidecar_alone(told: list[tuple[int, list[int]]]) -> None:
    """Each queue once, with all else that the group said of it."""
    response = service.QueryRouteResponse(
        status=ok(), message_queues=[queue(number, *ports) for number, ports in told]
    )

    mine = service.QueryRouteResponse.FromString(
        rewritten_route(response.SerializeToString(), HERE)
    )

    assert addresses(mine.message_queues) <= {("127.0.0.1", 18081)}
    assert sorted(each.id for each in mine.message_queues) == sorted({number for number, _ in told})
    assert mine.status == ok()
    assert all(each.topic == TOPIC for each in mine.message_queues)
    assert all(list(each.accept_message_types) == [1] for each in mine.message_queues)


def test_an_assignment_names_the_sidecar_alone() -> None:
    """Nodes name themselves as brokers to some SDKs: each queue is polled once here."""
    response = service.QueryAssignmentResponse(
        status=ok(),
        assignments=[
            definition.Assignment(message_queue=queue(0, 1, broker=name)) for name in ("a", "b")
        ],
    )

    mine = service.QueryAssignmentResponse.FromString(
        rewritten_assignment(response.SerializeToString(), HERE)
    )

    assert addresses(each.message_queue for each in mine.assignments) == {("127.0.0.1", 18081)}
    assert len(mine.assignments) == 1


def test_a_named_topic_has_a_route_of_one_queue_while_the_group_is_away() -> None:
    """Go and Java do not start without one."""
    made = route_while_away(TOPIC, None, {"orders": "NORMAL"}, HERE)

    assert made is not None
    route = service.QueryRouteResponse.FromString(made)
    assert route.status.code == Code.OK
    assert [(each.id, each.topic) for each in route.message_queues] == [(0, TOPIC)]
    assert addresses(route.message_queues) == {("127.0.0.1", 18081)}


def test_what_the_group_told_goes_before_what_was_named() -> None:
    """And a topic that nobody knows has no route."""
    told = service.QueryRouteResponse(status=ok(), message_queues=[queue(3, 1)])

    cached = route_while_away(TOPIC, told.SerializeToString(), {"orders": "NORMAL"}, HERE)
    unknown = route_while_away(TOPIC, None, {"prices": "NORMAL"}, HERE)

    assert cached is not None
    assert [q.id for q in service.QueryRouteResponse.FromString(cached).message_queues] == [3]
    assert unknown is None


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("orders", "takes NAME:TYPE"),
        ("or ders:NORMAL", "must be 1 to 127"),
        ("orders:LITE", "the group has no type 'LITE'; it has DELAY, FIFO, NORMAL, PRIORITY"),
        ("orders:", "the group has no type ''"),
    ],
)
def test_a_topic_that_cannot_be_named_is_refused(option: str, why: str) -> None:
    """At the start, and not when the group is away."""
    with pytest.raises(InvalidArgument, match=why):
        named_topics([option])


def test_topics_are_named_once_or_alike() -> None:
    """NAME:TYPE."""
    assert named_topics(["a:NORMAL", "b:NORMAL", "a:NORMAL"]) == {"a": "NORMAL", "b": "NORMAL"}
