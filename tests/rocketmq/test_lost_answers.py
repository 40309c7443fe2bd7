"""A push consumer's messages whose answer was lost come again in seconds, and no others do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dledger.broker.results import Received
from dledger.calls.caller import Caller
from dledger.common.limits import FIRST_INVISIBLE_MS
from dledger.errors import LeadershipLost
from dledger.requests import passing_on
from dledger.requests.passing_on import PassingOn, Told
from dledger.rocketmq.receipts import Receipts
from dledger.rocketmq.receiving import Receiver
from dledger.rpc.rocketmq_stubs import service
from tests.requests.memory_group import WAIT_S, MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, message
from tests.waiting import eventually

pytestmark = pytest.mark.found


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


async def _offsets(client: RocketClient, **fields: Any) -> list[int]:
    _, messages, _ = await client.receive(auto_renew=True, **fields)
    return [each.system_properties.queue_offset for each in messages]


@pytest.mark.contract
async def test_an_answer_that_died_in_a_follower_comes_again(
    group: MemoryGroup, follower: RocketClient
) -> None:
    """The leader gave it away; what the follower does not say, nobody knows."""
    clients, answers = (
        group.nodes[0].parts.messaging.clients,
        group.nodes[1].parts.context.relay._answers,
    )
    await answers.close()  # it says so when the test asks
    await follower.send(message(1), message(2))
    assert await _offsets(follower, batch=1) == [0]
    await eventually(lambda: any(answers._out.values()))
    answers._out.clear()  # it died before it could say so
    assert await _offsets(follower) == [1]
    await eventually(lambda: any(answers._out.values()))
    await answers.tell()

    await clients.renew()
    group.clock_skew_ms += FIRST_INVISIBLE_MS + 1

    assert await _offsets(follower) == [0]


@pytest.mark.contract
async def test_a_follower_says_which_answers_it_passed_on(
    group: MemoryGroup, follower: RocketClient
) -> None:
    """By itself, within a second; then they are renewed as long as their client lives."""
    await follower.send(message(1))
    assert await _offsets(follower) == [0]
    clients = group.nodes[0].parts.messaging.clients

    await eventually(lambda: bool(clients.arrivals._arrived))
    for _ in range(4):
        await clients.renew()
        group.clock_skew_ms += 29_000
        await follower.call("Heartbeat", service.HeartbeatRequest())

    assert await _offsets(follower) == []


@pytest.mark.contract
async def test_a_leader_that_dies_in_the_middle_of_an_answer_leaves_no_half(
    group: MemoryGroup, follower: RocketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower passes nothing of it on, and gets the same from the next leader."""
    await follower.send(message(1), message(2))
    whole = Receiver._messages

    async def cut_short(
        receiver: Receiver, poll: Any, received: Received, receipts: Receipts, caller: Caller
    ) -> AsyncIterator[Any]:
        async for each in whole(receiver, poll, received, receipts, caller):
            yield each
            if receiver is group.nodes[0].parts.messaging.receiver:
                group.elect(2)
                raise LeadershipLost("died, says the test")

    monkeypatch.setattr(Receiver, "_messages", cut_short)

    _, got, _ = await follower.receive(auto_renew=True, attempt_id="x")

    places = [
        (each.system_properties.queue_offset, each.system_properties.delivery_attempt)
        for each in got
    ]
    assert places == [(0, 1), (1, 1)]


async def test_a_frozen_follower_is_given_no_messages(
    group: MemoryGroup, follower: RocketClient
) -> None:
    """A poll came through it before it froze; the message goes to the next that waits."""
    async with RocketClient(group.nodes[2].port) as other:
        await other.route("t")
        stuck = follower.receive(auto_renew=True, wait_s=3600, attempt_id="stuck")
        waiting = asyncio.create_task(stuck)
        await group.polls(at=0)
        group.silent = {1}
        served = asyncio.create_task(_offsets(other, wait_s=3600))
        await group.polls(2, at=0)

        async with RocketClient(group.nodes[0].port) as producer:
            await producer.send(message(1, queue_id=0))

        async with asyncio.timeout(WAIT_S):
            assert await served == [0]
        assert not waiting.done()
        waiting.cancel()


async def test_what_is_large_goes_out_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no answer takes more of a follower's memory than is said."""
    monkeypatch.setattr(passing_on, "MAX_HELD_ANSWER_BYTES", 10)
    taken: list[bytes] = []

    async def answers() -> AsyncIterator[bytes]:
        for answer in (b"12345", b"67890", b"x", b"y"):
            taken.append(answer)
            yield answer

    async def tell(*_: object) -> bool:
        return True

    seen = [(answer, len(taken)) async for answer in PassingOn(tell).whole(answers())]

    assert seen == [(b"12345", 3), (b"67890", 3), (b"x", 3), (b"y", 4)]


async def test_a_leader_that_is_silent_is_told_again_and_not_for_ever() -> None:
    """What it does not hear within seconds has come again, or it is dead."""
    calls: list[list[int]] = []
    answers = [False, True, False, False, False, False, True]

    async def tell(address: str, path: str, request: bytes) -> bool:
        assert (address, path) == ("leader:1", passing_on.PASSED_ON_PATH)
        calls.append(list(Told.decode(request).arrived))
        return answers[len(calls) - 1]

    passing = PassingOn(tell)
    passing.arrived("leader:1", 1)
    await passing.tell()
    passing.arrived("leader:1", 2)
    await passing.tell()
    passing.arrived("leader:1", 3)
    for _ in range(6):
        await passing.tell()
    passing.arrived("leader:1", 4)
    await passing.tell()

    assert calls == [[1], [1, 2], [3], [3], [3], [3], [4]]


def test_numbers_that_are_cut_short_are_none() -> None:
    """A peer's bytes are no reason to fail."""
    assert Told.decode(bytes([7] + [0] * 7 + [1, 2])) == ([7], [])
    assert Told.decode(bytes([7] + [0] * 6 + [0x80, 1, 2])) == ([], [7])
    assert len(Told.decode(bytes(1 << 20)).arrived) == 4_096
