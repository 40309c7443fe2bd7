"""Followers forward, elections are waited out, and nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio
import pytest

from dledger.calls.caller import FORWARDED_KEY, Caller
from dledger.client import Client, OutcomeUnknown, Record
from dledger.errors import DiskFull, FaultyEntry, LeadershipLost, Overloaded, Unavailable
from dledger.replica.proposals import Command
from dledger.requests import forward
from dledger.rpc.error_table import ERROR_KEY
from dledger.rpc.metadata import by_key
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, service
from dledger.server.config import GRPC, NATIVE
from dledger.types import Entry
from tests.requests.memory_group import SOON_S, WAIT_S, MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.waiting import eventually


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Three nodes; node 0 leads."""
    async with memory_group(3) as group:
        yield group


@pytest.fixture
async def follower(group: MemoryGroup) -> AsyncIterator[RocketClient]:
    """A client of node 1."""
    async with RocketClient(group.nodes[1].port) as client:
        yield client


async def test_a_follower_serves_every_call_through_the_leader(
    group: MemoryGroup, follower: RocketClient
) -> None:
    """Route, send, receive, ack, change, heartbeat and parting."""
    await follower.route("t")
    sent = await follower.send(message(1), message(2))
    _, got, _ = await follower.receive()
    acked = await follower.ack(got[0])
    changed = await follower.change(got[1].system_properties.receipt_handle, 5)

    assert code(sent.status) == code(acked.status) == code(changed.status) == "OK"
    assert len(got) == 2
    assert code((await follower.call("Heartbeat")).status) == "OK"
    assert code((await follower.call("NotifyClientTermination")).status) == "OK"
    assert group.nodes[0].engine.proposals > 0
    assert group.nodes[1].engine.proposals == 0


async def test_forwarded_requests_are_counted_by_their_way(
    group: MemoryGroup, follower: RocketClient
) -> None:
    """Over the link where there is one, also what has many answers; none at the leader."""
    async with RocketClient(group.nodes[0].port) as direct:
        for number, client in enumerate((follower, direct)):
            await client.send(message(number))
            _, (got,), _ = await client.receive()
            await client.ack(got)

    way = "call" if group.nodes[1].links is None else "link"
    counted = [
        {
            each: node.parts.context.metrics.registry.get_sample_value(
                "dledger_forwarded_requests_total",
                {"group": "orders", "node": node.engine.node_id, "way": each},
            )
            for each in ("call", "link")
        }
        for node in group.nodes[:2]
    ]
    assert counted[0] == {"call": 0.0, "link": 0.0}
    assert counted[1] == {"call": 0.0, "link": 0.0, way: 3.0}


async def test_refusals_of_the_leader_reach_the_client_of_a_follower(
    follower: RocketClient,
) -> None:
    """The same code and sentence as at the leader."""
    response = await follower.send(message(1, body=b""))

    assert code(response.status) == "MESSAGE_BODY_EMPTY"


async def test_a_receipt_handle_is_good_on_every_node(group: MemoryGroup) -> None:
    """Received at one node, acked at another after a change of leader."""
    async with RocketClient(group.nodes[0].port) as one, RocketClient(group.nodes[2].port) as two:
        await one.send(message(1))
        _, (got,), _ = await one.receive()
        group.elect(1)

        assert code((await two.ack(got)).status) == "OK"


async def test_a_send_waits_for_the_next_leader(
    group: MemoryGroup, follower: RocketClient, pauses: list[float]
) -> None:
    """An election is not an error while the caller's deadline allows to wait."""
    await follower.route("t")
    group.elect(None)
    send = asyncio.create_task(follower.send(message(1)))
    await eventually(lambda: len(pauses) > 1)
    assert not send.done()

    group.elect(2)

    assert code((await send).status) == "OK"


@pytest.mark.found
@pytest.mark.parametrize("node", [0, 1])
async def test_without_a_leader_every_call_is_held_and_then_says_so(
    group: MemoryGroup, node: int, pauses: list[float], hold_for_a_second: Callable[[], None]
) -> None:
    """In words for an application; the node's own, that it does not lead, help nobody there."""
    async with RocketClient(group.nodes[node].port) as client:
        await client.send(message(1))
        _, (got,), _ = await client.receive(auto_renew=True)
        group.elect(None)
        handle = got.system_properties.receipt_handle
        hold_for_a_second()

        answers = await asyncio.gather(
            client.route("new"),
            client.send(message(2)),
            client.ack(got),
            client.change(handle, 1),
            client.call("Heartbeat"),
            client.call("NotifyClientTermination"),
            client.receive(wait_s=0),
        )

    statuses = [each[0] if isinstance(each, tuple) else each.status for each in answers]
    assert [code(status) for status in statuses] == ["HA_NOT_AVAILABLE"] * 7
    assert {status.message for status in statuses} == {
        "the group has no leader at the moment: try again"
    }
    assert len(pauses) > 2 * len(answers)


@pytest.mark.found
async def test_a_retry_of_a_stored_message_is_not_called_undone(
    group: MemoryGroup, follower: RocketClient
) -> None:
    """Its first attempt is stored, and its answer may be lost; of that this node knows nothing."""
    await follower.send(message(1))
    group.elect(None)

    status = (await follower.send(message(1), timeout_s=SOON_S)).status

    assert code(status) == "HA_NOT_AVAILABLE"
    assert status.message == "the group has no leader at the moment: try again"
    assert await group.bodies("t") == [b"body"]


async def test_what_waits_for_a_leader_is_bounded(
    group: MemoryGroup,
    follower: RocketClient,
    monkeypatch: pytest.MonkeyPatch,
    pauses: list[float],
) -> None:
    """Beyond that a request is refused at once, and the others go on waiting."""
    await follower.route("t")
    monkeypatch.setattr(forward, "MAX_HELD_BYTES", 1000)
    group.elect(None)
    waiting = asyncio.create_task(follower.send(message(1, body=bytes(600))))
    await eventually(lambda: bool(pauses))

    refused = await follower.send(message(2, body=bytes(600)))

    assert code(refused.status) == "TOO_MANY_REQUESTS"
    group.elect(0)
    assert code((await waiting).status) == "OK"


async def test_a_known_route_needs_no_leader(group: MemoryGroup, follower: RocketClient) -> None:
    """Clients may start while there is an election."""
    await follower.route("t")
    group.elect(None)

    response = await follower.route("t")

    assert len(response.message_queues) == 8


@pytest.mark.parametrize("node", [0, 1])
async def test_a_send_whose_outcome_was_lost_is_repeated_and_stored_once(
    group: MemoryGroup, node: int
) -> None:
    """The leader committed it but could not say so; the second try finds the first."""
    async with RocketClient(group.nodes[node].port) as client:
        await client.route("t")
        group.lose_outcomes = 2

        response = await client.send(message(1))

    assert code(response.status) == "OK"
    assert group.nodes[0].engine.state.topics.messages("t") == 1


@pytest.mark.parametrize("node", [0, 1])
async def test_a_full_disk_is_not_told_of_a_request_that_may_have_been_carried_out(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch, node: int
) -> None:
    """Its sender would take it for not stored; the first attempt is in the leader's log."""
    commit, record = group.commit, Record(body=b"a")

    async def lose(command: Command) -> object:
        await commit(command)
        group.refuse = DiskFull("no room")
        raise LeadershipLost("by the test")

    async with Client(group.addresses[node]) as client:
        await client.create_topic("t", queues=1)
        monkeypatch.setattr(group, "commit", lose)
        with pytest.raises(OutcomeUnknown, match="no room"):
            await client.append("t", [record])
        with pytest.raises(DiskFull):
            await client.append("t", [record])

    assert group.nodes[0].engine.state.topics.messages("t") == 1


@pytest.mark.parametrize("node", [0, 1])
async def test_a_producer_of_rocketmq_is_not_told_of_a_full_disk_either(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch, node: int
) -> None:
    """Found by the simulator, seed 314: the leader's refusal was passed on as an answer."""
    commit = group.commit

    async def lose(command: Command) -> object:
        await commit(command)
        group.refuse = DiskFull("no room")
        raise LeadershipLost("by the test")

    async with RocketClient(group.nodes[node].port) as client:
        await client.route("t")
        monkeypatch.setattr(group, "commit", lose)
        unknown = await client.send(message(1))
        refused = await client.send(message(2))

    assert code(unknown.status) == "HA_NOT_AVAILABLE"
    assert unknown.status.message.endswith(
        "whether an earlier attempt was carried out is not known"
    )
    assert (code(refused.status), refused.status.message) == ("INTERNAL_SERVER_ERROR", "no room")
    assert group.nodes[0].engine.state.topics.messages("t") == 1


async def test_an_append_that_no_leader_answers_is_of_unknown_outcome(group: MemoryGroup) -> None:
    """Unless the node says that it took nothing."""
    async with Client(group.addresses[0], timeout_s=SOON_S) as client:
        await client.create_topic("t", queues=1)
        group.refuse = Overloaded("by the test")
        with pytest.raises(Overloaded):
            await client.append("t", [b"a"])
        group.refuse, group.lose_outcomes = None, 1 << 20
        with pytest.raises(OutcomeUnknown, match="may be stored"):
            await client.append("t", [b"b"])


async def test_a_receive_whose_outcome_was_lost_loses_no_messages(
    group: MemoryGroup, follower: RocketClient
) -> None:
    """The repeated RECEIVE is given what the first one took, though the SDK sent no attempt id."""
    await follower.send(message(1), message(2))
    follower.metadata += (("x-mq-request-id", "request-1"),)
    group.lose_outcomes = 1

    _, got, _ = await follower.receive()

    assert len(got) == 2
    assert [each.system_properties.delivery_attempt for each in got] == [1, 1]


async def test_a_closing_node_does_not_call_a_lost_receive_empty(
    group: MemoryGroup, follower: RocketClient
) -> None:
    """Told of nothing new, an SDK would not repeat its attempt; told of a failure, it does."""
    await follower.send(message(1))
    group.nodes[1].tasks.drain()
    group.lose_outcomes = 1

    status, got, _ = await follower.receive(attempt_id="x", auto_renew=True)
    async with RocketClient(group.nodes[2].port) as client:
        _, (again,), _ = await client.receive(attempt_id="x", auto_renew=True)

    assert (code(status), got) == ("HA_NOT_AVAILABLE", [])
    assert again.system_properties.delivery_attempt == 1


async def test_a_closing_node_that_asked_nobody_has_nothing_new(
    group: MemoryGroup, follower: RocketClient
) -> None:
    """Without a leader there was nothing handed out: the SDK goes on at the next node at once."""
    await follower.route("t")
    group.elect(None)
    group.nodes[1].tasks.drain()

    status, _, _ = await follower.receive(wait_s=5)

    assert code(status) == "MESSAGE_NOT_FOUND"


async def test_a_long_poll_moves_to_the_new_leader(
    group: MemoryGroup, follower: RocketClient
) -> None:
    """Waiting at a follower, then at the next leader, then answered."""
    await follower.route("t")
    poll = asyncio.create_task(follower.receive(wait_s=2 * WAIT_S))
    await group.polls(at=0)
    group.elect(2)
    await group.polls(at=2)
    async with RocketClient(group.nodes[2].port) as client:
        await client.send(message(1))

    async with asyncio.timeout(WAIT_S):
        _, got, _ = await poll

    assert len(got) == 1


async def test_a_call_to_a_frozen_leader_moves_on_when_another_is_elected(
    group: MemoryGroup, follower: RocketClient
) -> None:
    """A frozen node breaks no connection; the follower must not wait for it until the deadline."""
    await follower.route("t")
    frozen = group.nodes[0].engine
    asked = asyncio.Event()

    def never(command: Command, **_: str) -> asyncio.Future[object]:
        del command
        asked.set()
        return asyncio.get_running_loop().create_future()

    frozen.submit = never
    send = asyncio.create_task(follower.send(message(1), timeout_s=2 * WAIT_S))
    await asked.wait()

    group.elect(2)

    async with asyncio.timeout(WAIT_S):
        assert code((await send).status) == "OK"


async def test_a_call_to_a_dead_leader_is_held_until_the_next(
    group: MemoryGroup, follower: RocketClient, pauses: list[float]
) -> None:
    """The old leader's port is closed; the follower still thinks that it leads."""
    await follower.route("t")
    for server in group.nodes[0].servers:
        await server.stop(0)
    send = asyncio.create_task(follower.send(message(1)))
    await eventually(lambda: len(pauses) > 1)
    assert not send.done()

    group.elect(1)

    assert code((await send).status) == "OK"


async def test_a_call_waits_at_a_new_leader_until_that_serves(
    group: MemoryGroup,
    follower: RocketClient,
    monkeypatch: pytest.MonkeyPatch,
    pauses: list[float],
) -> None:
    """Its followers know of it before it has applied what came before: nothing is sent back."""
    monkeypatch.setattr(forward, "_RETRY_S", 3600.0)
    await follower.route("t")
    group.elect(2, serves=False)
    send = asyncio.create_task(follower.send(message(1), timeout_s=2 * WAIT_S))
    await eventually(lambda: bool(pauses))
    assert not send.done()

    group.elect(2)

    async with asyncio.timeout(WAIT_S):
        assert code((await send).status) == "OK"


async def test_a_call_is_tried_at_once_when_the_leader_is_known(
    group: MemoryGroup, follower: RocketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long there was none: the wait grows with each try, and begins anew with a leader."""
    waits: list[float] = []
    pause = forward.Relay.pause

    async def noted(relay: forward.Relay, caller: Caller, wait_s: float) -> None:
        if waits and wait_s == waits[0]:
            group.refuse = None
        waits.append(wait_s)
        await pause(relay, caller, wait_s)

    await follower.route("t")
    monkeypatch.setattr(forward.Relay, "pause", noted)
    group.elect(None)
    send = asyncio.create_task(follower.send(message(1), timeout_s=20))
    await eventually(lambda: len(waits) > 1)
    group.refuse = Unavailable("once more, from the new leader")
    group.elect(2)

    assert code((await send).status) == "OK"
    assert waits[1] == 2 * waits[0]
    assert waits[-1] == waits[0]


async def test_a_forwarded_call_goes_no_further(group: MemoryGroup) -> None:
    """Two nodes that each take the other for the leader must not send a call in circles."""
    async with RocketClient(group.nodes[1].peer_port) as peer:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await peer.send(message(1))

    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_client_cannot_pretend_to_be_a_peer(
    group: MemoryGroup, follower: RocketClient
) -> None:
    """The mark of a forwarded call counts on the peer port only."""
    follower.metadata += ((FORWARDED_KEY, "tls"),)

    assert code((await follower.send(message(1))).status) == "OK"


async def test_the_callers_metadata_reaches_the_leader(group: MemoryGroup) -> None:
    """The client id scopes the idempotency key, whichever node a retry comes to."""
    async with RocketClient(group.nodes[1].port) as one, RocketClient(group.nodes[2].port) as two:
        await one.send(message(1))
        await two.send(message(1))

    assert group.nodes[0].engine.state.topics.messages("t") == 1


async def test_requests_pass_a_follower_unparsed(group: MemoryGroup) -> None:
    """Fields that this version does not know are the leader's to judge, which ignores them."""
    unknown_field = b"\xfa\x3f\x03abc"
    raw = service.SendMessageRequest(messages=[message(1)]).SerializeToString() + unknown_field
    async with RocketClient(group.nodes[1].port) as client:
        method = client.channel.unary_unary(f"/{SERVICE_NAME}/SendMessage")
        response = await method(raw, metadata=client.metadata, timeout=WAIT_S)

    assert code(service.SendMessageResponse.FromString(response).status) == "OK"


@pytest.mark.found
@pytest.mark.parametrize("server", [NATIVE, GRPC])  # over the link, and by a gRPC call
async def test_a_follower_says_what_its_leader_says_of_a_damaged_entry(server: str) -> None:
    """found: 48. Asked again, the leader would have nothing new: the messages are on loan."""

    async def fail(_: int) -> Entry:
        raise FaultyEntry(4)

    ends: list[tuple[object, ...]] = []
    async with memory_group(2, server=server) as group:
        group.nodes[0].engine.read_entry = fail
        for number, node in enumerate(group.nodes):
            async with RocketClient(node.port) as client:
                await client.send(message(number))
                with pytest.raises(grpc.aio.AioRpcError) as ended:
                    await client.receive()
            error = ended.value
            name = by_key(error.trailing_metadata()).get(ERROR_KEY)
            ends.append((error.code(), name, error.details()))

    assert ends[0] == ends[1]
    assert ends[0][:2] == (grpc.StatusCode.UNAVAILABLE, "FaultyEntry")
