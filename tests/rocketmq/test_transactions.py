"""Transactions over the protocol: halves, their ends, and the questions about those without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dledger.broker.commands import CreateTopic, DeleteTopic, PauseHeld, ResumeHeld
from dledger.broker.held_refs import HOUR_MS
from dledger.broker.topics import TRANSACTION
from dledger.rocketmq import half_checks
from dledger.rocketmq.half_checks import OFTEN
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from tests.requests.memory_group import WAIT_S, MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.waiting import eventually

TOPIC = "tx"
COMMIT = definition.TransactionResolution.COMMIT
ROLLBACK = definition.TransactionResolution.ROLLBACK
UNKNOWN = definition.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at once what is due, and do not spread what is overdue."""
    monkeypatch.setattr(half_checks, "_LOOK_S", 0.001)
    monkeypatch.setattr(half_checks, "_SPREAD_MS", 1)


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Two nodes; node 0 leads. There is a topic for transactions, of one queue."""
    async with memory_group(2) as group:
        await group.commit(CreateTopic(name=TOPIC, type=TRANSACTION.name, queues=1).encode())
        yield group


@pytest.fixture(params=[0, 1], ids=["leader", "follower"])
async def client(request: pytest.FixtureRequest, group: MemoryGroup) -> AsyncIterator[RocketClient]:
    async with RocketClient(group.nodes[request.param].port) as client:
        yield client


def _half(number: int = 1, *, topic: str = TOPIC, **fields: Any) -> definition.Message:
    system: dict[str, Any] = {"message_type": definition.MessageType.TRANSACTION}
    return message(number, topic=topic, **(system | fields))


async def _begin(client: RocketClient, number: int = 1, **fields: Any) -> str:
    sent = await client.send(_half(number, **fields))
    assert code(sent.status) == "OK", sent
    transaction_id: str = sent.entries[0].transaction_id
    return transaction_id


async def _end(
    client: RocketClient,
    transaction_id: str,
    resolution: definition.TransactionResolution.ValueType,
    topic: str = TOPIC,
) -> str:
    request = service.EndTransactionRequest(
        topic=definition.Resource(name=topic),
        transaction_id=transaction_id,
        resolution=resolution,
    )
    response = await client.call("EndTransaction", request)
    return code(response.status)


async def _bodies(client: RocketClient) -> list[bytes]:
    _, messages, _ = await client.receive(TOPIC)
    return [each.body for each in messages]


class Stream:
    """A producer's Telemetry stream."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def asked(self) -> service.RecoverOrphanedTransactionCommand:
        """Return the next question."""
        async with asyncio.timeout(WAIT_S):
            command = await self.call.read()
        assert command.HasField("recover_orphaned_transaction_command"), command
        question: service.RecoverOrphanedTransactionCommand
        question = command.recover_orphaned_transaction_command
        return question


@asynccontextmanager
async def _producer(
    group: MemoryGroup, node: int = 0, client_id: str = "client-1", *topics: str
) -> AsyncIterator[Stream]:
    """Open a stream; it has told what its client publishes to, if anything."""
    async with RocketClient(group.nodes[node].port, client_id) as client:
        call: Any = client.channel.stream_stream(
            f"/{SERVICE_NAME}/Telemetry",
            request_serializer=service.TelemetryCommand.SerializeToString,
            response_deserializer=service.TelemetryCommand.FromString,
        )(metadata=client.metadata)
        settings = definition.Settings(publishing=definition.Publishing())
        settings.publishing.topics.extend(definition.Resource(name=topic) for topic in topics)
        await call.write(service.TelemetryCommand(settings=settings))
        await call.read()
        try:
            yield Stream(call)
        finally:
            call.cancel()


def _open(group: MemoryGroup, node: int = 0) -> int:
    return len(group.nodes[node].engine.state.held.open_halves)


def _checks(group: MemoryGroup) -> list[int]:
    halves = group.nodes[0].engine.state.held.open_halves
    return [half.checks for _, half in halves.items()]


# -- ends ------------------------------------------------------------------------------------------


async def test_a_half_is_delivered_once_its_transaction_is_committed(
    client: RocketClient, group: MemoryGroup
) -> None:
    """With all that its producer gave it; not before."""
    transaction_id = await _begin(client, tag="a", keys=["k"], body=b"half")
    before = await _bodies(client)

    ended = await _end(client, transaction_id, COMMIT)

    assert (before, ended) == ([], "OK")
    _, (got,), _ = await client.receive(TOPIC)
    system = got.system_properties
    assert (got.body, system.tag, list(system.keys)) == (b"half", "a", ["k"])
    assert system.message_type == definition.MessageType.TRANSACTION
    assert system.born_host == "10.0.0.9"
    assert _open(group) == _open(group, 1) == 0


async def test_a_half_that_is_rolled_back_is_delivered_to_nobody(client: RocketClient) -> None:
    transaction_id = await _begin(client)

    assert await _end(client, transaction_id, ROLLBACK) == "OK"

    assert await _bodies(client) == []


@pytest.mark.parametrize(("first", "other"), [(COMMIT, ROLLBACK), (ROLLBACK, COMMIT)])
async def test_the_first_end_counts(
    client: RocketClient,
    group: MemoryGroup,
    first: definition.TransactionResolution.ValueType,
    other: definition.TransactionResolution.ValueType,
) -> None:
    """It may be said again, for an hour also of a half that was open for long; not the other."""
    transaction_id = await _begin(client)
    group.clock_skew_ms += 10 * HOUR_MS

    answers = [await _end(client, transaction_id, each) for each in (first, first, other)]
    group.clock_skew_ms += HOUR_MS
    await _begin(client, 2)
    late = await _end(client, transaction_id, first)

    assert answers == ["OK", "OK", "INVALID_TRANSACTION_ID"]
    assert late == "OK"
    assert await _bodies(client) == ([b"body"] if first == COMMIT else [])


@pytest.mark.parametrize("resolution", [COMMIT, ROLLBACK])
async def test_an_end_of_which_nothing_is_known_any_more_is_refused(
    client: RocketClient, group: MemoryGroup, resolution: definition.TransactionResolution.ValueType
) -> None:
    transaction_id = await _begin(client)
    await _end(client, transaction_id, COMMIT)
    group.clock_skew_ms += 3 * HOUR_MS
    await _begin(client, 2)

    assert await _end(client, transaction_id, resolution) == "INVALID_TRANSACTION_ID"


async def test_who_does_not_know_yet_is_answered_ok(
    client: RocketClient, group: MemoryGroup
) -> None:
    """The Python SDK says so; the half stays."""
    transaction_id = await _begin(client)

    assert await _end(client, transaction_id, UNKNOWN) == "OK"
    assert await _end(client, transaction_id, 7) == "OK"  # type: ignore[arg-type]

    assert _open(group) == 1


async def test_an_end_whose_outcome_is_lost_is_repeated_by_the_node(
    client: RocketClient, group: MemoryGroup
) -> None:
    """It cannot do harm, and the SDKs do not repeat it."""
    transaction_id = await _begin(client)
    group.lose_outcomes = 1

    assert await _end(client, transaction_id, COMMIT) == "OK"

    assert await _bodies(client) == [b"body"]


async def test_a_commit_survives_its_leader(group: MemoryGroup) -> None:
    async with RocketClient(group.nodes[1].port) as client:
        transaction_id = await _begin(client)
        group.elect(1)

        assert await _end(client, transaction_id, COMMIT) == "OK"

        assert await _bodies(client) == [b"body"]


async def test_a_half_that_is_sent_again_has_its_id_again(
    client: RocketClient, group: MemoryGroup
) -> None:
    """Also after its end; and another with its id is another transaction."""
    first = await _begin(client)
    again = await _begin(client)
    other = await _begin(client, body=b"other")
    await _end(client, first, COMMIT)

    late = await _begin(client)

    assert first == again == late
    assert other != first
    assert _open(group) == 1


async def test_ids_are_of_one_topic_and_cannot_be_guessed(
    client: RocketClient, group: MemoryGroup
) -> None:
    """Nor are those of a topic that was deleted since."""
    transaction_id = await _begin(client)
    await group.commit(CreateTopic(name="t2", type=TRANSACTION.name, queues=1).encode())
    await group.commit(CreateTopic(name="plain", type="NORMAL", queues=1).encode())
    wrong = transaction_id[:20] + ("A" if transaction_id[20] != "A" else "B") + transaction_id[21:]

    assert await _end(client, wrong, COMMIT) == "INVALID_TRANSACTION_ID"
    assert await _end(client, "", COMMIT) == "INVALID_TRANSACTION_ID"
    assert await _end(client, "~", COMMIT) == "INVALID_TRANSACTION_ID"
    assert await _end(client, transaction_id, COMMIT, "t2") == "INVALID_TRANSACTION_ID"
    assert await _end(client, transaction_id, COMMIT, "none") == "TOPIC_NOT_FOUND"
    assert (
        await _end(client, transaction_id, COMMIT, "plain") == "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
    )
    topic = group.nodes[0].engine.state.topics.get(TOPIC)
    assert topic is not None
    await group.commit(DeleteTopic(name=TOPIC, generation=topic.generation).encode())
    await group.commit(CreateTopic(name=TOPIC, type=TRANSACTION.name, queues=1).encode())
    assert await _end(client, transaction_id, COMMIT) == "INVALID_TRANSACTION_ID"


async def test_topics_and_messages_must_both_be_of_transactions(client: RocketClient) -> None:
    """As RocketMQ has it; and a half has no time and no message group."""
    plain = await client.send(message(1, topic=TOPIC))
    await client.send(message(9, topic="t"))
    elsewhere = await client.send(_half(2, topic="t"))
    grouped = await client.send(_half(3, message_group="g"))
    late = _half(4)
    late.system_properties.orphaned_transaction_recovery_duration.seconds = 3_601

    conflict = "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
    assert code(plain.status) == code(elsewhere.status) == code(grouped.status) == conflict
    assert code((await client.send(late)).status) == "BAD_REQUEST"


# -- checks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", [0, 1])
async def test_the_producer_is_asked_and_its_answer_counts(
    client: RocketClient, group: MemoryGroup, node: int
) -> None:
    """Wherever its stream is; the whole message is shown to it."""
    async with _producer(group, node) as stream:
        transaction_id = await _begin(client, tag="a", keys=["k"], body=b"half")
        group.clock_skew_ms += 6_001

        question = await stream.asked()
        ended = await _end(client, question.transaction_id, COMMIT)

    assert (question.transaction_id, ended) == (transaction_id, "OK")
    asked = question.message
    assert (asked.body, asked.system_properties.tag) == (b"half", "a")
    assert list(asked.system_properties.keys) == ["k"]
    assert asked.topic.name == TOPIC
    assert asked.system_properties.message_id
    assert await _bodies(client) == [b"half"]


async def test_a_check_comes_when_the_producer_wants_it(
    client: RocketClient, group: MemoryGroup
) -> None:
    half = _half()
    half.system_properties.orphaned_transaction_recovery_duration.seconds = 60
    async with _producer(group) as stream:
        await client.send(half)
        group.clock_skew_ms += 59_000
        await asyncio.sleep(0.01)
        before = _checks(group)
        group.clock_skew_ms += 1_001

        await stream.asked()

    assert before == [0]


async def test_another_producer_is_asked_while_the_half_s_own_is_gone(group: MemoryGroup) -> None:
    """It is known by what it sent, or by what it says that it sends to."""
    async with RocketClient(group.nodes[0].port, "gone") as gone:
        await _begin(gone)
    async with _producer(group, 1, "client-2", TOPIC) as stream:
        group.clock_skew_ms += 6_001

        await stream.asked()


async def test_a_producer_is_known_without_settings(group: MemoryGroup) -> None:
    """They follow a new connection late: what it has sent says which topic it knows."""
    async with RocketClient(group.nodes[0].port, "gone") as gone:
        await _begin(gone, 1)
    async with (
        _producer(group, 1, "client-2") as stream,
        RocketClient(group.nodes[0].port, "client-2") as client,
    ):
        await _end(client, await _begin(client, 2), COMMIT)
        group.clock_skew_ms += 6_001

        question = await stream.asked()

    assert question.message.system_properties.message_id == message(1).system_properties.message_id


async def test_producers_are_asked_in_turn(client: RocketClient, group: MemoryGroup) -> None:
    """One without a checker does not answer."""
    async with (
        _producer(group, 0) as own,
        _producer(group, 1, "client-2", TOPIC) as other,
    ):
        await _begin(client)
        group.clock_skew_ms += 6_001
        await own.asked()
        group.clock_skew_ms += 30_001

        await other.asked()

    assert _checks(group) == [2]


async def test_a_client_is_asked_by_each_of_its_streams_in_turn(
    client: RocketClient, group: MemoryGroup
) -> None:
    """One may have a connection of which nobody reads any more; that was written is no answer."""
    async with _producer(group, 0) as unread, _producer(group, 1) as read:
        await _begin(client)
        group.clock_skew_ms += 6_001
        await unread.asked()
        group.clock_skew_ms += 30_001

        await read.asked()


async def test_a_half_that_nobody_ends_stays_and_is_asked_about_seldom(
    client: RocketClient, group: MemoryGroup
) -> None:
    await _begin(client)
    for checks in range(OFTEN):
        group.clock_skew_ms += 30_001
        await eventually(lambda wanted=checks + 1: _checks(group) == [wanted])  # type: ignore[misc]

    group.clock_skew_ms += 30_001
    await asyncio.sleep(0.02)

    assert _checks(group) == [OFTEN]
    group.clock_skew_ms += HOUR_MS
    await eventually(lambda: _checks(group) == [OFTEN + 1])
    assert _open(group) == 1


async def test_a_new_leader_goes_on_where_the_last_one_was(
    client: RocketClient, group: MemoryGroup
) -> None:
    """The number of checks and the time of the next are in the log."""
    await _begin(client)
    group.clock_skew_ms += 6_001
    await eventually(lambda: _checks(group) == [1])

    group.elect(1)
    await asyncio.sleep(0.02)
    before = _checks(group)
    group.clock_skew_ms += 30_001

    await eventually(lambda: _checks(group) == [2])
    assert before == [1]


async def test_halves_of_a_restored_log_are_not_asked_about_until_a_word(
    client: RocketClient, group: MemoryGroup
) -> None:
    """New ones are."""
    await _begin(client, 1)
    await group.commit(PauseHeld(pause_id="r").encode())
    await _begin(client, 2)
    group.clock_skew_ms += 6_001
    await eventually(lambda: _checks(group) == [0, 1])
    group.clock_skew_ms += 30_001
    await eventually(lambda: _checks(group) == [0, 2])

    await group.commit(ResumeHeld(cancels=False).encode())

    await eventually(lambda: _checks(group)[0] == 1)


async def test_halves_that_wait_for_their_check_are_paused_by_a_restore(
    client: RocketClient, group: MemoryGroup
) -> None:
    """Also those that were asked about before."""
    await _begin(client, 1)
    group.clock_skew_ms += 6_001
    await eventually(lambda: _checks(group) == [1])
    await group.commit(PauseHeld(pause_id="r").encode())
    await _begin(client, 2)
    group.clock_skew_ms += 30_001

    await eventually(lambda: _checks(group)[1] == 1)
    group.clock_skew_ms += 30_001
    await eventually(lambda: _checks(group)[1] == 2)

    assert _checks(group)[0] == 1


async def test_what_is_overdue_is_spread(
    client: RocketClient, group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new leader does not ask about all at once."""
    group.elect(None)
    monkeypatch.setattr(half_checks, "_SPREAD_MS", 30_000)
    monkeypatch.setattr(half_checks, "_SPREAD_EACH_MS", 10_000)
    group.elect(0)
    checks = group.nodes[0].parts.messaging.checks
    for number in range(12):
        await _begin(client, number)
    group.clock_skew_ms += 10 * HOUR_MS
    group.elect(1)
    await asyncio.sleep(0.02)
    group.elect(0)
    del checks

    await eventually(lambda: sum(_checks(group)) > 0)
    some = sum(_checks(group))
    group.clock_skew_ms += 29_000

    await eventually(lambda: min(_checks(group)) == 1)
    assert some < 12
