"""FIFO topics on three processes: each message group in its order, though the leader is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

from dledger.client import AppendStream, Client, Record, SpoolingProducer, Typed
from dledger.rpc.rocketmq_stubs import definition
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.waiting import eventually

_GROUPS = 12
_EACH = 15
_CONSUMERS = 4
_FIFO = definition.MessageType.FIFO


@pytest.fixture
def group(tmp_path: Path) -> Iterator[DevGroup]:
    """Return a running group of three."""
    made = DevGroup(tmp_path / "data", free_port_range())
    made.announced()
    yield made
    if made.process.poll() is None:
        made.stop()


class Consumers:
    """Some consumers of a group: each takes a batch, and acks it one by one."""

    def __init__(self) -> None:
        self.got: defaultdict[str, list[int]] = defaultdict(list)
        self.busy: set[str] = set()

    def count(self) -> int:
        return sum(len(set(numbers)) for numbers in self.got.values())

    async def consume(self, client: RocketClient) -> None:
        while self.count() < _GROUPS * _EACH:
            try:
                _, messages, _ = await client.receive("f", wait_s=1, invisible_s=10)
                for each in messages:
                    name = each.system_properties.message_group
                    self.got[name].append(int(each.body))
                    await client.ack(each, topic="f")
            except grpc.aio.AioRpcError:  # a lost answer is on loan for ten seconds
                await asyncio.sleep(0.2)


async def _produce(client: RocketClient) -> None:
    """Send each group's messages one after the other, each until it is stored."""
    for number in range(_EACH):
        for name in range(_GROUPS):
            sent = message(
                number * _GROUPS + name,
                body=b"%d" % number,
                topic="f",
                message_type=_FIFO,
                message_group=f"order-{name}",
                queue_id=number % 4,
            )
            for _ in range(20):
                try:
                    if code((await client.send(sent)).status) == "OK":
                        break
                except grpc.aio.AioRpcError:  # an answer that is lost is asked for again
                    await asyncio.sleep(0.2)
            else:
                raise AssertionError(f"message {number} of {name} is not stored")


@pytest.mark.slow
async def test_each_group_keeps_its_order_when_the_leader_is_killed(group: DevGroup) -> None:
    """Nothing is lost, nothing overtakes, and what comes twice comes from there on again."""
    state, leader = group.state(), group.leader
    others = [number for number in range(3) if number != leader]
    async with Client(f"127.0.0.1:{group.client_port + others[0]}") as client:
        await client.create_topic("f", "FIFO", queues=4)
    consumers = Consumers()
    clients = [
        RocketClient(group.client_port + others[number % 2], f"c-{number}", timeout_s=15)
        for number in range(_CONSUMERS)
    ]
    consuming = [asyncio.ensure_future(consumers.consume(client)) for client in clients]
    producer = RocketClient(group.client_port + others[1], "producer", timeout_s=15)
    producing = asyncio.ensure_future(_produce(producer))

    async with asyncio.timeout(60):
        await eventually(lambda: consumers.count() >= 30)
        os.kill(state["pids"][leader], signal.SIGKILL)
        await producing
        await asyncio.gather(*consuming)

    for each in (*clients, producer):
        await each.channel.close()
    assert len(consumers.got) == _GROUPS
    for name, numbers in consumers.got.items():
        first = list(dict.fromkeys(numbers))
        assert first == list(range(_EACH)), f"{name}: {numbers}"


@pytest.mark.slow
async def test_native_producers_name_groups_and_read_them_back(
    group: DevGroup, tmp_path: Path
) -> None:
    """Alone, in a stream that joins what is of one queue, and through a spool."""
    address = f"127.0.0.1:{group.client_port}"
    records = [
        Record(body=b"%d" % n, typed=Typed(message_group=f"order-{n % 3}")) for n in range(12)
    ]
    async with Client(address) as client:
        await client.create_topic("n", "FIFO", queues=4)
        for record in records:
            await client.append("n", [record])
        async with AppendStream(address) as stream:
            for _ in range(2):
                await asyncio.gather(*(stream.append("n", [record]) for record in records))
        async with SpoolingProducer(address, tmp_path / "spool") as spool:
            await spool.send_batch("n", records)
        stored = [
            each
            for queue_id in range(4)
            for each in [one async for one in client.read("n", queue_id, linearizable=True)]
        ]

    of: defaultdict[str, list[int]] = defaultdict(list)
    for each in stored:
        of[each.typed.message_group if each.typed else ""].append(int(each.record.body))
    assert dict(of) == {f"order-{at}": 4 * list(range(at, 12, 3)) for at in range(3)}
