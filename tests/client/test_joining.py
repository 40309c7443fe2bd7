"""Single appends of many callers share batches, and each caller is told of its own record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from random import Random
from typing import Any, cast

import pytest

from dledger.broker.command_frame import split
from dledger.broker.produce import NO_QUEUE, ProduceFrame
from dledger.client import Appended, AppendStream, Client, MessageIdConflict, OutcomeUnknown, Record
from dledger.client.joining import UNDER_WAY, joinable
from dledger.common.limits import MAX_BODY_BYTES, MAX_MESSAGES
from dledger.errors import DiskFull, InvalidArgument, LeadershipLost, Refused, Unavailable
from dledger.services import producing
from dledger.services.batches import checked_batch
from tests.requests.memory_group import SOON_S, MemoryGroup, memory_group
from tests.waiting import eventually

TOPIC = "orders"
QUEUES = 3


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Three nodes and a topic."""
    async with memory_group(3) as group:
        async with Client(group.addresses[0]) as client:
            await client.create_topic(TOPIC, queues=QUEUES)
        yield group


def sizes(group: MemoryGroup) -> list[int]:
    """Return how many messages each batch in the log has."""
    frames = [(entry.data, *span) for entry in group.log for span in split(entry.data)]
    return [ProduceFrame(data, start, end).count for data, kind, start, end in frames if kind == 1]


async def all_bodies(group: MemoryGroup) -> list[list[bytes]]:
    """Return what each queue holds."""
    return [await group.bodies(TOPIC, queue_id) for queue_id in range(QUEUES)]


async def outcomes(
    stream: AppendStream, records: Sequence[Any], queue_id: int = 0
) -> list[Appended | BaseException]:
    """Append records one by one, all at once."""
    return await asyncio.gather(
        *(stream.append(TOPIC, [record], queue_id=queue_id) for record in records),
        return_exceptions=True,
    )


async def test_appends_that_wait_share_batches_and_keep_their_order(group: MemoryGroup) -> None:
    """A thousand are a few batches; each is told of its own offset."""
    async with AppendStream(group.addresses) as stream:
        told = await outcomes(stream, [b"%04d" % n for n in range(1000)])

    assert [cast("Appended", one).offsets for one in told] == [(n,) for n in range(1000)]
    assert await group.bodies(TOPIC) == [b"%04d" % n for n in range(1000)]
    assert len(sizes(group)) < 10


async def test_a_record_that_finds_the_lane_free_goes_at_once(group: MemoryGroup) -> None:
    """Nothing lingers: as many batches as may be under way are of one record."""
    async with AppendStream(group.addresses, timeout_s=20) as stream:
        await stream.append(TOPIC, [b"a"], queue_id=0)
        engine = group.nodes[0].engine
        submit, held = engine.submit, list[tuple[Any, asyncio.Future[object]]]()

        def hold(command: Any, **_: str) -> asyncio.Future[object]:
            held.append((command, asyncio.get_running_loop().create_future()))
            return held[-1][1]

        engine.submit = hold
        appends = []
        for number in range(UNDER_WAY + 5):
            append = stream.append(TOPIC, [b"%d" % number], queue_id=0)
            appends.append(asyncio.ensure_future(append))
            await eventually(partial(_are, held, min(number + 1, UNDER_WAY)))
        engine.submit = submit
        stored = await asyncio.gather(*(submit(command) for command, _ in held))
        for (_, result), outcome in zip(held, stored, strict=True):
            result.set_result(outcome)
        await asyncio.gather(*appends)

    assert sizes(group) == [1, *[1] * UNDER_WAY, 5]


def _are(held: Sequence[object], count: int) -> bool:
    return len(held) >= count


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (b"", Refused),
        (b"x" * (MAX_BODY_BYTES + 1), Refused),
        (Record(body=b"x", tag="a|b"), Refused),
        (Record(body=b"x", keys=(" ",)), Refused),
        (Record(body=b"x", properties={" ": "v"}), Refused),
        (Record(body=b"x", message_id="i" * 256), Refused),
        (Record(body=b"x", born_at_ms=-1), Refused),
        (Record(body=b"x", tag="\ud800"), UnicodeEncodeError),
        (Record(body=cast("bytes", "text")), TypeError),
        (Record(body=b"x", born_at_ms=cast("int", 1.5)), Exception),
    ],
)
async def test_a_bad_record_fails_alone(
    group: MemoryGroup, bad: Record | bytes, error: type[Exception]
) -> None:
    """It is told apart before it is joined, and its caller hears what it would hear alone."""
    records = [b"a", bad, b"b", Record(body=b"c", tag="t"), bad, b"d"]

    async with AppendStream(group.addresses) as stream:
        told = await outcomes(stream, records)

    good = [0, 2, 3, 5]
    assert [row for row, one in enumerate(told) if isinstance(one, Appended)] == good
    assert isinstance(told[1], error)
    assert await group.bodies(TOPIC) == [b"a", b"b", b"c", b"d"]


def test_what_may_join_cannot_be_changed_behind_our_back() -> None:
    """A caller that goes on with its own dict changes nothing, and spoils nobody's batch."""
    properties = {"name": "value"}
    record = joinable(Record(body=b"x", properties=properties))
    properties["name"] = "\ud800"

    assert isinstance(record, Record)
    assert record.properties == {"name": "value"}
    assert joinable(Record(body=cast("bytes", bytearray(b"x")))) is None


def test_what_breaks_a_rule_may_not_join() -> None:
    """A node that does not know of joined batches would refuse all of them."""
    too_large = b"x" * (MAX_BODY_BYTES + 1)

    assert [joinable(body) for body in (b"", too_large, b"x")] == [None, None, b"x"]
    assert joinable(Record(body=b"x", tag="a|b")) is None


async def test_what_only_the_node_knows_of_a_record_fails_that_record_alone(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of another version may have stricter rules: the others are stored, and in order."""

    def stricter(command: bytes) -> ProduceFrame:
        batch = checked_batch(command)
        if any(body.startswith(b"poison") for body in batch.bodies()):
            raise InvalidArgument("no poison here")
        return batch

    monkeypatch.setattr(producing, "checked_batch", stricter)
    records = [b"poison" if n in {3, 250, 600} else b"%03d" % n for n in range(700)]

    async with AppendStream(group.addresses, timeout_s=20) as stream:
        await stream.append(TOPIC, [b"first"], queue_id=0)
        told = await outcomes(stream, records)

    refused = [str(one) for one in told if isinstance(one, Refused)]
    assert refused == ["no poison here"] * 3
    assert [records[row] for row, one in enumerate(told) if isinstance(one, Refused)] == [
        b"poison"
    ] * 3
    good = [body for body in records if body != b"poison"]
    assert (await group.bodies(TOPIC))[1:] == good


async def test_what_is_wrong_with_a_topic_is_told_to_each(group: MemoryGroup) -> None:
    """It is true of each, and costs the others' batches nothing."""
    async with AppendStream(group.addresses) as stream:
        nowhere, no_queue, fine = await asyncio.gather(
            asyncio.gather(
                *(stream.append("no spaces", [b"x"]) for _ in range(3)), return_exceptions=True
            ),
            outcomes(stream, [b"x"] * 3, queue_id=9),
            outcomes(stream, [b"a", b"b"]),
        )

    assert ["topic" in str(one) for one in nowhere] == [True] * 3
    assert [f"queues 0 to {QUEUES - 1}: 9" in str(one) for one in no_queue] == [True] * 3
    assert all(isinstance(one, Refused) for one in (*nowhere, *no_queue))
    assert all(isinstance(one, Appended) for one in fine)


async def test_a_retry_is_told_where_its_message_is_whatever_it_is_joined_with(
    group: MemoryGroup,
) -> None:
    """Stored at other times and in other queues, each has a place of its own."""
    records = [Record(body=b"%d" % n, message_id=str(n)) for n in range(6)]
    async with AppendStream(group.addresses, client_id="me") as stream:
        first = [await stream.append(TOPIC, [record]) for record in records]

    async with AppendStream(group.addresses, client_id="me") as stream:
        told = await outcomes(stream, [b"new", *records, b"newer", records[2]], NO_QUEUE)

    assert len({one.queue_id for one in first}) == QUEUES
    assert told[1:7] == first
    assert told[8] == first[2]
    stored = [body for bodies in await all_bodies(group) for body in bodies]
    assert sorted(stored) == sorted([b"new", b"newer", *(record.body for record in records)])


async def test_places_that_look_like_one_are_not_taken_for_one(group: MemoryGroup) -> None:
    """Offsets 0 and 1, but of two queues."""
    first, second = (Record(body=text.encode(), message_id=text) for text in ("a", "b"))
    async with AppendStream(group.addresses, client_id="me") as stream:
        await stream.append(TOPIC, [b"x"], queue_id=1)
        stored = [
            await stream.append(TOPIC, [first], queue_id=0),
            await stream.append(TOPIC, [second], queue_id=1),
        ]
        told = await outcomes(stream, [first, second], NO_QUEUE)

    assert [(one.queue_id, one.offsets) for one in stored] == [(0, (0,)), (1, (1,))]
    assert told == stored


async def test_an_id_that_is_taken_is_told_to_who_used_it(group: MemoryGroup) -> None:
    """Of two records with one id the first is stored; their neighbours hear nothing of it."""
    records = [
        b"a",
        Record(body=b"b", message_id="1"),
        Record(body=b"c", message_id="1"),
        Record(body=b"b", message_id="1"),
        b"d",
    ]
    async with AppendStream(group.addresses) as stream:
        told = await outcomes(stream, records)

    assert isinstance(told[2], MessageIdConflict)
    assert told[2].rows == (0,)
    assert [cast("Appended", told[row]).offsets for row in (0, 1, 3, 4)] == [(0,), (1,), (1,), (2,)]
    assert await group.bodies(TOPIC) == [b"a", b"b", b"d"]


async def test_order_is_kept_with_batches_and_between_any_queue_and_one(
    group: MemoryGroup,
) -> None:
    """What goes to no queue in particular may come to the queue of its neighbours."""
    rng = Random(7)
    async with AppendStream(group.addresses) as stream:
        appends = []
        for number in range(600):
            queue_id = rng.choice((NO_QUEUE, 0, 0, 1))
            bodies = [b"%04d.%d" % (number, row) for row in range(rng.choice((1, 1, 1, 1, 2)))]
            append = stream.append(TOPIC, bodies, queue_id=queue_id)
            appends.append(asyncio.ensure_future(append))
            if rng.random() < 0.1:
                await asyncio.sleep(0)
        await asyncio.gather(*appends)

    for bodies in await all_bodies(group):
        assert bodies == sorted(bodies)


async def test_who_gave_up_before_it_was_sent_is_not_stored(group: MemoryGroup) -> None:
    """Its neighbours are; and a batch that all gave up is none."""
    group.elect(None)
    async with AppendStream(group.addresses, timeout_s=20) as stream:
        appends = [
            asyncio.ensure_future(stream.append(TOPIC, [b"%d" % n], queue_id=queue_id))
            for queue_id in (0, 1)
            for n in range(4)
        ]
        await asyncio.sleep(0)
        for append in (appends[1], *appends[4:]):
            append.cancel()
        await asyncio.sleep(0)
        group.elect(0)
        await asyncio.gather(appends[0], *appends[2:4])
        again = await stream.append(TOPIC, [b"again"], queue_id=1)
        assert stream.unanswered_bytes == 0

    assert again.offsets == (0,)
    assert await all_bodies(group) == [[b"0", b"2", b"3"], [b"again"], []]


async def test_a_batch_is_bounded_in_bytes_and_in_number(group: MemoryGroup) -> None:
    """As the node's loop is to handle it in one go."""
    group.elect(None)
    async with AppendStream(group.addresses, timeout_s=60) as stream:
        small = [
            asyncio.ensure_future(stream.append(TOPIC, [b"x"], queue_id=0)) for _ in range(9_000)
        ]
        large = [
            asyncio.ensure_future(stream.append(TOPIC, [b"y" * (100 << 10)], queue_id=1))
            for _ in range(5)
        ]
        await asyncio.sleep(0)
        group.elect(0)
        await asyncio.gather(*small, *large)

    counts = sizes(group)
    assert sum(counts) == 9_005
    assert max(counts) <= min(MAX_MESSAGES, (256 << 10) // 65)
    assert await group.bodies(TOPIC, 1) == [b"y" * (100 << 10)] * 5
    bodies = [entry.data.count(b"y" * (100 << 10)) for entry in group.log]
    assert max(bodies) <= 2 * UNDER_WAY


async def test_everybody_is_told_when_the_stream_ends(group: MemoryGroup) -> None:
    """Those who were sent that they may be stored, those who were held that they are not."""
    group.elect(None)
    async with AppendStream(group.addresses, timeout_s=20) as stream:
        appends = [
            asyncio.ensure_future(stream.append(TOPIC, [b"x" * (60 << 10)], queue_id=0))
            for _ in range(40)
        ]
        await asyncio.sleep(0.05)

    told = await asyncio.gather(*appends, return_exceptions=True)
    kinds = [type(one) for one in told]
    assert set(kinds) == {OutcomeUnknown, Unavailable}
    assert kinds == sorted(kinds, key=lambda kind: kind is Unavailable)
    assert stream.unanswered_bytes == 0


async def test_a_full_disk_is_told_to_all_and_hides_no_unknown_outcome(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of records that an earlier stream carried it is not known that they are not stored."""
    commit = group.commit

    async def lose(command: Any) -> object:
        await commit(command)
        group.refuse = DiskFull("no room")
        raise LeadershipLost("by the test")

    monkeypatch.setattr(group, "commit", lose)

    async with AppendStream(group.addresses) as stream:
        told = await outcomes(stream, [b"a", b"b", b"c"])
        later = await outcomes(stream, [b"d", b"e"])

    assert [type(one) for one in told] == [OutcomeUnknown] * 3
    assert [type(one) for one in later] == [DiskFull] * 2
    assert await group.bodies(TOPIC) == [b"a", b"b", b"c"]


async def test_a_timeout_is_each_callers_own(group: MemoryGroup) -> None:
    """Told while the batch is unanswered; what comes later is not held up by it."""
    group.elect(None)
    async with AppendStream(group.addresses, timeout_s=SOON_S) as stream:
        told = await outcomes(stream, [b"a", b"b"])
        group.elect(0)
        await stream.append(TOPIC, [b"c"], queue_id=0)

    assert all(isinstance(one, Unavailable) for one in told)
    assert (await group.bodies(TOPIC))[-1] == b"c"


class _Traffic:
    """Random single appends, and what happens to the group meanwhile."""

    def __init__(self, group: MemoryGroup, rng: Random) -> None:
        self._group, self._rng = group, rng
        self.sent: list[tuple[int, bytes, asyncio.Task[Appended]]] = []

    async def send(self, stream: AppendStream, count: int) -> None:
        """Append so many; some callers give up, and leaders come and go."""
        rng = self._rng
        for number in range(count):
            queue_id = rng.randrange(QUEUES)
            body, record = self._record(number)
            append = stream.append(TOPIC, [record], queue_id=queue_id)
            self.sent.append((queue_id, body, asyncio.ensure_future(append)))
            if rng.random() < 0.05:
                await asyncio.sleep(rng.choice((0, 0, 0.002)))
            self._disturb()
            if rng.random() < 0.01:
                rng.choice(self.sent)[2].cancel()
        self._group.elect(0)
        await asyncio.gather(*(append for _, _, append in self.sent), return_exceptions=True)

    def _record(self, number: int) -> tuple[bytes, Record | bytes]:
        rng, chance = self._rng, self._rng.random()
        head = b"P" if chance < 0.02 else b"n"
        body = head + b"%05d" % number + bytes(rng.choice((0, 0, 0, 500)))
        if chance > 0.98:
            return body, Record(body=body, tag="a|b")
        if rng.random() < 0.3:
            tag = rng.choice(("", "t", "\u00fc"))
            return body, Record(body=body, message_id=f"own-{number:012d}", tag=tag)
        return body, body

    def _disturb(self) -> None:
        rng, group = self._rng, self._group
        if rng.random() < 0.01:
            group.lose_outcomes += rng.randrange(3)
            group.elect(rng.choice((0, 1, 2, None)))
        if group.leader is None and rng.random() < 0.1:
            group.elect(rng.randrange(3))

    def check_stored(self, queues: Sequence[Sequence[bytes]]) -> None:
        """Nothing is there twice or out of order."""
        for queue_id, bodies in enumerate(queues):
            assert len(bodies) == len(set(bodies))
            mine = [body for queue, body, _ in self.sent if queue == queue_id]
            assert list(bodies) == sorted(bodies, key=mine.index)

    def check_told(self, queues: Sequence[Sequence[bytes]], refusals: Sequence[bytes]) -> None:
        """Who was told a place has it; who was refused deserved it, and is not stored."""
        for queue_id, body, append in self.sent:
            if append.cancelled():
                continue
            error = append.exception()
            if error is None:
                (offset,) = append.result().offsets
                assert append.result().queue_id == queue_id
                assert queues[queue_id][offset] == body
            else:
                assert isinstance(error, Refused), error
                assert body not in queues[queue_id]
                assert "tag" in str(error) or body[:1] in refusals


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_each_is_stored_once_in_order_and_told_so(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random arrivals, sizes, ids, bad records, strict nodes, lost outcomes and new leaders."""
    rng = Random(seed)
    refused = rng.choice(((b"P",), ()))

    def check(command: bytes) -> ProduceFrame:
        batch = checked_batch(command)
        if any(body[:1] in refused for body in batch.bodies()):
            raise InvalidArgument("no poison here")
        return batch

    monkeypatch.setattr(producing, "checked_batch", check)
    traffic = _Traffic(group, rng)
    async with AppendStream(
        group.addresses,
        client_id=f"c{seed}",
        timeout_s=60,
        max_bytes=rng.choice((5_000, 1 << 20)),
        max_messages=rng.choice((50, 5_000)),
    ) as stream:
        await traffic.send(stream, 800)
        assert stream.unanswered_bytes == 0

    queues = await all_bodies(group)
    traffic.check_stored(queues)
    traffic.check_told(queues, refused)
