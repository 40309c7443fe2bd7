"""A compacted topic read as a table: what there is, what changes, and on from where it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dledger.broker.commands import DeleteTopic
from dledger.cli.main import _parser
from dledger.cli.topic_table import show_table
from dledger.client import Change, Client, Table, TablePosition, TableReader, table_reader
from dledger.errors import (
    InvalidArgument,
    PositionTooOld,
    TopicMadeAnew,
    UnknownTopic,
)
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.pb import dledger_pb2_grpc as pb_grpc
from dledger.types import Entry
from tests.client.compacted_topic import FIRST, TOPIC, CompactedTopic
from tests.requests.memory_group import WAIT_S, MemoryEngine, MemoryGroup, memory_group
from tests.waiting import eventually

QUEUES = 3
PAGE = (Path(__file__).parents[2] / "docs/clients.md").read_text("utf-8")


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Two nodes."""
    async with memory_group(2) as group:
        yield group


@pytest.fixture
async def topic(group: MemoryGroup) -> CompactedTopic:
    """The topic, of three queues."""
    topic = CompactedTopic(group.addresses[0], group.nodes[0].engine, QUEUES)
    await topic.create()
    return topic


class Rows:
    """A user's table, and the position that he keeps with it."""

    def __init__(self, group: MemoryGroup) -> None:
        self._addresses = group.addresses
        self.rows: dict[str, bytes] = {}
        self.kept: bytes | None = None
        self.changes = 0

    def reader(self) -> TableReader:
        position = TablePosition.decode(self.kept) if self.kept else None
        return TableReader(self._addresses, TOPIC, position=position)

    def take(self, change: Change) -> None:
        self.changes += 1
        if change.deleted:
            self.rows.pop(change.key, None)
        else:
            self.rows[change.key] = change.stored.record.body

    async def catch_up(self, *, most: int = 1 << 30) -> None:
        """Read what there is, or the next *most* changes, in a reader that was just started."""
        reader = self.reader()
        async with aclosing(reader.catch_up()) as changes:
            async for change in changes:
                self.take(change)
                self.kept = reader.position.encode()
                most -= 1
                if not most:
                    return
        assert reader.caught_up
        self.kept = reader.position.encode()


@pytest.mark.parametrize("seed", range(6))
async def test_a_table_has_the_newest_of_each_key_wherever_its_reader_was(
    group: MemoryGroup, topic: CompactedTopic, seed: int
) -> None:
    """Random puts, deletions and rounds; a reader that stops anywhere, also before a gap."""
    rng, there = Random(seed), Rows(group)
    for _ in range(12):
        for _ in range(rng.randrange(8)):
            key = f"key-{rng.randrange(8)}"
            if rng.random() < 0.3:
                await topic.delete(key)
            else:
                await topic.put(key, b"%d" % rng.randrange(1 << 20))
        if rng.random() < 0.5:
            await topic.compact(rng.randrange(QUEUES))
        if rng.random() < 0.7:
            await there.catch_up(most=rng.randint(1, 12))

    await there.catch_up()
    anew = Rows(group)
    await anew.catch_up()
    table = Table(group.addresses, TOPIC)
    await table.catch_up()

    held = {key: stored.record.body for key, stored in table.items()}
    assert (there.rows, anew.rows, held) == (topic.rows, topic.rows, topic.rows)


async def test_changes_of_a_key_come_in_order_and_tell_where_they_are(
    group: MemoryGroup, topic: CompactedTopic
) -> None:
    """Of one queue, since the key chooses it; a deletion is told with its tombstone."""
    for body in (b"1", b"2", b"3"):
        await topic.put("EUR", body)
    await topic.delete("EUR")
    await topic.compact(topic.queue_of("EUR"), spare=[2])
    seen = list[Change]()

    async with (
        asyncio.timeout(WAIT_S),
        aclosing(TableReader(group.addresses, TOPIC).changes()) as c,
    ):
        async for change in c:
            seen += [change] if change.key == "EUR" else []
            if change.deleted:
                break

    assert [(c.stored.record.body, c.stored.offset, c.deleted) for c in seen] == [
        (b"2", 2, False),
        (b"gone", 4, True),
    ]
    assert {c.queue_id for c in seen} == {topic.queue_of("EUR")}


async def test_every_way_of_reading_tells_the_same_of_a_topic_with_gaps(
    group: MemoryGroup, topic: CompactedTopic
) -> None:
    """Single messages, batches as older clients of any language ask for them, and ours."""
    for number in range(20):
        await topic.put(f"key-{number % 3}", b"%d" % number)
    for queue_id in range(QUEUES):
        await topic.compact(queue_id, spare=range(0, 20, 2))

    for queue_id in range(QUEUES):
        wanted = topic.offsets(queue_id)
        asked = pb.ReadRequest(topic=TOPIC, queue_id=queue_id)
        async with Client(group.addresses[1]) as client:
            stub: Any = pb_grpc.LedgerStub(client.channel)
            singles = [one.offset async for part in stub.Read(asked) for one in part.records]
            batches = [b async for part in stub.ReadBatches(asked) for b in part.batches]
            ours = [stored.offset async for stored in client.read(TOPIC, queue_id)]
        old = [o for b in batches for o in range(b.first_offset, b.first_offset + b.count)]
        assert [singles, old, ours] == [wanted] * 3


async def test_a_reader_whose_node_dies_goes_on_behind_the_gap_at_another(
    group: MemoryGroup, topic: CompactedTopic
) -> None:
    """It had read up to where the next messages are gone; none comes twice, and none is missed."""
    for number in range(4):
        await topic.put("EUR", b"%d" % number)
    reader = TableReader([*reversed(group.addresses)], TOPIC)
    changes = reader.changes()
    async with asyncio.timeout(WAIT_S), aclosing(changes):
        while (await anext(changes)).stored.record.body != b"3":
            pass
        waits = asyncio.ensure_future(anext(changes))
        await group.polls(QUEUES, at=1)
        await topic.put("EUR", b"4")
        assert (await waits).stored.record.body == b"4"
        waits = asyncio.ensure_future(anext(changes))
        await group.polls(QUEUES, at=1)
        _falls_behind(group.nodes[1].engine)
        for number in range(5, 8):
            await topic.put("EUR", b"%d" % number)
        await topic.compact(topic.queue_of("EUR"), spare=[5])
        await group.nodes[1].servers[0].stop(0)

        change = await waits

    assert (change.key, change.stored.record.body) == ("EUR", b"7")
    assert change.stored.offset == 8
    assert reader.position.offsets[topic.queue_of("EUR")] == 6  # it is being worked on


async def test_what_was_acknowledged_before_is_there_at_a_node_that_was_behind(
    group: MemoryGroup, topic: CompactedTopic
) -> None:
    """It is asked to catch up first: "caught up" means no less than that."""
    table = Table(group.addresses[1], TOPIC)
    for body in (b"1", b"2"):
        _falls_behind(group.nodes[1].engine)
        await topic.put("EUR", body)

        await table.catch_up()

        assert table["EUR"].record.body == body


def _falls_behind(node: MemoryEngine) -> None:
    """Have a node apply nothing until it is asked to catch up."""
    missed: list[Entry] = []
    apply = node.apply

    def miss(entry: Entry) -> list[object]:
        missed.append(entry)
        return []

    async def catch_up(index: int, timeout_s: float) -> None:
        while missed:
            apply(missed.pop(0))

        node.apply = apply

    node.apply, node.wait_applied = miss, catch_up


async def test_a_table_without_bodies_holds_none(group: MemoryGroup, topic: CompactedTopic) -> None:
    """All else of each message is there; and what changes is told whole."""
    await topic.put("EUR", b"1")
    table = Table(group.addresses, TOPIC, bodies=False)

    await table.catch_up()
    await topic.put("EUR", b"22")
    async with asyncio.timeout(WAIT_S), aclosing(table.changes()) as changes:
        change = await anext(changes)

    assert change.stored.record.body == b"22"
    assert table["EUR"].record.body == b""
    assert table["EUR"].offset == change.stored.offset
    assert {key for key in table if not key.startswith(FIRST)} == {"EUR"}
    assert len(table) == QUEUES + 1


async def test_a_topic_that_was_made_anew_is_told_by_name(
    group: MemoryGroup, topic: CompactedTopic
) -> None:
    """Its offsets mean nothing there: neither to who follows it, nor to who kept a position."""
    there = Rows(group)
    await there.catch_up()
    changes = there.reader().changes()
    async with asyncio.timeout(WAIT_S), aclosing(changes):
        waits = asyncio.ensure_future(anext(changes))
        await group.polls(QUEUES)
        generation = group.nodes[0].engine.state.topics.named(TOPIC).generation
        await group.commit(DeleteTopic(name=TOPIC, generation=generation).encode())
        await topic.create()

        with pytest.raises(UnknownTopic):
            await waits
    with pytest.raises(TopicMadeAnew, match="'prices' was deleted and made again"):
        await there.catch_up()


async def test_a_topic_that_is_not_compacted_is_no_table(
    group: MemoryGroup, topic: CompactedTopic
) -> None:
    """It is refused by name, as is one that does not exist."""
    async with Client(group.addresses[0]) as client:
        await client.create_topic("orders")

    with pytest.raises(InvalidArgument, match="topic 'orders' is not compacted"):
        await Table(group.addresses, "orders").catch_up()
    with pytest.raises(UnknownTopic, match="nowhere"):
        await Table(group.addresses, "nowhere").catch_up()


async def test_who_was_away_for_longer_than_tombstones_are_kept_begins_again(
    group: MemoryGroup, topic: CompactedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion may have gone unseen: it is told at the start, and after a read of that time.

    An eighth of it is left to clocks.
    """
    there = Rows(group)
    await there.catch_up()
    now_ms = table_reader._now_ms()
    monkeypatch.setattr(table_reader, "_now_ms", lambda: now_ms + 75_600_001)
    changes = there.changes

    with pytest.raises(PositionTooOld, match="'prices'"):
        await there.catch_up()
    assert there.changes == changes

    times = iter([now_ms, now_ms, now_ms + 75_600_001])
    monkeypatch.setattr(table_reader, "_now_ms", lambda: next(times))
    with pytest.raises(PositionTooOld):
        await Table(group.addresses, TOPIC).catch_up()


async def test_a_follower_makes_sure_from_time_to_time_that_it_has_all(
    group: MemoryGroup, topic: CompactedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a position of a table in which nothing happens does not grow old, and none is missed."""
    monkeypatch.setattr(table_reader, "_SHORTEST_ROUND_S", 0.01)
    monkeypatch.setattr(table_reader, "_ROUNDS", 86_400 * 100)
    reader = TableReader(group.addresses, TOPIC)
    seen = list[str]()

    async def read() -> None:
        async with aclosing(reader.changes()) as changes:
            async for change in changes:
                seen.append(change.key)

    task = asyncio.ensure_future(read())
    times = set[int]()
    async with asyncio.timeout(WAIT_S):
        while len(times) < 6:
            await topic.put(f"key-{len(times)}", b"x")
            times.add(reader.position.as_of_ms if reader.caught_up else 0)
        last = f"key-{len(times)}"
        await topic.put(last, b"x")
        await eventually(lambda: last in seen)
    task.cancel()

    assert sorted(times) == [0, *sorted(times - {0})]
    assert len(set(seen)) == len(topic.rows)


def test_a_position_comes_back_as_it_was_kept_or_not_at_all() -> None:
    """Any byte of it may be damaged on the disk of whoever keeps it."""
    position = TablePosition(topic="prices", generation=3, offsets=(1, 20, 300), as_of_ms=17)
    kept = position.encode()

    assert TablePosition.decode(kept) == position
    for at in range(len(kept)):
        damaged = kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :]
        with pytest.raises(InvalidArgument, match="a table's position is"):
            TablePosition.decode(damaged)
    with pytest.raises(InvalidArgument):
        TablePosition.decode(kept[:-20])


async def test_a_position_of_another_topic_is_refused(
    group: MemoryGroup, topic: CompactedTopic
) -> None:
    """By its name, and by the queues that it has."""
    there = Rows(group)
    await there.catch_up()
    assert there.kept is not None
    fields = json.loads(there.kept)
    generation, as_of_ms = fields["generation"], fields["as_of_ms"]
    position = TablePosition(topic=TOPIC, generation=generation, offsets=(0,), as_of_ms=as_of_ms)

    with pytest.raises(InvalidArgument, match="is of topic 'prices'"):
        TableReader(group.addresses, "orders", position=position)
    with pytest.raises(InvalidArgument, match="is of 1 queues, and topic 'prices' has 3"):
        await anext(TableReader(group.addresses, TOPIC, position=position).catch_up())


async def test_the_program_of_the_page_runs(
    group: MemoryGroup, topic: CompactedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word for word, against other nodes."""
    await topic.put("EUR", b"1.09")
    section = PAGE.partition("## A table")[2]
    program = section.partition("```python\n")[2].partition("asyncio.run")[0]
    for number, address in enumerate(group.addresses):
        program = program.replace(f"127.0.0.1:1808{number + 1}", address)
    printed = list[tuple[Any, ...]]()
    names: dict[str, Any] = {"print": lambda *words: printed.append(words)}
    exec(program, names)  # noqa: S102, it is ours

    runs = asyncio.ensure_future(names["main"]())
    await eventually(lambda: printed and not runs.done())
    await group.polls(QUEUES)
    await topic.delete("EUR")
    await eventually(lambda: len(printed) == 2)
    runs.cancel()

    assert printed == [(len(topic.rows) + 1, b"1.09"), ("EUR", "is deleted")]


async def test_the_command_prints_the_table_or_a_key_of_it(
    group: MemoryGroup, topic: CompactedTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key that is not there is told by the exit code, as `grep` does."""
    await topic.put("EUR", b"1.09")
    await topic.put("bytes", b"\xff")
    await topic.put("USD", b"1")
    await topic.delete("USD")

    def asked(*more: str) -> Any:
        return _parser().parse_args(
            ["topic", "table", TOPIC, "--endpoint", group.addresses[0], *more]
        )

    assert await show_table(asked("--json")) == 0
    rows = {row["key"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows.keys() == topic.rows.keys()
    assert (rows["EUR"]["body"], rows["bytes"]["body_base64"]) == ("1.09", "/w==")
    assert await show_table(asked("--key", "EUR")) == 0
    assert capsys.readouterr().out.split()[::2] == ["EUR", "1.09"]
    assert await show_table(asked("--key", "USD")) == 1
    assert "no key 'USD'" in capsys.readouterr().err
