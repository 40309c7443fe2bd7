"""Doors killed every five seconds under load: nothing is lost, nothing doubled, all in order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from dledger.client import Client
from e2e.harness.dev_group import DevGroup, running
from e2e.harness.sequence import SequenceAudit, numbered
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.waiting import eventually

SECONDS = 60
KILLED_EACH_S = 5
ONE_BY_ONE = 6
WINDOWS = 2
WINDOW = 32
CONSUMERS = 3
CALL_S = 5.0


def door_pids(group: DevGroup) -> list[int]:
    """Return the door processes of all nodes."""
    found = []
    for node in group.state()["pids"]:
        children = Path(f"/proc/{node}/task/{node}/children")
        found += list(map(int, children.read_text("ascii").split())) if node else []
    return found


async def again(call: Any) -> Any:
    """Call until there is an answer that says OK, as SDKs' retries and their users do."""
    while True:
        try:
            answer = await call()
            if code(answer.status) == "OK":
                return answer
        except grpc.aio.AioRpcError:
            pass
        await asyncio.sleep(0.05)


class Load:
    """Producers with a topic of one queue each, and consumers of all that is sent."""

    def __init__(self, group: DevGroup) -> None:
        self.group = group
        self.audits = [SequenceAudit() for _ in range(ONE_BY_ONE)]
        self.sent: dict[str, set[str]] = {}
        self.got = Counter[str]()
        self.ending = asyncio.Event()

    def client(self, name: str, number: int) -> RocketClient:
        endpoints = self.group.endpoints
        port = int(endpoints[number % len(endpoints)].rpartition(":")[2])
        return RocketClient(port, name, timeout_s=CALL_S)

    async def one_by_one(self, number: int) -> None:
        """Send each message once the one before it is acknowledged."""
        topic, audit, count = f"order-{number}", self.audits[number], 0
        acked = self.sent.setdefault(topic, set())
        async with self.client(f"producer-{number}", number) as client:
            while not self.ending.is_set():
                (body,) = numbered(count, 1, b"x" * 500)
                one = message(number << 32 | count, body=body, topic=topic)
                await again(lambda one=one: client.send(one))
                audit.acked(count)
                acked.add(one.system_properties.message_id)
                count += 1

    async def window(self, number: int) -> None:
        """Keep many messages under way on one connection."""
        topic = f"window-{number}"
        acked, numbers = self.sent.setdefault(topic, set()), iter(range(1 << 30))
        async with self.client(f"window-{number}", number) as client:

            async def send() -> None:
                while not self.ending.is_set():
                    one = message(1 << 48 | number << 32 | next(numbers), topic=topic)
                    await again(lambda one=one: client.send(one))
                    acked.add(one.system_properties.message_id)

            await asyncio.gather(*(send() for _ in range(WINDOW)))

    async def consume(self, number: int, topic: str) -> None:
        """Receive and acknowledge, repeating an attempt as SDKs do if its answer is not known."""
        async with self.client(f"consumer-{topic}-{number}", number) as client:
            for attempt in range(1 << 30):
                name = f"{topic}/{number}/{attempt}"
                _, messages, _ = await self._received(client, topic, name)
                for one in messages:
                    self.got[one.system_properties.message_id] += 1
                if messages:
                    await self._acked(client, topic, messages)
                elif self.ending.is_set():
                    return

    async def _received(self, client: RocketClient, topic: str, attempt: str) -> Any:
        while True:
            try:
                return await client.receive(
                    topic,
                    queue_id=-1,
                    batch=32,
                    wait_s=1,
                    attempt_id=attempt,
                    invisible_s=15,
                )
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.05)

    async def _acked(self, client: RocketClient, topic: str, messages: list[Any]) -> None:
        while True:
            try:
                await client.ack(*messages, topic=topic)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.05)
            else:
                return  # a stale handle: it was acknowledged before, or is delivered again


@pytest.mark.alone
@pytest.mark.long
async def test_killed_doors_lose_and_double_nothing_and_keep_the_order(tmp_path: Path) -> None:
    """For a minute, with two doors at each node; every message is stored once and delivered."""
    settings = ("door_processes=2", "default_queues=1", "leader_follows_clients=false")
    killed = 0
    async with running(tmp_path / "data", settings) as group:
        load = Load(group)
        producing = [
            *(asyncio.ensure_future(load.one_by_one(number)) for number in range(ONE_BY_ONE)),
            *(asyncio.ensure_future(load.window(number)) for number in range(WINDOWS)),
        ]
        await eventually(lambda: len(load.sent) == len(producing))
        topics = list(load.sent)
        consuming = [
            asyncio.ensure_future(load.consume(number, topic))
            for number in range(CONSUMERS)
            for topic in topics
        ]
        for _ in range(SECONDS // KILLED_EACH_S):
            failed, _ = await asyncio.wait(producing, timeout=KILLED_EACH_S)
            assert not failed
            for pid in door_pids(group):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        load.ending.set()
        await asyncio.gather(*producing)
        stored: dict[str, list[Any]] = {}
        for topic in topics:
            async with Client(group.leader_endpoint) as reader:
                read = reader.read(topic, 0, linearizable=True)
                stored[topic] = [one.record async for one in read]
        async with asyncio.timeout(120):
            await asyncio.gather(*consuming)
        deaths = group.deaths()

    for topic in topics:
        ids = Counter(record.message_id for record in stored[topic])
        assert not load.sent[topic] - ids.keys(), f"lost of {topic}"
        assert max(ids.values()) == 1, f"doubled in {topic}"
        assert not ids.keys() - load.got.keys(), f"not delivered of {topic}"
    for number, audit in enumerate(load.audits):
        audit.read(0, [record.body for record in stored[f"order-{number}"]])
        found = audit.found()
        assert (found.lost, found.duplicates, found.out_of_order) == (0, 0, 0), found
        assert found.acked > SECONDS
    assert killed >= SECONDS // KILLED_EACH_S
    assert deaths == 0
