"""In order and once: whole nodes, real streams, and producers with much under way."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dledger.broker.deduplication import MAX_IDS
from dledger.client import AppendStream, BatchingProducer, SpoolingProducer
from dledger.client.produce_call import Call, GrpcConnection
from dledger.common.limits import MAX_IDS_OF_CLIENT
from dledger.replica.driver import Driver
from dledger.server import replica
from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually

TOPIC = "orders"
_EACH = 500


@pytest.fixture
def live(unfounded: LiveNodes) -> LiveNodes:
    """Return nodes with larger segments, of no group yet."""
    return unfounded.where(segment_bytes=16 << 20)


def hang_syncs(live: LiveNodes, *numbers: int) -> threading.Event:
    """Let the disks of some nodes hang; setting the event lets them go on."""
    gate = threading.Event()
    for number in numbers:
        running = live.nodes[number]._replica
        assert running is not None
        sync = running.log.sync

        def wait(sync: Any = sync) -> None:
            assert gate.wait(60)
            sync()

        running.log.sync = wait
    return gate


def has_ticked(driver: Driver, since_s: float) -> bool:
    return driver.last_tick_s != since_s


async def is_full(driver: Driver) -> None:
    """Wait until a leader has no room for what is queued, and has looked again."""
    await eventually(lambda: driver.queued_bytes >= 64 << 10 and not driver.core.has_room)
    for _ in range(3):
        ticked_s = driver.last_tick_s
        await eventually(partial(has_ticked, driver, ticked_s))


async def numbers_in(live: LiveNodes, asked: int, queue_id: int) -> list[int]:
    async with live.client(asked) as client:
        stored = client.read(TOPIC, queue_id=queue_id, linearizable=True)
        return [int(one.record.body[:6]) async for one in stored]


@pytest.mark.found
@pytest.mark.parametrize(
    ("producer", "queues"), [(AppendStream, 1), (AppendStream, 3), (BatchingProducer, 3)]
)
async def test_batches_keep_their_order_while_the_followers_disks_hang(
    live: LiveNodes,
    monkeypatch: pytest.MonkeyPatch,
    producer: type[AppendStream | BatchingProducer],
    queues: int,
) -> None:
    """P2: what finds no room waits; one batch that was refused was stored behind later ones."""
    monkeypatch.setattr(replica, "_MAX_QUEUED_BYTES", 128 << 10)
    leader = await live.found(0, 1, 2)
    async with live.client(leader) as client:
        await client.create_topic(TOPIC, queues=queues)
    gate = hang_syncs(live, *(number for number in live.nodes if number != leader))
    driver = live.nodes[leader].engine._joined()

    async def produce(queue_id: int) -> None:
        async with producer(live.client_addresses) as stream:
            bodies = (b"%06d" % number + bytes(8 << 10) for number in range(120))
            if isinstance(stream, AppendStream):
                sends: Any = (stream.append(TOPIC, [each], queue_id=queue_id) for each in bodies)
            else:
                sends = (stream.send(TOPIC, each, queue_id=queue_id) for each in bodies)
            await asyncio.gather(*sends)

    producing = [asyncio.ensure_future(produce(queue_id)) for queue_id in range(queues)]
    await is_full(driver)
    gate.set()
    await asyncio.gather(*producing)

    for queue_id in range(queues):
        assert await numbers_in(live, leader, queue_id) == list(range(120))


def jolt_syncs(live: LiveNodes, number: int, rng: Random) -> None:
    """Let one sync in ten of a node take up to 0.2 s."""
    running = live.nodes[number]._replica
    assert running is not None
    sync = running.log.sync

    def slow() -> None:
        if rng.random() < 0.1:
            time.sleep(rng.random() * 0.2)
        sync()

    running.log.sync = slow


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
async def test_whole_nodes_store_what_was_sent_in_order_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live: LiveNodes, seed: int
) -> None:
    """As `tests/sim/test_order_at_the_edge.py`, with gRPC, disks, and a leader that goes."""
    rng = Random(seed)
    monkeypatch.setattr(replica, "_MAX_QUEUED_BYTES", rng.choice((64, 256, 2048)) << 10)
    window, size = rng.choice((64, 1024, 32768)), rng.choice((10, 1000, 8000))
    leader = await live.found(0, 1, 2)
    async with live.client(leader) as client:
        await client.create_topic(TOPIC, queues=3)
    for number in live.nodes:
        jolt_syncs(live, number, rng)
    addresses = live.client_addresses
    streaming = AppendStream(addresses, max_messages=window)
    batching = BatchingProducer(addresses, max_messages=window, batch_bytes=16 << 10)
    spooling = SpoolingProducer(addresses, tmp_path / "spool", patience_s=0.2)
    done = 0

    async def produce(send: Callable[[bytes], Coroutine[Any, Any, object]]) -> None:
        async def one(number: int) -> None:
            nonlocal done
            await send(b"%06d" % number + bytes(size))
            done += 1

        await asyncio.gather(*(one(number) for number in range(_EACH)))

    async with streaming, batching, spooling:
        producing = [
            asyncio.ensure_future(each)
            for each in (
                produce(lambda body: streaming.append(TOPIC, [body], queue_id=0)),
                produce(lambda body: batching.send(TOPIC, body, queue_id=1)),
                produce(lambda body: spooling.send(TOPIC, body, queue_id=2)),
            )
        ]
        await eventually(lambda: done >= _EACH // 2)
        if rng.random() < 0.5:
            await live.stop(await live.leader())
        else:
            live.nodes[await live.leader()].engine._joined().core.step_down()
        await asyncio.gather(*producing)
        assert await spooling.drained(30)

    asked = next(iter(live.nodes))
    for queue_id in range(3):
        assert await numbers_in(live, asked, queue_id) == list(range(_EACH))


class _DeafConnection(GrpcConnection):
    """A connection on which nothing comes back from one node, as on a link cut one way."""

    address = ""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._is_deaf = address == self.address

    def produce(self, requests: Any, timeout_s: float | None = None) -> Call:
        call = super().produce(requests, timeout_s)
        return _DeafCall(call) if self._is_deaf else call


class _DeafCall:
    def __init__(self, call: Call) -> None:
        self._call = call

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for answer in self._call:
            if not answer:
                yield answer

    def cancel(self) -> object:
        return self._call.cancel()


@pytest.mark.found
async def test_more_small_messages_than_are_remembered_are_stored_once(live: LiveNodes) -> None:
    """P4: all are sent, no answer comes back, the leader stops, and they are sent again."""
    leader = await live.found(0, 1, 2)
    async with live.client(leader) as client:
        await client.create_topic(TOPIC, queues=1)
    batches, size = MAX_IDS_OF_CLIENT // 1_000 + 5, 1_000
    queue = live.nodes[leader].engine.state.topics.queue(TOPIC, 0)
    _DeafConnection.address = live.client_addresses[leader]

    async with AppendStream(live.client_addresses, connect=_DeafConnection) as stream:
        appends = [
            asyncio.ensure_future(
                stream.append(TOPIC, [b"%06d" % (b * size + n) for n in range(size)], queue_id=0)
            )
            for b in range(batches)
        ]
        await eventually(lambda: queue.end and queue.end == sum(b.count for b in stream._sent))
        assert not any(append.done() for append in appends)
        await live.stop(leader)
        await asyncio.gather(*appends)

    asked = next(iter(live.nodes))
    assert await numbers_in(live, asked, 0) == list(range(batches * size))
    labels = {"group": "orders", "node": f"orders-{asked}"}
    shown = live.nodes[asked]._metrics.registry.get_sample_value
    limit = shown("dledger_remembered_message_ids_limit", labels)
    assert limit == MAX_IDS
    await eventually(
        lambda: (shown("dledger_remembered_message_ids", labels) or 0) > MAX_IDS_OF_CLIENT / 2
    )
