"""Messages of one connection keep their order, in batches as where their calls are passed on."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.door_process.frames import SendBatch
from dledger.door_process.node_end import Settle
from dledger.errors import Overloaded
from dledger.link.frames import Resumes
from dledger.requests.config import RequestConfig
from dledger.server.door_batches import DoorBatches
from dledger.server.node_report import load_of
from tests.requests import memory_group as made
from tests.requests.linked_door import LinkedDoor
from tests.requests.memory_group import WAIT_S
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.waiting import eventually

STEPS = st.lists(st.sampled_from(("send", "send", "send", "turn", "refuse")), max_size=40)


class _Refusing(DoorBatches):
    """Refuses some batches, as an overloaded node does."""

    refusals = 0
    taken = refused = 0

    def send(self, batch: SendBatch, settle: Settle) -> Any:
        if self.refusals:
            self.refusals -= 1
            self.refused += 1
            settle(Resumes.NOTHING_DONE)
            return lambda: None
        self.taken += 1
        return super().send(batch, settle)


@pytest.fixture(autouse=True, scope="module")
def _door() -> Any:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(made, "client_server", made.DOOR)
        yield


def refusing(group: Any) -> tuple[LinkedDoor, _Refusing]:
    node = group.nodes[0]
    (door,) = [each for each in node.servers if isinstance(each, LinkedDoor)]
    batches = _Refusing(node.parts)
    door.node_end._batches = batches
    return door, batches


@given(STEPS)
@settings(max_examples=40, deadline=None)
def test_what_one_connection_sends_is_stored_in_its_order(steps: list[str]) -> None:
    """Whatever batches are refused meanwhile."""
    asyncio.run(_in_order(steps))


async def _in_order(steps: list[str]) -> None:
    config = RequestConfig(default_queues=1)
    async with (
        asyncio.timeout(WAIT_S),
        made.memory_group(config=config) as group,
        RocketClient(group.nodes[0].port) as client,
    ):
        await client.send(message(0, body=b"0"))
        door, batches = refusing(group)
        calls: list[asyncio.Task[Any]] = []
        for step in steps:
            if step == "send":
                number = len(calls) + 1
                send = client.send(message(number, body=b"%d" % number))
                calls.append(asyncio.ensure_future(send))
                await asyncio.sleep(0)
            elif step == "turn":
                await asyncio.sleep(0.001)
            else:
                batches.refusals += 1
        answers = await asyncio.gather(*calls)

        stored = [int(body) for body in await group.bodies("t")]
        assert {code(each.status) for each in answers} <= {"OK"}
        assert stored == list(range(len(calls) + 1))
        await eventually(lambda: not door.node_end._resuming)
        assert not len(door.node_end)


async def test_batches_are_taken_again_once_what_was_passed_on_is_over() -> None:
    """Else one refusal would leave a busy connection on the dearer way."""
    async with (
        made.memory_group(config=RequestConfig(default_queues=1)) as group,
        RocketClient(group.nodes[0].port) as client,
    ):
        await client.send(message(0))
        door, batches = refusing(group)
        batches.refusals = 1
        await client.send(message(1))
        await eventually(lambda: not door.node_end._resuming)
        await client.send(message(2))

    assert (batches.refused, batches.taken) == (1, 1)


async def test_a_busy_connection_goes_back_to_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it has calls under way all the time: their outcomes come one by one."""
    async with (
        made.memory_group(config=RequestConfig(default_queues=1)) as group,
        RocketClient(group.nodes[0].port) as client,
    ):
        await client.send(message(0))
        _, batches = refusing(group)
        commit, rng = group.commit, random.Random(1)

        async def slowly(command: Any) -> object:
            outcome = await commit(command)
            await asyncio.sleep(rng.random() * 0.03)
            return outcome

        monkeypatch.setattr(group, "commit", slowly)
        numbers = iter(range(1, 401))
        first = 0

        async def send_on() -> None:
            nonlocal first
            for number in numbers:
                if number == 100:
                    batches.refusals, first = 1, batches.taken
                await client.send(message(number))

        await asyncio.gather(*(send_on() for _ in range(16)))
        stored = await group.bodies("t")

    assert len(stored) == 401
    assert batches.refused == 1
    assert batches.taken - first > 10


async def test_a_follower_is_asked_for_no_batches() -> None:
    """Its door knows that it does not lead, and passes calls on."""
    async with made.memory_group(2) as group, RocketClient(group.nodes[1].port) as client:
        door = next(each for each in group.nodes[1].servers if isinstance(each, LinkedDoor))
        batches = _Refusing(group.nodes[1].parts)
        door.node_end._batches = batches
        sent = await client.send(message(1))

    assert code(sent.status) == "OK"
    assert batches.taken + batches.refused == 0


async def test_an_overloaded_engine_gets_the_calls_again() -> None:
    """One by one, until there is room or the client's time is over."""
    async with (
        made.memory_group(config=RequestConfig(default_queues=1)) as group,
        RocketClient(group.nodes[0].port) as client,
    ):
        await client.send(message(0))
        group.refuse = Overloaded("for a moment")
        sending = asyncio.ensure_future(client.send(message(1)))
        await eventually(lambda: load_of(group.nodes[0].parts).held_request_bytes > 0)
        assert not sending.done()
        group.refuse = None

        assert code((await sending).status) == "OK"
