"""Requests that arrive while a command waits go along in it, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Any

import pytest

from dledger.broker.command_frame import CommandType, split
from dledger.broker.commands import Ack, decode
from dledger.broker.produce import ProduceFrame
from dledger.calls.caller import Caller
from dledger.common.limits import SHARED_BYTES, SHARED_ROWS
from dledger.errors import DiskFull, LeadershipLost, NotLeader
from dledger.replica.proposals import Command, closed
from dledger.rocketmq.command_batcher import CommandBatcher
from dledger.rpc.rocketmq_stubs import definition, service
from tests.requests.memory_group import MemoryGroup
from tests.requests.part_of_engine import PartOfEngine
from tests.requests.rocketmq_client import MESSAGE_ID, RocketClient, code, message


class BusyEngine(PartOfEngine):
    """Takes commands and closes them when the test says so."""

    def __init__(self) -> None:
        self.submitted: list[tuple[Command, asyncio.Future[object]]] = []
        self.refuse: Exception | None = None

    def check(self, kind: int) -> None:
        """Refuse if the test says so."""
        del kind
        if self.refuse is not None:
            raise self.refuse

    def submit(
        self, command: Command, *, line: str = "", producer: str = ""
    ) -> asyncio.Future[object]:
        """Keep a command."""
        self.check(command.kind if not isinstance(command, bytes) else 0)
        result: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.submitted.append((command, result))
        return result

    def closed(self) -> list[bytes]:
        """Take all there is."""
        return [closed(command) for command, _ in self.submitted]


def _joined(key: str, rows: Sequence[bytes]) -> bytes:
    return b"".join((key.encode(), *rows))


@pytest.fixture
def engine() -> BusyEngine:
    """An engine that is busy."""
    return BusyEngine()


@pytest.fixture
def commands(engine: BusyEngine) -> CommandBatcher[str, bytes]:
    """Shared commands whose bytes are the key and the rows."""
    return CommandBatcher(engine, 1, _joined)


async def test_rows_of_one_key_share_a_command_until_it_is_closed(
    engine: BusyEngine, commands: CommandBatcher[str, bytes]
) -> None:
    """Each request is told where its rows begin."""
    requests = [commands.submit("a", [b"1"], 1), commands.submit("a", [b"2", b"3"], 2)]
    assert engine.closed() == [b"a123"]
    late = commands.submit("a", [b"4"], 1)

    for _, result in engine.submitted:
        result.set_result("done")

    assert [await request for request in (*requests, late)] == [
        ("done", 0),
        ("done", 1),
        ("done", 0),
    ]
    assert len(commands) == 0


async def test_rows_of_different_keys_do_not_mix(
    engine: BusyEngine, commands: CommandBatcher[str, bytes]
) -> None:
    """In the order of their first rows."""
    for key in "abab":
        commands.submit(key, [b"x"], 1)

    assert engine.closed() == [b"axx", b"bxx"]


async def test_a_full_command_takes_nothing_in(
    engine: BusyEngine, commands: CommandBatcher[str, bytes]
) -> None:
    """In rows and in bytes; a request of more makes one of its own."""
    commands.submit("a", [b""] * SHARED_ROWS, 0)
    commands.submit("a", [b"x"], SHARED_BYTES + 1)
    commands.submit("a", [b"y"], 1)

    assert engine.closed() == [b"a", b"ax", b"ay"]


async def test_a_lost_command_is_lost_for_all_its_requests(
    engine: BusyEngine, commands: CommandBatcher[str, bytes]
) -> None:
    """And the next request begins a new one, though this one was never closed."""
    requests = [commands.submit("a", [b"1"], 1) for _ in range(2)]
    engine.submitted[0][1].set_exception(LeadershipLost("lost"))

    for request in requests:
        with pytest.raises(LeadershipLost):
            await request
    assert len(commands) == 0


async def test_a_refused_command_leaves_nothing_open(
    engine: BusyEngine, commands: CommandBatcher[str, bytes]
) -> None:
    """The request is refused at once, and the next is on its own."""
    engine.refuse = NotLeader(None)
    with pytest.raises(NotLeader):
        commands.submit("a", [b"1"], 1)
    engine.refuse = None

    commands.submit("a", [b"2"], 1)

    assert engine.closed() == [b"a2"]


async def test_nothing_joins_a_command_that_waits_while_its_kind_is_refused(
    engine: BusyEngine, commands: CommandBatcher[str, bytes]
) -> None:
    """A full disk is said at once, and not when the caller's time is up."""
    commands.submit("a", [b"1"], 1)
    engine.refuse = DiskFull("0 bytes free")

    with pytest.raises(DiskFull):
        commands.submit("a", [b"2"], 1)

    assert engine.closed() == [b"a1"]


async def test_a_request_that_is_given_up_takes_nobody_with_it(
    engine: BusyEngine, commands: CommandBatcher[str, bytes]
) -> None:
    """Its client went away; the others wait on."""
    gone, kept = commands.submit("a", [b"1"], 1), commands.submit("a", [b"2"], 1)
    gone.cancel()

    engine.submitted[0][1].set_result("done")

    assert await kept == ("done", 1)


def _caller(client_id: str = "client-1") -> Caller:
    return Caller(
        client_id=client_id, peer="", tls=False, forwarded=False, deadline_s=inf, fields={}
    )


async def _sent_at_once(group: MemoryGroup, *numbers: int) -> list[Any]:
    """Send messages of one client in one turn of the loop."""
    sender = group.nodes[0].parts.messaging.sender
    requests = [service.SendMessageRequest(messages=[message(number)]) for number in numbers]
    return await asyncio.gather(*(sender.send(request, _caller()) for request in requests))


def _payloads(group: MemoryGroup, wanted: CommandType) -> list[tuple[bytes, int, int]]:
    return [
        (entry.data, start, end)
        for entry in group.log
        for kind, start, end in split(entry.data)
        if kind == wanted
    ]


async def test_sends_of_one_producer_are_stored_as_one_batch(
    group: MemoryGroup, client: RocketClient
) -> None:
    """Each is answered with its own id and its own place."""
    await client.route("t")

    answers = await _sent_at_once(group, 1, 2, 3)

    assert [ProduceFrame(*each).count for each in _payloads(group, CommandType.PRODUCE)] == [3]
    entries = [answer.entries[0] for answer in answers]
    assert [entry.message_id for entry in entries] == [MESSAGE_ID(n) for n in (1, 2, 3)]
    assert [entry.offset for entry in entries] == [0, 1, 2]
    assert {code(entry.status) for entry in entries} == {"OK"}


async def test_a_repeated_send_in_the_same_batch_is_stored_once(
    group: MemoryGroup, client: RocketClient
) -> None:
    """Both are told the same place."""
    await client.route("t")

    answers = await _sent_at_once(group, 1, 2, 1)

    assert [answer.entries[0].offset for answer in answers] == [0, 1, 0]
    assert group.nodes[0].engine.state.topics.messages("t") == 2


async def test_acks_of_a_group_share_a_command_and_have_their_own_outcomes(
    group: MemoryGroup, client: RocketClient
) -> None:
    """A stale handle is refused to the one who sent it."""
    await client.send(message(1), message(2))
    _, (stale, _), _ = await client.receive(invisible_s=0.01)
    await asyncio.sleep(0.02)
    _, (_, fresh), _ = await client.receive()
    requests = [
        service.AckMessageRequest(
            group=definition.Resource(name="g"),
            topic=definition.Resource(name="t"),
            entries=[service.AckMessageEntry(receipt_handle=each.system_properties.receipt_handle)],
        )
        for each in (fresh, stale)
    ]
    acker = group.nodes[0].parts.messaging.acker

    begun = [acker.begin_ack(request, _caller()) for request in requests]
    answers = [each.response(await each.result) or pytest.fail("no answer") for each in begun]

    (payload,) = _payloads(group, CommandType.ACK)
    command = decode(CommandType.ACK, payload[0][payload[1] : payload[2]])
    assert isinstance(command, Ack)
    assert len(command.leases) == 2
    assert [code(answer.status) for answer in answers] == ["OK", "INVALID_RECEIPT_HANDLE"]
