"""The producer over a group that comes and goes: in order, nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from dledger.client import Appended
from dledger.errors import (
    CorruptSpool,
    DirectoryLocked,
    DiskFull,
    DledgerError,
    FeatureNotReady,
    InvalidArgument,
    MessageRejected,
    RateLimited,
    Refused,
    SpoolFull,
    StorageError,
    Unavailable,
    UnknownTopic,
)
from dledger.files.memory_files import Fault, MemoryFiles
from dledger.spool.blocking import BlockingProducer
from dledger.spool.counters import SpoolCollector
from dledger.spool.payload import Message
from dledger.spool.producer import Producer
from dledger.spool.topic_sender import SendResult
from dledger.types import Record
from tests.spool.fake_group import FakeGroup
from tests.spool.spool_harness import DIR, end_by_kill
from tests.waiting import eventually

DEADLINE_S = 20


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the replay try again soon."""
    monkeypatch.setattr("dledger.spool.replay.BACKOFF_S", (0.001, 0.01))


@pytest.fixture
def group() -> FakeGroup:
    """Return a group that takes writes."""
    return FakeGroup()


@pytest.fixture
def files() -> MemoryFiles:
    """Return an empty disk in memory."""
    return MemoryFiles()


@asynccontextmanager
async def running(
    files: MemoryFiles,
    group: FakeGroup,
    *,
    max_bytes: int = 1 << 20,
    report: Callable[[CorruptSpool | MessageRejected], None] = lambda _: None,
) -> AsyncIterator[Producer]:
    """Run a producer until the end of the block; a broken disk may refuse its end."""
    producer = Producer(DIR, group.connect, files=files, max_bytes=max_bytes, report=report)
    async with asyncio.timeout(DEADLINE_S), producer:
        yield producer


def record(number: int, size: int = 10) -> Record:
    """Return a message whose id is its number."""
    return Record(body=b"x" * size, message_id=f"{number:06}")


def numbers(group: FakeGroup, topic: str = "orders") -> list[int]:
    """Return which messages the group has, in order."""
    return [int(message_id) for message_id in group.stored.get(topic, [])]


async def send_all(
    producer: Producer, batch: Sequence[int], topic: str = "orders"
) -> list[SendResult]:
    """Send messages all at once."""
    return list(await producer.send_batch(topic, [record(number) for number in batch]))


async def test_messages_pass_through_while_the_group_takes_them(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """The result says where they are; nothing is written to the disk."""
    async with running(files, group) as producer:
        results = await send_all(producer, range(100))

    assert [result.offset for result in results] == list(range(100))
    assert not any(result.spooled for result in results)
    assert files.list(DIR) == ["lock", "spool.json", "state"]
    assert len(group.batches) < 100
    assert group.closed


async def test_an_outage_is_no_error_and_everything_is_replayed_in_order(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """Before, while and after the group is down."""
    async with running(files, group) as producer:
        before = await send_all(producer, range(10))
        group.down = True
        during = [await producer.send("orders", record(number)) for number in range(10, 20)]
        spooling = producer.spooling
        group.down = False
        assert await producer.drained(DEADLINE_S)
        after = await send_all(producer, range(20, 30))

    assert numbers(group) == list(range(30))
    assert [r.spooled for r in (*before, *during, *after)] == [False] * 10 + [True] * 10 + [
        False
    ] * 10
    assert spooling
    assert (during[0].queue_id, during[0].offset) == (None, None)


async def test_a_message_that_was_perhaps_stored_is_not_stored_twice(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """The connection broke behind it: it is spooled with the same id."""
    async with running(files, group) as producer:
        group.lose_outcomes = 1
        result = await producer.send("orders", b"made-up id")
        assert await producer.drained(DEADLINE_S)

    assert result.spooled
    assert len(result.message_id) == 32
    assert group.stored == {"orders": [result.message_id]}


async def test_new_messages_of_a_spooled_topic_go_behind_and_other_topics_pass(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """A topic's order holds; another topic has no reason to wait."""
    slow = asyncio.Event()
    append = group.append

    async def held(
        topic: str, records: Sequence[Record], *, queue_id: int, timeout_s: float
    ) -> Appended:
        if topic == "orders" and not slow.is_set() and not group.down:
            await slow.wait()
        return await append(topic, records, queue_id=queue_id, timeout_s=timeout_s)

    group.append = held
    async with running(files, group) as producer:
        group.down = True
        await producer.send("bills", record(0))
        await send_all(producer, range(5))
        group.down = False
        await replayed(producer, 1)
        direct = await producer.send("bills", record(1))
        behind = asyncio.create_task(send_all(producer, range(5, 8)))
        await asyncio.sleep(0.02)
        slow.set()
        await behind
        assert await producer.drained(DEADLINE_S)

    assert not direct.spooled
    assert numbers(group) == list(range(8))
    assert numbers(group, "bills") == [0, 1]


async def replayed(producer: Producer, count: int) -> None:
    """Wait until the group has taken *count* messages of the spool's first chunk."""
    await eventually(lambda: producer.counters().replayed >= count)


@pytest.mark.parametrize("seed", range(12))
async def test_random_outages_and_crashes_lose_nothing_and_repeat_nothing(
    files: MemoryFiles, seed: int
) -> None:
    """Three lives of a producer over a group that fails by chance; each may end in a crash."""
    rng, group = Random(seed), FakeGroup(seed)
    accepted: list[int] = []
    sent = 0
    for life in range(3):
        producer = Producer(DIR, group.connect, files=files, max_bytes=1 << 20)
        await producer.open()
        for _ in range(rng.randint(3, 10)):
            group.down = rng.random() < 0.4
            group.odds = rng.choice((0.0, 0.3))
            batch = range(sent, sent + rng.randint(1, 40))
            sent = batch.stop
            tasks = [asyncio.create_task(producer.send("orders", record(n))) for n in batch]
            await asyncio.sleep(rng.choice((0, 0.002, 0.01)))
            if life < 2 and rng.random() < 0.3:
                accepted += await crash(producer, files, tasks, batch)
                break
            await asyncio.gather(*tasks)
            accepted += batch
        else:
            await producer.close()
    group.down, group.odds = False, 0.0
    async with running(files, group) as producer:
        assert await producer.drained(DEADLINE_S)

    assert numbers(group) == sorted(set(numbers(group)))
    assert set(accepted) <= set(numbers(group))
    assert len(set(group.client_ids)) == 1


async def crash(
    producer: Producer,
    files: MemoryFiles,
    tasks: Sequence[asyncio.Task[SendResult]],
    batch: Sequence[int],
) -> list[int]:
    """End a producer as SIGKILL does; return which sends had returned."""
    returned = [n for n, task in zip(batch, tasks, strict=True) if task.done()]
    await end_by_kill(producer, files, tasks)
    return returned


async def test_a_faulty_message_is_refused_alone(files: MemoryFiles, group: FakeGroup) -> None:
    """Others that were sent with it are stored, in order."""
    faulty = {"000013", "000014", "000077"}
    group.failing = lambda _, records: (
        InvalidArgument("too odd") if faulty & {r.message_id for r in records} else None
    )

    async with running(files, group) as producer:
        sends = [producer.send("orders", record(number)) for number in range(100)]
        results = await asyncio.gather(*sends, return_exceptions=True)

    refused = [n for n, result in enumerate(results) if isinstance(result, InvalidArgument)]
    assert refused == [13, 14, 77]
    assert numbers(group) == [n for n in range(100) if n not in refused]
    assert len(group.batches) < 60


async def test_a_topic_that_does_not_exist_refuses_its_messages_at_once(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """No need to ask for each of them."""
    group.failing = lambda topic, _: UnknownTopic(topic)

    async with running(files, group) as producer:
        sends = [producer.send("orders", record(number)) for number in range(100)]
        results = await asyncio.gather(*sends, return_exceptions=True)

    assert all(isinstance(result, UnknownTopic) for result in results)
    assert len(group.batches) == 1


async def test_what_the_group_refuses_for_good_is_kept_reported_and_blocks_nothing(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """A topic was deleted during the outage, and one message is at fault itself."""

    def failing(topic: str, records: Sequence[Record]) -> DledgerError | None:
        if topic == "gone":
            return UnknownTopic(topic)
        faulty = any(each.message_id == "000003" for each in records)
        return InvalidArgument("body too large") if faulty else None

    reports: list[CorruptSpool | MessageRejected] = []
    async with running(files, group, report=reports.append) as producer:
        group.down = True
        await send_all(producer, range(10))
        await send_all(producer, range(5), topic="gone")
        group.failing = failing
        group.down = False
        assert await producer.drained(DEADLINE_S)
        counters = producer.counters()
        rejected = await producer.rejected()

    assert numbers(group) == [0, 1, 2, *range(4, 10)]
    assert (counters.replayed, counters.rejected, counters.depth) == (9, 6, 0)
    assert [r.message.record.message_id for r in rejected if r.message.topic == "orders"] == [
        "000003"
    ]
    assert {r.message.reason for r in rejected} == {"body too large", str(UnknownTopic("gone"))}
    assert {type(report) for report in reports} == {MessageRejected}
    assert "000003 for topic 'orders' was refused and is kept in /spool/rejected/" in str(reports)


async def test_a_message_that_a_node_cannot_digest_blocks_nothing(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """An internal error is tried again for a while, then taken for a refusal."""
    attempts: list[int] = []

    def failing(_: str, records: Sequence[Record]) -> DledgerError | None:
        if any(each.message_id == "000001" for each in records):
            attempts.append(len(records))
            return DledgerError("internal error of the node")
        return None

    group.failing = failing
    async with running(files, group) as producer:
        await send_all(producer, range(3))
        assert await producer.drained(DEADLINE_S)
        counters = producer.counters()

    assert numbers(group) == [0, 2]
    assert counters.rejected == 1
    assert 5 < attempts.count(1) < 20


async def test_a_batch_that_fails_is_tried_in_smaller_parts(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """A slow line gets at least a few messages through within a deadline."""
    group.failing = lambda _, records: (
        Unavailable("deadline exceeded") if len(records) > 5 else None
    )

    async with running(files, group) as producer:
        await send_all(producer, range(100))
        assert await producer.drained(DEADLINE_S)

    assert numbers(group) == list(range(100))


@pytest.mark.parametrize(
    "error",
    [DiskFull("no room"), FeatureNotReady("held back"), RateLimited("later")],
    ids=repr,
)
async def test_what_the_group_cannot_take_yet_is_an_outage(
    files: MemoryFiles, group: FakeGroup, error: DledgerError
) -> None:
    """Until space returns, or the last member is upgraded; however long, nothing is given up."""
    attempts: list[str] = []

    def failing(topic: str, _: Sequence[Record]) -> DledgerError | None:
        attempts.append(topic)
        return error if len(attempts) < 40 else None

    async with running(files, group) as producer:
        group.failing = failing
        result = await producer.send("orders", record(1))
        assert await producer.drained(DEADLINE_S)
        rejected = producer.counters().rejected

    assert result.spooled
    assert not rejected
    assert numbers(group) == [1]


async def test_a_full_spool_is_a_typed_refusal_of_what_does_not_fit(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """What was accepted before is replayed; there is room again later."""
    accepted: list[int] = []
    async with running(files, group, max_bytes=1 << 16) as producer:
        group.down = True

        async def fill() -> None:
            for number in range(200):
                await producer.send("orders", record(number, size=1000))
                accepted.append(number)

        with pytest.raises(SpoolFull, match="its limit is 65536 bytes"):
            await fill()
        group.down = False
        assert await producer.drained(DEADLINE_S)
        await producer.send("orders", record(999))

    assert 20 < len(accepted) < 66
    assert numbers(group) == [*accepted, 999]


async def test_a_full_spool_holds_senders_back_while_it_is_emptied(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """The group is back: there is no reason to refuse, only to wait."""
    async with running(files, group, max_bytes=1 << 16) as producer:
        group.down = True
        first = 0
        while producer.counters().disk_bytes <= (1 << 16) - 8192:
            await producer.send("orders", record(first, size=1000))
            first += 1
        group.down = False
        while producer._gate.down:  # until it is noticed, a full spool refuses
            await producer._gate.wait()
        many = range(first, first + 300)
        await producer.send_batch("orders", [record(n, size=1000) for n in many])
        assert await producer.drained(DEADLINE_S)

    assert numbers(group) == list(range(many.stop))


async def test_the_spool_is_emptied_while_senders_do_not_stop(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """The replay goes faster than what comes in behind it."""
    stop = False
    sent = 0

    async with running(files, group, max_bytes=8 << 20) as producer:
        group.down = True
        await send_all(producer, range(500))
        sent = 500

        async def flood() -> None:
            nonlocal sent
            while not stop:
                number, sent = sent, sent + 1
                await producer.send("orders", record(number))

        floods = [asyncio.create_task(flood()) for _ in range(50)]
        await asyncio.sleep(0.05)
        group.down = False
        drained = await producer.drained(DEADLINE_S)
        stop = True
        await asyncio.gather(*floods)
        assert await producer.drained(DEADLINE_S)

    assert drained
    assert numbers(group) == list(range(sent))


async def test_a_failed_disk_refuses_what_it_cannot_keep(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """By type; and nothing is stored twice after a restart."""
    producer = Producer(DIR, group.connect, files=files, max_bytes=1 << 20)
    async with asyncio.timeout(DEADLINE_S):
        await producer.open()
        group.down = True
        await producer.send("orders", record(1))
        files.inject(Fault("fdatasync", errno.EIO, ".spool"))
        with pytest.raises(StorageError, match="cannot write spool /spool"):
            await producer.send("orders", record(2))
        with pytest.raises(StorageError, match="open it again"):
            await producer.send("orders", record(3))
        group.down = False
        assert not await producer.drained(DEADLINE_S)
        with pytest.raises(StorageError, match="open it again"):
            await producer.send("orders", record(4))
        await producer.close()

    async with running(files, group) as producer:
        assert await producer.drained(DEADLINE_S)
    assert numbers(group)[0] == 1
    assert set(numbers(group)) <= {1, 2}


async def test_an_error_that_nobody_foresaw_reaches_the_caller(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """A bug of ours must not leave a caller waiting."""
    group.failing = lambda *_: ValueError("a bug")  # type: ignore[assignment]  # a mistake

    async with running(files, group) as producer:
        sends = [producer.send("orders", record(number)) for number in range(3)]
        results = await asyncio.gather(*sends, return_exceptions=True)
        group.failing = lambda *_: None
        after = await producer.send("orders", record(3))

    assert [str(result) for result in results] == ["a bug"] * 3
    assert not after.spooled


async def test_messages_under_way_are_bounded_and_keep_their_order(
    files: MemoryFiles, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound senders wait, first come, first served."""
    monkeypatch.setattr("dledger.spool.producer.MAX_PENDING_BYTES", 1000)

    async with running(files, group) as producer:
        await send_all(producer, range(300))

    assert numbers(group) == list(range(300))
    assert max(group.batches) < 20


async def test_a_send_that_is_cancelled_before_its_turn_is_not_sent(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """Its caller knows that it gave up; those around it are stored."""
    async with running(files, group) as producer:
        tasks = [asyncio.create_task(producer.send("orders", record(n))) for n in range(5)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert numbers(group) == [0, 1, 3, 4]


async def test_messages_are_checked_before_anything_else(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """Also in an outage: afterwards nobody would be there to be told."""

    def check(message: Message) -> None:
        if not message.record.body:
            raise InvalidArgument("the message body is empty")

    producer = Producer(DIR, group.connect, files=files, check=check)
    async with producer:
        group.down = True
        with pytest.raises(InvalidArgument, match="body is empty"):
            await producer.send("orders", b"")
        with pytest.raises(InvalidArgument, match="cannot be spooled"):
            await producer.send("orders", Record(body=b"x", message_id="\ud800"))
        with pytest.raises(InvalidArgument, match="cannot be spooled"):
            await producer.send("orders", b"x", queue_id=1 << 40)

    assert group.batches == []
    with pytest.raises(Refused, match="not open"):
        await producer.send("orders", b"x")


async def test_what_is_spooled_waits_for_the_next_process(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """Closing does not wait for an outage to end; ids and client id stay what they were."""
    group.down = True
    async with running(files, group) as producer:
        await send_all(producer, range(10))
    async with running(files, group) as producer:
        more = await producer.send("orders", record(10))
        group.down = False
        assert await producer.drained(DEADLINE_S)

    assert more.spooled
    assert numbers(group) == list(range(11))
    assert len(set(group.client_ids)) == 1


async def test_damage_is_reported_and_the_rest_is_replayed(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """To the callback, in `damage`, and in the counters."""
    group.down = True
    async with running(files, group) as producer:
        await send_all(producer, range(5))
    content = files.contents(DIR / "00000000000000000001.spool")
    content[content.index(b"000002")] ^= 1
    reports: list[CorruptSpool | MessageRejected] = []

    group.down = False
    async with running(files, group, report=reports.append) as producer:
        assert await producer.drained(DEADLINE_S)
        damage, counters = producer.damage, producer.counters()

    assert numbers(group) == [0, 1, 3, 4]
    assert reports == list(damage)
    assert (damage[0].first, damage[0].last, counters.lost) == (3, 3, 1)


async def test_second_producer_on_a_directory_is_refused(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """And the first goes on."""
    async with running(files, group) as producer:
        with pytest.raises(DirectoryLocked, match="/spool"):
            async with running(files, group):
                pass
        await producer.send("orders", record(1))

    assert numbers(group) == [1]


async def test_figures_are_there_for_prometheus(files: MemoryFiles, group: FakeGroup) -> None:
    """Several producers share a registry; `spool` tells them apart."""
    registry = CollectorRegistry()
    async with running(files, group) as producer:
        await send_all(producer, range(3))
        group.down = True
        await send_all(producer, range(3, 5))
        registry.register(SpoolCollector({"a": producer.counters, "b": producer.counters}))
        text = generate_latest(registry).decode()

    assert 'dledger_spool_stored_total{spool="a"} 3.0' in text
    assert 'dledger_spool_spooled_total{spool="b"} 2.0' in text
    assert 'dledger_spool_depth{spool="b"} 2.0' in text
    assert 'dledger_spool_limit_bytes{spool="a"} 1.048576e+06' in text
    assert text.count("# HELP dledger_spool_depth ") == 1


def test_a_program_without_an_event_loop_sends_as_well(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """The same producer on a thread of its own."""
    with BlockingProducer(Producer(DIR, group.connect, files=files)) as producer:
        stored = producer.send("orders", record(0))
        group.down = True
        spooled = producer.send_batch("orders", [record(1), record(2)])
        group.down = False
        assert producer.drained(DEADLINE_S)
        counters = producer.counters()

    assert [stored.spooled, *(result.spooled for result in spooled)] == [False, True, True]
    assert numbers(group) == [0, 1, 2]
    assert (counters.stored, counters.replayed) == (1, 2)


def test_blocking_producer_passes_on_what_opening_raises(
    files: MemoryFiles, group: FakeGroup
) -> None:
    """And leaves no thread behind."""
    files.lock(DIR / "lock")

    with (
        pytest.raises(DirectoryLocked),
        BlockingProducer(Producer(DIR, group.connect, files=files)),
    ):
        pass
