"""Replays of a spool over the wire: what the mark of a call says, at each node and each server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from dledger.rpc.rocketmq_stubs import service
from dledger.server.client_certificate import self_signed
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.waiting import eventually

pytestmark = pytest.mark.contract
TOKEN = "0123456789abcdef" * 2
NOBODY_KNOWS = -1


class Spool:
    """One lane of a spool, which replays through a client."""

    def __init__(self, client: RocketClient, *, token: str = TOKEN, lane: int = 0) -> None:
        self._client, self._own = client, client.metadata
        self._token, self._lane = token, lane

    async def send(self, first: int, *numbers: int) -> service.SendMessageResponse:
        """Replay messages of these ids, the first of which has the sequence *first*."""
        mark = f"{self._token};{self._lane};{first}"
        self._client.metadata = (*self._own, ("x-dledger-replay", mark))
        return await self._client.send(*map(message, numbers))


def offsets(response: service.SendMessageResponse) -> list[int]:
    """Return the offsets that an answer tells, each of which says OK."""
    assert {code(response.status)} | {code(each.status) for each in response.entries} == {"OK"}
    return [each.offset for each in response.entries]


def stored(group: MemoryGroup) -> int:
    """Return how many messages the topic has."""
    return group.nodes[0].engine.state.topics.messages("t")


@pytest.fixture(params=[0, 1], ids=["leader", "follower"])
async def spool(request: pytest.FixtureRequest) -> AsyncIterator[tuple[MemoryGroup, Spool]]:
    """A spool that replays at this node of a group."""
    async with (
        memory_group(2) as group,
        RocketClient(group.nodes[request.param].port) as client,
    ):
        yield group, Spool(client)


async def test_what_is_known_is_answered_with_ok_and_not_stored(
    spool: tuple[MemoryGroup, Spool],
) -> None:
    """By the sequence alone, as if all ids were forgotten; the rest of the call is stored."""
    group, lane = spool

    first = await lane.send(1, 1, 2, 3)
    again = await lane.send(1, 1, 2, 3)
    forgotten = await lane.send(2, 12, 13, 14)

    assert offsets(again) == offsets(first)
    assert offsets(forgotten)[:2] == [NOBODY_KNOWS] * 2
    assert [each.message_id for each in forgotten.entries] == [
        message(n).system_properties.message_id for n in (12, 13, 14)
    ]
    assert stored(group) == 4


async def test_calls_at_one_time_are_told_apart(spool: tuple[MemoryGroup, Spool]) -> None:
    """Joined in a command, the second of two would continue the lane of the first."""
    group, lane = spool
    await lane.send(1, 0)

    calls = [lane.send(2, 1), lane.send(2, 1), lane.send(2, 11)]
    await asyncio.gather(*calls)

    assert stored(group) == 2
    assert offsets(await lane.send(3, 2)) != [NOBODY_KNOWS]


async def test_lanes_and_spools_do_not_count_for_each_other(group: MemoryGroup) -> None:
    """Each has a first message of its own, and so has each client."""
    port = group.nodes[0].port
    async with RocketClient(port) as one, RocketClient(port, "client-2") as two:
        lanes = [
            Spool(one),
            Spool(one, lane=1),
            Spool(one, token=TOKEN[::-1]),
            Spool(two),
        ]
        for number, lane in enumerate(lanes):
            await lane.send(1, number)

    assert stored(group) == len(lanes)


async def test_an_answer_that_is_lost_with_its_leader_doubles_nothing() -> None:
    """The messages are stored, the leader is gone before it says so; the next one knows them."""
    async with memory_group(2) as group, RocketClient(group.nodes[1].port) as client:
        lane = Spool(client)
        await lane.send(1, 0)
        group.lose_outcomes = 1
        lost = asyncio.ensure_future(lane.send(2, 1, 2))
        await eventually(lambda: not group.lose_outcomes)
        group.elect(1)
        await group.linked()

        assert offsets(await lost) != [NOBODY_KNOWS] * 2
        assert offsets(await lane.send(2, 11, 12)) == [NOBODY_KNOWS] * 2
        assert stored(group) == 3


async def test_a_replay_over_tls_is_one() -> None:
    """At a follower, to which its certificate says who it is, and on to the leader."""
    pair = self_signed("orders", "127.0.0.1")
    async with memory_group(2, tls=(pair.key, pair.chain)) as group:
        credentials = grpc.ssl_channel_credentials(pair.chain)
        client = RocketClient(group.nodes[1].port)
        await client.channel.close()
        address = f"127.0.0.1:{group.nodes[1].tls_port}"
        client.channel = grpc.aio.secure_channel(address, credentials)
        async with client:
            lane = Spool(client)
            await lane.send(1, 1)
            again = await lane.send(1, 11)

        assert offsets(again) == [NOBODY_KNOWS]
        assert stored(group) == 1


async def test_an_id_that_somebody_took_is_stored_apart_and_once(
    spool: tuple[MemoryGroup, Spool],
) -> None:
    """As without a mark; and the lane does not pass it before it is stored."""
    group, lane = spool
    async with RocketClient(group.nodes[0].port) as thief:
        await thief.send(message(2, body=b"stolen"))

    first = await lane.send(1, 1, 2, 3)
    again = await lane.send(1, 1, 2, 3)

    assert NOBODY_KNOWS not in offsets(first)
    assert offsets(again) == offsets(first)
    assert stored(group) == 4


@pytest.mark.parametrize(
    "said",
    [
        "",
        f"{TOKEN};0",
        f"{TOKEN[1:]};0;1",
        f"{TOKEN.upper()};0;1",
        f"{TOKEN};-1;1",
        f"{TOKEN};{1 << 32};1",
        f"{TOKEN};0;0",
        f"{TOKEN};0;{1 << 64}",
        f"{TOKEN};0;1 ;",
    ],
)
async def test_a_mark_that_is_none_is_refused_by_name(
    group: MemoryGroup, client: RocketClient, said: str
) -> None:
    """Nothing is stored, and the token is not repeated: it may be one."""
    client.metadata = (*client.metadata, ("x-dledger-replay", said))

    refused = await client.send(message(1))

    assert code(refused.status) == "BAD_REQUEST"
    assert "x-dledger-replay" in refused.status.message
    assert TOKEN not in refused.status.message
    assert not group.log
