"""The whole group is killed under a producer with a spool (promise P10)."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from dledger.client import Client, Record, SendResult, SpoolingProducer
from e2e.harness.dev_group import DevGroup
from tests.waiting import eventually, eventually_blocking

TOPIC = "orders"
RESTARTED_S = 60


def restarted(group: DevGroup) -> DevGroup:
    """Start a killed group's nodes again, on their data."""
    again = DevGroup(group.data, group.client_port, "segment_bytes=8388608")
    again.announced()
    return again


async def stored_ids(endpoints: Sequence[str]) -> list[str]:
    """Return the message ids of the topic's queue in order; all nodes must have the same."""
    first, *others = [await _stored_ids(endpoint) for endpoint in endpoints]
    assert all(other == first for other in others)
    return first


async def _stored_ids(endpoint: str) -> list[str]:
    async with Client(endpoint) as client:
        reading = client.read(TOPIC, 0, linearizable=True)
        return [stored.record.message_id async for stored in reading]


class Producing:
    """Tasks that send numbered messages without pause; every send must succeed."""

    def __init__(self, producer: SpoolingProducer) -> None:
        self._producer = producer
        self._numbers = count()
        self._stopped = False
        self.sent: list[str] = []
        self.results: list[SendResult] = []

    async def run(self) -> None:
        """Send until stopped: one message, then ten at once, and so on."""
        while not self._stopped:
            for size in (1, 10):
                batch = [self._next() for _ in range(size)]
                self.results += await self._producer.send_batch(TOPIC, batch)

    def _next(self) -> Record:
        record = Record(body=b"x" * 200, message_id=f"{next(self._numbers):08}")
        self.sent.append(record.message_id)
        return record

    def stop(self) -> None:
        """Let `run` end with the batch it is at."""
        self._stopped = True

    async def acked(self, number: int) -> None:
        """Wait for that many more results."""
        target = len(self.results) + number
        await eventually(lambda: len(self.results) >= target, deadline_s=600.0)


@pytest.mark.slow
@pytest.mark.parametrize("down_s", [2, pytest.param(20, marks=pytest.mark.long)])
def test_three_killed_nodes_cost_a_spooling_producer_no_message(
    group: DevGroup, tmp_path: Path, down_s: float
) -> None:
    """All SIGKILLed for a while: no error to the caller; all present, in order, none twice."""
    endpoints = group.state()["endpoints"]

    async def outage() -> tuple[Producing, SpoolingProducer]:
        async with SpoolingProducer(endpoints, tmp_path / "spool") as producer:
            producing = Producing(producer)
            task = asyncio.create_task(producing.run())
            await producing.acked(100)
            await asyncio.to_thread(group.kill)
            await producing.acked(100)
            await asyncio.sleep(down_s)  # the longer, the more there is to replay
            again.append(await asyncio.to_thread(restarted, group))
            assert await producer.drained(RESTARTED_S)
            await producing.acked(100)
            producing.stop()
            await task
            assert await producer.drained(RESTARTED_S)
            return producing, producer

    again: list[DevGroup] = []
    try:
        producing, producer = asyncio.run(outage())
        found = asyncio.run(stored_ids(endpoints))
    finally:
        for one in again:
            one.stop()

    assert found == producing.sent
    assert [result.message_id for result in producing.results] == producing.sent
    spooled = [result.spooled for result in producing.results]
    assert not spooled[0]
    assert True in spooled
    assert False in spooled[spooled.index(True) :]
    assert producer.counters().rejected == 0


PRODUCER = """
import asyncio, json, sys
from dledger.client import Record, SpoolingProducer

async def main():
    async with SpoolingProducer(sys.argv[1].split(","), sys.argv[2], patience_s=0.5) as producer:
        for number in range(int(sys.argv[3]), 1_000_000):
            sent = await producer.send("orders", Record(body=b"x", message_id=f"{number:08}"))
            print(json.dumps([number, sent.spooled, sent.offset]), flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
def test_killed_producer_and_killed_group_lose_nothing_together(
    group: DevGroup, tmp_path: Path
) -> None:
    """The producer is SIGKILLed three times, in the outage and in the replay behind it."""
    endpoints = group.state()["endpoints"]
    returned: list[tuple[int, bool, int | None]] = []

    def live(messages: int) -> None:
        """Produce with the next numbers until that many sends returned; then kill it."""
        command = [
            *(sys.executable, "-c", PRODUCER, ",".join(endpoints)),
            *(str(tmp_path / "spool"), str(len(returned) * 2)),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            returned.extend(tuple(json.loads(process.stdout.readline())) for _ in range(messages))
            process.send_signal(signal.SIGKILL)

    async def catch_up() -> None:
        async with SpoolingProducer(endpoints, tmp_path / "spool") as producer:
            assert await producer.drained(RESTARTED_S)

    live(50)
    group.kill()
    live(200)
    live(200)
    again = restarted(group)
    try:
        eventually_blocking(again.whole, "all nodes are ready", RESTARTED_S)
        live(50)
        asyncio.run(catch_up())
        found = [int(message_id) for message_id in asyncio.run(stored_ids(endpoints))]
    finally:
        ended = again.stop()

    assert ended == 0
    assert found == sorted(set(found))
    lost = [(number, *how) for number, *how in returned if number not in found]
    assert not lost, f"(number, spooled, offset) {lost}; found {found[-3:]} at {len(found)}"
    told = {offset: number for number, _, offset in returned if offset is not None}
    assert told == {offset: found[offset] for offset in told}
