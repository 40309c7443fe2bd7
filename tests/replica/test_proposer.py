"""From the queue into the log: in order, as far as there is room, and refused together."""

from __future__ import annotations

import asyncio
from typing import Final

from dledger.broker.command_frame import CommandType, split
from dledger.broker.commands import Leap, decode
from dledger.common.metrics import NodeMetrics
from dledger.errors import NotLeader
from dledger.raft.messages import HeartbeatRequest
from dledger.replica.log_clock import LogClock
from dledger.replica.proposer import Proposer
from dledger.types import EntryKind
from tests.raft.bench import Alone
from tests.replica.group import Clock
from tests.replica.room_harness import Keeping

KIB: Final = 1 << 10
ROOM: Final = 100 * KIB


def leading() -> Alone:
    """Return the leader of three, whose log has room for two commands of `large`."""
    node = Alone(max_uncommitted_bytes=ROOM)
    node.become_leader()
    node.ack(node.raft.last_index)
    node.settle()
    return node


def proposing_of(node: Alone) -> Proposer:
    clock = Clock()
    log_clock = LogClock(clock)
    log_clock.applied(1_000, 0)
    log_clock.lead()
    return Proposer(
        node.raft,
        clock=clock,
        log_clock=log_clock,
        metrics=NodeMetrics("test", "n1"),
        max_queued_bytes=1 << 20,
        room=Keeping().keeper,
    )


def large(number: int) -> bytes:
    """Return a command that is worth an entry of its own."""
    return bytes([number]) * (64 * KIB)


def proposed(node: Alone) -> list[int]:
    """Return which commands have become entries, in order; the writes of all have ended."""
    node.settle()
    entries = node.disk.stored(1, node.disk.last_index)
    commands = b"".join(entry.data for entry in entries if entry.kind is EntryKind.DATA)
    return list(commands[:: 64 * KIB])


async def test_what_finds_no_room_stays_queued_and_in_order() -> None:
    """A batch that was refused by itself was overtaken by those behind it (promise P2)."""
    node = leading()
    proposing = proposing_of(node)
    results = []
    for number in range(1, 6):
        results.append(proposing.push(large(number)))
        proposing.propose(disk_idle=True)
        proposed(node)
    assert proposed(node) == [1, 2]
    assert proposing.queue.size_bytes == 3 * 64 * KIB

    while proposing.queue.size_bytes:
        node.ack(node.raft.last_index)
        node.settle()
        proposing.propose(disk_idle=True)

    assert proposed(node) == [1, 2, 3, 4, 5]
    assert not any(result.done() for result in results)


async def test_nothing_is_proposed_before_a_new_group_has_a_date() -> None:
    """Its first entries would be of 1970, or of one clock that may be wrong by anything."""
    node, clock = leading(), Clock()
    log_clock = LogClock(clock)
    log_clock.lead()
    proposing = Proposer(
        node.raft,
        clock=clock,
        log_clock=log_clock,
        metrics=NodeMetrics("test", "n1"),
        max_queued_bytes=1 << 20,
        room=Keeping().keeper,
    )
    proposing.push(large(1))
    proposing.propose(disk_idle=True)
    assert proposed(node) == []

    log_clock.begin(1_700_000_000_000)
    proposing.propose(disk_idle=True)

    assert proposed(node) == [1]


async def test_a_leap_is_an_entry_of_its_own_and_of_the_later_time() -> None:
    """What waits goes behind it, and is of that time or later; none leaves during a hand-over."""
    node = leading()
    proposing = proposing_of(node)
    proposing.push(large(1))

    index = proposing.leap(9_000_000)
    proposing.propose(disk_idle=False)
    node.settle()
    proposing.propose(disk_idle=True)
    node.settle()

    leap, behind = node.disk.stored(index, index + 1)
    ((kind, start, end),) = split(leap.data)
    assert (kind, leap.timestamp_ms) == (CommandType.LEAP, 9_000_000)
    found = decode(kind, leap.data[start:end])
    assert isinstance(found, Leap)
    assert 1_000 <= found.from_ms < found.to_ms == 9_000_000
    assert behind.timestamp_ms >= 9_000_000
    node.do(lambda raft: raft.transfer_leadership(None))
    assert proposing.leap(19_000_000) == 0


async def test_nothing_is_proposed_while_leadership_is_handed_over() -> None:
    """The successor must catch up; the commands wait, for it or for the end of the attempt."""
    node = leading()
    proposing = proposing_of(node)
    node.do(lambda raft: raft.transfer_leadership(None))
    node.settle()

    result = proposing.push(large(1))
    proposing.propose(disk_idle=True)

    assert (proposed(node), result.done()) == ([], False)


async def test_when_leadership_ends_all_that_is_queued_is_refused_together() -> None:
    """One alone that was refused would be overtaken, were the lead won again."""
    node = leading()
    proposing = proposing_of(node)
    results = [proposing.push(large(number)) for number in (1, 2)]
    node.hear(HeartbeatRequest, term=node.raft.term + 1, commit_index=0, round=1)
    node.settle()

    proposing.propose(disk_idle=True)
    assert not any(result.done() for result in results)
    proposing.refuse(NotLeader(None))

    outcomes = await asyncio.gather(*results, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [NotLeader, NotLeader]
    assert (proposed(node), proposing.queue.size_bytes) == ([], 0)
