"""Consumer groups at the Admin service: where they begin, where they are, and who moves them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dledger.broker.commands import Ack, LeaseRef, Receive, Retain
from dledger.broker.results import Received
from dledger.client import AdminClient, Client, Place
from dledger.errors import InvalidArgument, Refused, UnknownGroup, UnknownTopic
from dledger.types import Record
from tests.requests.memory_group import WAIT_S, MemoryGroup, memory_group


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Two nodes, and a topic t of two queues with three messages each, a second apart."""
    async with memory_group(2) as group:
        async with Client(group.addresses[0]) as client:
            await client.create_topic("t", queues=2)
            for number in range(3):
                for queue_id in (0, 1):
                    record = Record(body=b"%d" % number, tag="ab"[queue_id])
                    await client.append("t", [record], queue_id=queue_id)
                group.clock_skew_ms += 1_000
        yield group


@pytest.fixture
async def admin(group: MemoryGroup) -> AsyncIterator[AdminClient]:
    """A client of the leader."""
    async with AdminClient(f"127.0.0.1:{group.nodes[0].peer_port}", timeout_s=WAIT_S) as admin:
        yield admin


async def _receive(
    group: MemoryGroup,
    name: str = "g",
    *,
    limit: int = 9,
    client: str = "",
    tags: tuple[str, ...] | None = None,
) -> list[tuple[int, int, int]]:
    """Return (queue id, offset, receive id) of what a member gets."""
    command = Receive(
        group=name,
        topic="t",
        queue_id=0,
        any_queue=True,
        limit=limit,
        invisible_ms=60_000,
        client_id=client,
        tags=tags,
    )
    received = await group.nodes[0].engine.propose(command.encode())
    assert isinstance(received, Received)
    return [(each.queue_id, each.offset, received.receive_id) for each in received.deliveries]


async def test_a_group_begins_where_it_was_made_to(group: MemoryGroup, admin: AdminClient) -> None:
    """With the oldest, the newest, or a time."""
    times = [group.log[-1].timestamp_ms, group.log[-1].timestamp_ms + 1]

    assert await admin.create_group("oldest")
    assert await admin.create_group("newest", Place(newest=True))
    assert await admin.create_group("then", Place(stored_ms=times[0]))
    assert await admin.create_group("after", Place(stored_ms=times[1]))
    assert not await admin.create_group("newest")

    assert len(await _receive(group, "oldest")) == 6
    assert await _receive(group, "newest") == []
    assert [each[:2] for each in await _receive(group, "then")] == [(1, 2)]
    assert await _receive(group, "after") == []
    async with Client(group.addresses[0]) as client:
        await client.append("t", [b"new"], queue_id=1)
    assert [each[:2] for each in await _receive(group, "newest")] == [(1, 3)]
    assert (await admin.group("oldest")).begins_at_ms == 0
    assert (await admin.group("then")).begins_at_ms == times[0]


async def test_a_group_begins_at_no_offset(admin: AdminClient) -> None:
    """It reads several queues."""
    with pytest.raises(InvalidArgument, match="no single offset"):
        await admin.create_group("g", Place(offset=1))


async def test_a_group_is_moved_in_all_queues_or_in_one(
    group: MemoryGroup, admin: AdminClient
) -> None:
    """To the ends, to a time, to an offset; and the answer says from where, and what ended."""
    await admin.create_group("g")
    held = await _receive(group)
    at_ms = next(each.timestamp_ms for each in group.log if b"t" in each.data[-40:])

    moved = await admin.seek_group("g", "t", Place(newest=True))
    assert [(each.queue_id, each.before, each.offset, each.held) for each in moved] == [
        (0, 0, 3, 3),
        (1, 0, 3, 3),
    ]
    assert [each.unread for each in moved] == [0, 0]
    refs = tuple(LeaseRef(*each) for each in held)
    acked = await group.nodes[0].engine.propose(Ack(group="g", topic="t", leases=refs).encode())
    assert acked.outcomes == (True,) * 6  # type: ignore[attr-defined]  # they were passed over
    (moved_one,) = await admin.seek_group("g", "t", Place(offset=1), queue_id=1)
    assert (moved_one.queue_id, moved_one.offset, moved_one.unread) == (1, 1, 2)
    assert [each[:2] for each in await _receive(group)] == [(1, 1), (1, 2)]
    moved = await admin.seek_group("g", "t", Place(stored_ms=at_ms))
    assert [each.offset for each in moved] == [0, 0]
    moved = await admin.seek_group("g", "t", Place())
    assert [each.offset for each in moved] == [0, 0]


async def test_a_look_moves_nothing(group: MemoryGroup, admin: AdminClient) -> None:
    """It says the same."""
    await admin.create_group("g")
    await _receive(group)
    before, entries = group.nodes[0].engine.state.digest(), len(group.log)

    looked = await admin.seek_group("g", "t", Place(newest=True), only_look=True)

    assert group.nodes[0].engine.state.digest() == before
    assert len(group.log) == entries
    assert await admin.seek_group("g", "t", Place(newest=True)) == looked


async def test_a_place_that_is_gone_is_moved_up_and_told(
    group: MemoryGroup, admin: AdminClient
) -> None:
    """The offset that was asked for is in the answer beside the one that it is."""
    await admin.create_group("g")
    await group.nodes[0].engine.propose(Retain(before_index=len(group.log) - 1).encode())

    moved = await admin.seek_group("g", "t", Place(offset=1))

    assert [(each.asked, each.offset) for each in moved] == [(1, 3), (1, 2)]


async def test_what_cannot_be_is_refused_by_name(group: MemoryGroup, admin: AdminClient) -> None:
    """And no queue is moved."""
    await admin.create_group("g")
    with pytest.raises(UnknownGroup):
        await admin.seek_group("nobody", "t", Place())
    with pytest.raises(UnknownTopic):
        await admin.seek_group("g", "nowhere", Place())
    with pytest.raises(InvalidArgument, match="queues 0 to 1"):
        await admin.seek_group("g", "t", Place(), queue_id=2)
    with pytest.raises(InvalidArgument, match="ends at offset 3"):
        await admin.seek_group("g", "t", Place(offset=4))
    with pytest.raises(Refused, match="no time"):
        await admin.seek_group("g", "t", Place(stored_ms=-1))
    with pytest.raises(UnknownGroup):
        await admin.group("nobody")
    assert len(await _receive(group)) == 6


async def test_a_group_is_shown_by_queue_member_and_filter(
    group: MemoryGroup, admin: AdminClient
) -> None:
    """How far it is, who holds what, and what its members ask for."""
    await admin.create_group("g")
    await _receive(group, limit=2, client="c")
    await _receive(group, limit=2, tags=("b",))

    found = await admin.group("g")

    assert [(q.queue_id, q.first, q.end, q.committed, q.next, q.held) for q in found.queues] == [
        (0, 0, 3, 0, 3, 2),
        (1, 0, 3, 0, 2, 2),
    ]
    assert [each.lag for each in found.queues] == [3, 3]
    assert [(each.client_id, each.held) for each in found.members] == [("", 2), ("c", 2)]
    assert [(each.topic, each.filter) for each in found.filters] == [("t", "*"), ("t", "b")]
    assert [(each.topic, each.held) for each in found.backlogs] == [("t", 4)]
