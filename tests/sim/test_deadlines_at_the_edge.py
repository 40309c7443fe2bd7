"""What waits for a deadline, in virtual time: a group without a leader answers before it, in words.

By the shipped services, links and producers, at a follower whose group has lost the others.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from dledger.client.append_stream import AppendStream
from dledger.errors import Unavailable
from dledger.requests.config import RequestConfig
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from dledger.types import Record
from dledger_sim.call import Asked, SimCall
from dledger_sim.clients import TOPIC
from dledger_sim.cluster import Cluster
from dledger_sim.loop import ProcessLoop, S, generators_end_unseen
from dledger_sim.options import Options
from dledger_sim.process import Process
from dledger_sim.wire import Wire, WireOptions, address_of, one

T = TypeVar("T")


class World:
    """Three nodes and a client; nothing goes wrong but what a test does."""

    def __init__(self) -> None:
        self.cluster = Cluster(1, replace(Options(), clients=0, segment_bytes=4 << 20))
        self.cluster.calm = self.cluster.links.calm = True
        self.wire = Wire(self.cluster, WireOptions(room=1000), RequestConfig())
        self.loop = ProcessLoop(self.cluster.clock, job_us=lambda: (1, 1))
        self.cluster.begin()
        self.cluster.within(30, self._has_topic, "no topic")
        (self.leader,) = self.cluster.serving()
        self.follower, self.third = (
            one for one in self.cluster.processes.values() if one is not self.leader
        )

    def _has_topic(self) -> bool:
        serving = self.cluster.serving()
        return any(one.state.broker.topics.get(TOPIC) is not None for one in serving)

    def begin(self, work: Coroutine[Any, Any, T]) -> list[T]:
        """Let the client do something; its result comes into a list."""
        results: list[T] = []

        async def do() -> None:
            results.append(await work)

        self.loop.run(lambda: self.loop.create_task(do()))
        return results

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what comes of something that the client does."""
        results = self.begin(work)
        self.cluster.within(60, lambda: bool(results), "nothing came of it")
        return results[0]

    def pass_s(self, seconds: float) -> None:
        """Let so much time pass."""
        clock = self.cluster.clock
        clock.run_until(clock.now_us + round(seconds * S))

    def leave_follower_alone(self) -> None:
        """Cut the power of the two others."""
        for process in (self.leader, self.third):
            self.cluster.crash(process)

    async def send(self, process: Process, number: int, timeout_s: float) -> definition.Status:
        """Send a message by SendMessage to a node."""
        message = definition.Message(
            topic=definition.Resource(name=TOPIC),
            system_properties=definition.SystemProperties(
                message_id=f"{number:034X}", message_type=definition.MessageType.NORMAL
            ),
            body=b"body",
        )
        request = service.SendMessageRequest(messages=[message]).SerializeToString()
        asked = Asked(
            path=f"/{SERVICE_NAME}/SendMessage",
            pairs=((b"x-mq-client-id", b"client"),),
            timeout_s=timeout_s,
            peer="ipv4:client:1",
        )
        call = SimCall(self.wire, self.loop, process.id, one(request), asked)
        (raw,) = [answer async for answer in call]
        return service.SendMessageResponse.FromString(raw).status


@pytest.fixture
def world() -> Iterator[World]:
    with generators_end_unseen():
        yield World()


def test_without_a_leader_the_answer_comes_before_the_deadline(world: World) -> None:
    """HA_NOT_AVAILABLE, which SDKs retry; never TOO_MANY_REQUESTS."""
    world.leave_follower_alone()
    world.pass_s(5)
    began_us = world.cluster.clock.now_us

    status = world.do(world.send(world.follower, 1, 4.0))

    assert definition.Code.Name(status.code) == "HA_NOT_AVAILABLE"
    assert status.message == "the group has no leader at the moment: try again"
    assert 2 * S < world.cluster.clock.now_us - began_us < 4 * S


@pytest.mark.found
def test_a_send_that_no_leader_answers_is_not_called_undone(world: World) -> None:
    """It was sent to a leader before: whether it is stored, nobody knows yet."""
    assert world.do(world.send(world.follower, 1, 4.0)).code == definition.Code.OK
    before = world.leader.log.last_index
    sent = world.begin(world.send(world.follower, 2, 3.0))
    world.cluster.within(3, lambda: world.leader.log.last_index > before, "it takes nothing")
    world.leave_follower_alone()
    world.cluster.within(3, lambda: bool(sent), "no answer before the deadline")

    assert definition.Code.Name(sent[0].code) == "HA_NOT_AVAILABLE"
    assert sent[0].message.endswith("whether an earlier attempt was carried out is not known")
    assert "nothing was done" not in sent[0].message


def test_without_a_leader_a_streams_outcome_is_unknown_after_the_timeout(world: World) -> None:
    """The error says that the batch may be stored; what comes later is not held up by it."""
    world.leave_follower_alone()
    addresses = [address_of(node) for node in world.cluster.nodes()]

    async def append() -> int:
        async with AppendStream(
            addresses,
            client_id="client",
            timeout_s=2.0,
            connect=lambda address: world.wire.connect(world.loop, address),
        ) as stream:
            with pytest.raises(Unavailable, match="may be stored"):
                await stream.append(TOPIC, [Record(body=b"a", message_id="a")], queue_id=0)
            world.loop.call_soon(world.cluster.revive_all)
            later = Record(body=b"b", message_id="b")
            while True:
                try:
                    return (await stream.append(TOPIC, [later], queue_id=0)).offsets[0]
                except Unavailable:
                    continue

    assert world.do(append()) >= 0
