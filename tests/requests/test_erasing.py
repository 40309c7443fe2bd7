"""Erasing a key at the edge: three nodes, our own clients, SDKs, and what is told afterwards."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from dledger.broker.command_frame import split
from dledger.broker.commands import Retain, SetRetention
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.erase import MAX_OFFSETS, Erase
from dledger.broker.key_queues import queue_of_key
from dledger.broker.message import Columns, Message
from dledger.broker.produce import encode_produce
from dledger.broker.queue_positions import Payload
from dledger.client import AdminClient, Client, ErasedView
from dledger.common.metrics import NodeMetrics
from dledger.errors import InvalidArgument, NotLeader, OffsetOutOfRange, Refused, UnknownTopic
from dledger.replica.rolling import Due, next_roll, rekeep_of
from dledger.requests.config import RequestConfig
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services import erasing
from dledger.services.erasing import Eraser, Wanted, next_step
from dledger.types import Entry, Record
from tests.broker.compacted import compact_topics
from tests.broker.log import Log
from tests.requests.memory_group import WAIT_S, MemoryGroup, memory_group
from tests.requests.part_of_engine import PartOfEngine
from tests.requests.rocketmq_client import RocketClient

_KEY = "user-17, a name that nobody may read in a log"
_QUEUES = 3


@pytest.fixture(autouse=True)
def _compacted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        compact_topics(patch)
        yield


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Three nodes, and the compacted topic t; the group keeps its log for 72 hours."""
    async with memory_group(3, RequestConfig(retention_hours=72)) as group:
        async with Client(group.addresses[0]) as client:
            await client.create_topic("t", queues=_QUEUES)
        yield group


def _admin(group: MemoryGroup, node: int = 0) -> AdminClient:
    return AdminClient(f"127.0.0.1:{group.nodes[node].peer_port}", timeout_s=WAIT_S)


def _eraser(engine: PartOfEngine) -> Eraser:
    return Eraser(engine, NodeMetrics("orders", "n"))


def _queue_of(key: str) -> int:
    return queue_of_key(key.encode(), _QUEUES)


def _neighbour(key: str, start: str) -> str:
    """Return another key of the same queue that begins so."""
    keys = (f"{start}{number}" for number in range(1_000))
    return next(each for each in keys if _queue_of(each) == _queue_of(key))


async def _send(group: MemoryGroup, key: str, *bodies: bytes) -> None:
    async with Client(group.addresses[0]) as client:
        records = [Record(body=body, keys=(key,)) for body in bodies]
        await client.append("t", records, queue_id=_queue_of(key))


async def _shown(group: MemoryGroup, node: int) -> set[bytes]:
    """Return what readers and a new consumer group are shown by one node; it is the same."""
    read: set[bytes] = set()
    async with Client(group.addresses[node]) as client:
        for queue_id in range(_QUEUES):
            read |= {each.record.body async for each in client.read("t", queue_id)}
    async with RocketClient(group.nodes[node].port) as rocket:
        _, received, _ = await rocket.receive(group=f"new-{node}", batch=32)
    assert {each.body for each in received} <= read
    return read


async def test_a_key_is_erased_for_everybody_and_the_others_stay(
    group: MemoryGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """At every node, of single messages and of batches; once more erases nothing."""
    caplog.set_level(logging.DEBUG, logger="dledger")
    await _send(group, _KEY, b"one", b"two")
    await _send(group, "user-18", b"other")
    await _send(group, _KEY, b"three")
    first = len(group.log) - 2

    async with _admin(group) as admin:
        done = await admin.erase("t", _KEY)
        again = await admin.erase("t", _KEY)

    assert done == ErasedView(messages=3, first_entry=first, erase_entry=len(group.log))
    assert again == ErasedView(messages=0, first_entry=0, erase_entry=0)
    for node in range(3):
        assert await _shown(group, node) == {b"other"}
    assert len({node.engine.state.digest() for node in group.nodes}) == 1
    await _send(group, _KEY, b"anew")
    assert await _shown(group, 1) == {b"other", b"anew"}
    command = group.log[done.erase_entry - 1].data
    assert _KEY.encode() not in command
    assert _KEY not in caplog.text


async def test_what_is_erased_is_told_until_the_log_begins_behind_it(group: MemoryGroup) -> None:
    """With its time, so that whoever knows the group's retention knows until when."""
    await _send(group, _KEY, b"one")
    async with _admin(group) as admin:
        done = await admin.erase("t", _KEY)
        told = await admin.erasures()
        (found,) = told.erasures
        assert (found.entry, found.topic, found.messages) == (done.erase_entry, "t", 1)
        assert found.at_ms == group.log[done.erase_entry - 1].timestamp_ms
        assert (told.first_index, told.retention_hours) == (1, 72)

        await group.nodes[0].engine.propose(Retain(before_index=done.erase_entry).encode())

        told = await admin.erasures()
        assert (told.erasures, told.first_index) == ((), done.erase_entry)


async def test_it_only_counts_if_asked_to(group: MemoryGroup) -> None:
    """Nothing is committed for that."""
    await _send(group, _KEY, b"one", b"two")
    before = len(group.log)

    async with _admin(group) as admin:
        counted = await admin.erase("t", _KEY, only_count=True)

    assert (counted.messages, counted.erase_entry) == (2, 0)
    assert len(group.log) == before
    assert await _shown(group, 0) == {b"one", b"two"}


async def test_a_long_queue_takes_several_calls(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each goes on where the one before ended, up to where the first one began."""
    monkeypatch.setattr(erasing, "_CALL_S", 0.0)
    monkeypatch.setattr(erasing, "_SLICES", 1)
    for number in range(4):
        await _send(group, _KEY, b"%d" % number)
    calls = list[pb.EraseResponse]()
    request = pb.EraseRequest(topic="t", key=_KEY)
    async with _admin(group) as admin:
        while True:
            answer = await admin.call(admin._stub.Erase, request)
            calls.append(answer)
            if answer.next_offset >= answer.end_offset:
                break
            await _send(group, _KEY, b"later")
            request.generation = answer.generation
            request.start_offset, request.end_offset = answer.next_offset, answer.end_offset

    assert [each.messages for each in calls] == [1, 1, 1, 1]
    assert {each.end_offset for each in calls} == {4}
    assert await _shown(group, 0) == {b"later"}


async def test_what_was_copied_is_found_with_the_entry_that_stored_it(group: MemoryGroup) -> None:
    """A block of the queue's messages is looked through like any payload."""
    await _send(group, _KEY, b"one")
    stored = len(group.log)
    await _send(group, _neighbour(_KEY, "b"), b"b")
    engine, queue_id = group.nodes[0].engine, _queue_of(_KEY)
    topics = engine.state.topics
    roll = next_roll(
        topics.named("t"),
        queue_id,
        topics.queue("t", queue_id),
        Due.below(len(group.log) + 1),
    )
    assert roll is not None
    command, _ = rekeep_of(roll, lambda index: group.log[index - 1], lambda *_: True)
    await engine.propose(command)

    async with _admin(group) as admin:
        done = await admin.erase("t", _KEY)

    assert (done.messages, done.first_entry) == (1, stored)
    assert await _shown(group, 0) == {b"b"}


async def test_only_exactly_this_key_is_erased(group: MemoryGroup) -> None:
    """Not a longer one, not one in a body, not an empty one; keys of any script."""
    key = "ключ"
    await _send(group, key, b"a")
    await _send(group, _neighbour(key, key), key.encode())

    async with _admin(group) as admin:
        assert (await admin.erase("t", key)).messages == 1
        with pytest.raises(InvalidArgument, match="the key is empty"):
            await admin.erase("t", "")
    assert await _shown(group, 0) == {key.encode()}


async def test_what_cannot_be_is_refused_by_name(group: MemoryGroup) -> None:
    """And no refusal says the key."""
    said = list[str]()
    async with Client(group.addresses[0]) as client:
        await client.create_topic("plain", queues=1)
    async with _admin(group) as admin:
        for request, error in (
            (pb.EraseRequest(topic="nowhere", key=_KEY), UnknownTopic),
            (pb.EraseRequest(topic="plain", key=_KEY), Refused),
            (pb.EraseRequest(topic="t", key=_KEY, start_offset=-1), InvalidArgument),
            (pb.EraseRequest(topic="t", key=_KEY, generation=9), UnknownTopic),
        ):
            with pytest.raises(error) as refused:
                await admin.call(admin._stub.Erase, request)
            said.append(str(refused.value))
    async with _admin(group, 1) as follower:
        stub = follower._stub
        for ask, what in (
            (stub.Erase, pb.EraseRequest(topic="t", key=_KEY)),
            (stub.ListErasures, pb.ListErasuresRequest()),
        ):
            with pytest.raises(NotLeader) as told:
                await follower.call(ask, what)
            said.append(str(told.value))

    assert "'plain' is not compacted" in said[1]
    assert not any(_KEY in each for each in said)


# -- what only backups have ----------------------------------------------------------------------


async def _erase_older(group: MemoryGroup, *offsets: int, **more: Any) -> pb.EraseResponse:
    asked = {"topic": "t", "key": _KEY, "generation": 1, "queue_id": _queue_of(_KEY), **more}
    async with _admin(group) as admin:
        request = pb.EraseRequest(offsets=offsets, **asked)
        answer: pb.EraseResponse = await admin.call(admin._stub.Erase, request)
        return answer


def _newest_erase(group: MemoryGroup) -> Erase:
    data = group.log[-1].data
    ((_, start, end),) = split(data)
    return Erase.decode(data, start, end)


async def test_what_is_gone_is_named_for_backups_to_know(group: MemoryGroup) -> None:
    """The group itself has nothing of it; what is there and has the key goes as well."""
    await _send(group, _KEY, b"one", b"two")
    async with _admin(group) as admin:
        await admin.erase("t", _KEY)
    await _send(group, _KEY, b"three")

    done = await _erase_older(group, 0, 2, first_entry=2)

    assert (done.messages, done.named, done.erase_entry) == (1, 2, len(group.log))
    command = _newest_erase(group)
    assert (command.generation, command.queue_id) == (1, _queue_of(_KEY))
    assert (command.offsets, command.first_entry) == ((0, 2), 2)
    assert _KEY.encode() not in group.log[-1].data
    assert await _shown(group, 0) == set()
    again = await _erase_older(group, 0, 2, first_entry=2)
    assert (again.messages, again.named) == (0, 2)
    assert len({node.engine.state.digest() for node in group.nodes}) == 1


async def test_no_message_of_another_key_is_erased_by_its_offset(
    group: MemoryGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """The call is refused as a whole, by the first one's name, and counted; nothing says a key."""
    await _send(group, _KEY, b"one")
    other = _neighbour(_KEY, "b")
    await _send(group, other, b"b", b"c")
    before = len(group.log)

    for offsets in ((1,), (0, 1, 2)):
        with pytest.raises(InvalidArgument, match="topic 't' is a message of another key"):
            await _erase_older(group, *offsets)

    assert len(group.log) == before
    assert await _shown(group, 0) == {b"one", b"b", b"c"}
    metrics = group.nodes[0].parts.context.metrics
    labels = {"group": "orders", "node": group.nodes[0].engine.node_id}
    assert metrics.registry.get_sample_value("dledger_erase_lies_total", labels) == 2
    assert "the erasing of older messages is refused: nothing was done: offset 1" in caplog.text
    assert not any(each in caplog.text for each in (_KEY, other))


async def test_what_no_message_of_the_key_can_be_is_refused_by_name(group: MemoryGroup) -> None:
    """Where the queue has not come to, of another queue or topic; and what no command can say."""
    await _send(group, _KEY, b"one")
    async with Client(group.addresses[0]) as client:
        await client.create_topic("u", queues=1)
        await client.create_topic("plain", queues=1)
    before = len(group.log)

    for offsets, more, words in (
        ((0, 1), {}, "has not come to offset 1: it ends at 1"),
        ((0,), {"queue_id": (_queue_of(_KEY) + 1) % _QUEUES}, "the key has no messages in queue"),
        ((0,), {"generation": 2}, "topic 2 is 'u', not 't'"),
        ((0,), {"generation": 4}, "there never was a topic 4"),
        ((0,), {"generation": 0}, "there never was a topic 0"),
        ((0, 0), {}, "do not ascend"),
        ((-1,), {}, "do not ascend"),
        ((1 << 62,), {}, "do not ascend"),
        (range(MAX_OFFSETS + 1), {}, "4097 offsets, of at most 4096"),
        ((0,), {"queue_id": -1}, "no topic has a queue -1"),
        ((0,), {"key": ""}, "the key is empty"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            await _erase_older(group, *offsets, **more)
    with pytest.raises(Refused, match="'plain' is not compacted"):
        await _erase_older(group, 0, topic="plain", generation=3, queue_id=0)
    assert len(group.log) == before


async def test_of_a_topic_that_is_gone_it_is_in_the_log_for_backups(group: MemoryGroup) -> None:
    """A restore to before it was deleted has it again; the new one of its name is another."""
    await _send(group, _KEY, b"one")
    async with _admin(group) as admin:
        await admin.delete_topic(await admin.describe_topic("t"))
    async with Client(group.addresses[0]) as client:
        await client.create_topic("t", queues=_QUEUES)
    await _send(group, _KEY, b"anew")

    done = await _erase_older(group, 0, 7, generation=1, first_entry=3)

    assert (done.messages, done.named, done.erase_entry) == (0, 2, len(group.log))
    command = _newest_erase(group)
    assert (command.generation, command.offsets, command.first_entry) == (1, (0, 7), 3)
    assert await _shown(group, 0) == {b"anew"}


async def test_it_is_only_checked_if_asked_to(group: MemoryGroup) -> None:
    """A lie is found, and nothing is committed."""
    await _send(group, _KEY, b"one")
    await _send(group, _neighbour(_KEY, "b"), b"b")
    before = len(group.log)

    done = await _erase_older(group, 0, only_count=True)
    with pytest.raises(InvalidArgument, match="another key"):
        await _erase_older(group, 1, only_count=True)

    assert (done.messages, done.named, done.erase_entry) == (1, 1, 0)
    assert len(group.log) == before


# -- in short steps ------------------------------------------------------------------------------


def test_a_step_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By slices, by the bytes of their payloads, and by what one command may name."""
    queue = ConsumeQueue()
    for index, rows in ((1, 3), (2, 2), (3, 9), (4, 1)):
        queue.append(Payload(index, 0, 100), range(rows), None)

    def steps(first: int = 0, end: int = 15) -> list[tuple[int, int]]:
        found = []
        while first < end:
            slices, first = next_step(queue, first, end)
            found.append((len(slices), first))
        return found

    assert steps() == [(4, 15)]
    assert steps(1, 4) == [(2, 4)]
    assert steps(0, 3) == [(1, 3)]
    monkeypatch.setattr(erasing, "_SLICES", 3)
    assert steps() == [(3, 14), (1, 15)]
    monkeypatch.setattr(erasing, "_STEP_BYTES", 150)
    assert steps() == [(2, 5), (2, 15)]
    monkeypatch.setattr(erasing, "MAX_OFFSETS", 4)
    assert steps() == [(2, 4), (2, 8), (1, 12), (2, 15)]


class Copied(PartOfEngine):
    """A node of which retention has dropped an entry since somebody looked where messages lie."""

    def __init__(self) -> None:
        self.log = Log()
        self.state = self.log.state
        self.log.create()
        self.log.append(SetRetention(name="t", hours=0).encode())
        key = Columns.of([Message(message_id="1", body=b"x", keys=(_KEY,))])
        self.log.append(encode_produce(key, client_id="c", topic="t", queue_id=0))
        self.lost = 3

    async def read_index(self) -> int:
        return len(self.log.entries)

    async def wait_applied(self, index: int, timeout_s: float) -> None:
        """It is."""

    def read_ahead(self, indexes: Sequence[int]) -> None:
        """Nothing is slow here."""

    async def read_entry(self, index: int) -> Entry:
        if index != self.lost:
            return self.log.entries[index - 1]
        roll = next_roll(
            self.state.topics.named("t"),
            0,
            self.state.topics.queue("t", 0),
            Due.below(9),
        )
        if roll is not None:
            entries = self.log.entries
            command, _ = rekeep_of(roll, lambda at: entries[at - 1], lambda *_: True)
            self.log.append(command)
        raise OffsetOutOfRange(index, first=index + 1, last=len(self.log.entries))

    async def propose(self, command: bytes) -> object:
        (result,) = self.log.append(command)
        return result


async def test_what_was_copied_meanwhile_is_looked_for_where_it_is_now() -> None:
    """Retention drops an entry only once it is copied; who has planned to read it plans again."""
    engine = Copied()

    done = await _eraser(engine).erase(Wanted(topic="t", key=_KEY))

    assert (done.messages, done.first_entry, done.next, done.end) == (1, 3, 1, 1)


async def test_an_entry_that_is_gone_for_good_is_told() -> None:
    """Never as if the key had no messages."""
    engine = Copied()
    engine.lost = 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "read_entry", _gone)
        with pytest.raises(OffsetOutOfRange):
            await _eraser(engine).erase(Wanted(topic="t", key=_KEY))


async def test_a_leader_that_has_lost_its_majority_says_nothing() -> None:
    """It would say that a key has no more messages, and the next leader may have some."""
    engine = Copied()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "read_index", _deposed)
        with pytest.raises(NotLeader):
            await _eraser(engine).erase(Wanted(topic="t", key=_KEY))


async def _deposed() -> int:
    raise NotLeader(None)


async def _gone(index: int) -> Entry:
    raise OffsetOutOfRange(index, first=index + 1, last=index + 1)


def test_nothing_shows_the_key() -> None:
    """A value that an error quotes least of all."""
    assert _KEY not in repr(Wanted(topic="t", key=_KEY))
