"""Transactions while the leader is killed: each has the end that was said first, and no other."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.client import Client
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.requests.rocketmq_client import RocketClient, code, message

pytestmark = pytest.mark.slow

TOPIC = "tx"
MESSAGES = 40
COMMIT = definition.TransactionResolution.COMMIT
ROLLBACK = definition.TransactionResolution.ROLLBACK


@pytest.fixture
def group(tmp_path: Path) -> Iterator[DevGroup]:
    """Return a running group of three."""
    made = DevGroup(tmp_path / "data", free_port_range())
    made.announced()
    yield made
    if made.process.poll() is None:
        made.stop()


def _half(number: int) -> definition.Message:
    half = message(number, b"%d" % number, TOPIC, message_type=definition.MessageType.TRANSACTION)
    half.system_properties.orphaned_transaction_recovery_duration.seconds = 2
    return half


async def _begun(client: RocketClient, number: int) -> str:
    """Send a half, again and again until the group has it; return its transaction's id."""
    while True:
        response = await client.send(_half(number))
        if code(response.status) == "OK":
            transaction_id: str = response.entries[0].transaction_id
            return transaction_id


async def _ended(client: RocketClient, transaction_id: str, resolution: Any) -> str:
    """End a transaction, until the group says that it has; return what it says."""
    request = service.EndTransactionRequest(
        topic=definition.Resource(name=TOPIC),
        transaction_id=transaction_id,
        resolution=resolution,
    )
    while True:
        said = code((await client.call("EndTransaction", request)).status)
        if said in ("OK", "INVALID_TRANSACTION_ID"):
            return said


class _Producer:
    """Answers questions: it commits what is even, and rolls back the rest."""

    def __init__(self, client: RocketClient) -> None:
        self._client, self.asked = client, set[int]()

    async def run(self) -> None:
        stream: Any = self._client.channel.stream_stream(
            f"/{SERVICE_NAME}/Telemetry",
            request_serializer=service.TelemetryCommand.SerializeToString,
            response_deserializer=service.TelemetryCommand.FromString,
        )(metadata=self._client.metadata)
        settings = definition.Settings(publishing=definition.Publishing())
        await stream.write(service.TelemetryCommand(settings=settings))
        while True:
            command = await stream.read()
            if not command.HasField("recover_orphaned_transaction_command"):
                continue
            question = command.recover_orphaned_transaction_command
            number = int(question.message.body)
            self.asked.add(number)
            await _ended(self._client, question.transaction_id, ROLLBACK if number % 2 else COMMIT)


async def test_each_transaction_ends_once_though_the_leader_is_killed(group: DevGroup) -> None:
    """A third is ended before, a third after the kill, and of the rest the producer is asked."""
    state, leader = group.state(), group.leader
    other = next(number for number in range(3) if number != leader)
    async with Client(group.endpoints[other]) as admin:
        await admin.create_topic(TOPIC, "TRANSACTION", 1)
    client = RocketClient(group.client_port + other)
    producer = _Producer(client)
    answering = asyncio.get_running_loop().create_task(producer.run())
    ids = {number: await _begun(client, number) for number in range(MESSAGES)}
    said: dict[int, str] = {}
    for number in range(0, MESSAGES, 3):
        said[number] = await _ended(client, ids[number], ROLLBACK if number % 2 else COMMIT)

    os.kill(state["pids"][leader], signal.SIGKILL)
    again = {number: await _begun(client, number) for number in range(MESSAGES)}
    for number in range(1, MESSAGES, 3):
        said[number] = await _ended(client, ids[number], ROLLBACK if number % 2 else COMMIT)
    wanted = {b"%d" % number for number in range(0, MESSAGES, 2)}
    got: list[bytes] = []
    while not wanted <= set(got):
        _, messages, _ = await client.receive(TOPIC, wait_s=5, batch=32)
        got += [each.body for each in messages]
        if messages:
            await client.ack(*messages, topic=TOPIC)
    repeated = {
        number: await _ended(client, ids[number], ROLLBACK if number % 2 else COMMIT)
        for number in ids
    }
    _, late, _ = await client.receive(TOPIC, wait_s=1, batch=32)
    otherwise = await _ended(client, ids[0], ROLLBACK)
    answering.cancel()
    await client.channel.close()

    assert again == ids
    assert set(said.values()) == {"OK"}
    assert set(repeated.values()) == {"OK"}
    assert otherwise == "INVALID_TRANSACTION_ID"
    assert sorted(got) == sorted(wanted)
    assert not late
    assert producer.asked >= {number for number in range(2, MESSAGES, 3) if number % 2 == 0}
