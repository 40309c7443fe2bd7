"""Persist before you speak: what leaves a node when, and what a write that ended says."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from dledger.common.metrics import NodeMetrics
from dledger.errors import DiskFull
from dledger.raft.messages import AppendResponse, HeartbeatResponse, Message, VoteResponse
from dledger.raft.ready import Ready
from dledger.replica.persistence import Persister
from dledger.types import Entry, EntryKind, HardState, NodeId
from tests.waiting import eventually

SELF, OTHER = NodeId("1"), NodeId("2")
STATE = HardState(2, OTHER)
VOTE = VoteResponse(sender=SELF, recipient=OTHER, term=2, granted=True)
BEAT = HeartbeatResponse(sender=SELF, recipient=OTHER, term=2, round=1)
ACK = AppendResponse(
    sender=SELF,
    recipient=OTHER,
    term=2,
    success=True,
    match_index=1,
    conflict_term=0,
    conflict_index=0,
)


class GatedStore:
    """A log and a hard state file in one, whose syncs wait at a gate of their own each."""

    last_index = 0

    def __init__(self) -> None:
        self.log_gate, self.state_gate = threading.Event(), threading.Event()
        self.saved: list[HardState] = []
        self.failure: OSError | None = None
        self.calls: list[str] = []

    def save(self, state: HardState) -> None:
        """Write term and vote once the gate is open."""
        assert self.state_gate.wait(20)
        if self.failure:
            raise self.failure
        self.saved.append(state)

    def append(self, entries: Sequence[Entry]) -> None:
        """Take entries."""
        self.calls.append(f"append to {entries[-1].index}")

    def cut_behind(self, last: int) -> None:
        """Let go of what is behind it."""
        self.calls.append(f"cut behind {last}")

    def sync(self) -> None:
        """End once the gate is open."""
        assert self.log_gate.wait(20)


class Told:
    """What the disk has reported."""

    def __init__(self) -> None:
        self.states: list[HardState] = []
        self.entries: list[tuple[int, int]] = []
        self.cuts = 0
        self.failed: list[BaseException] = []

    def hard_state_durable(self, hard_state: HardState) -> None:
        """Note it."""
        self.states.append(hard_state)

    def entries_durable(self, term: int, index: int) -> None:
        """Note it."""
        self.entries.append((term, index))

    def cut_durable(self) -> None:
        """Note it."""
        self.cuts += 1

    def disk_full(self, error: DiskFull) -> None:
        """There is room."""

    def disk_failed(self, error: BaseException) -> None:
        """Note it."""
        self.failed.append(error)


class Bench:
    """One disk, what it said and what it reported."""

    def __init__(self) -> None:
        self.store, self.told = GatedStore(), Told()
        self.sent: list[Message] = []
        self.disk = Persister(
            log=self.store,
            hard_state_file=self.store,
            send=self.sent.append,
            events=self.told,
            now_s=lambda: 0.0,
            metrics=NodeMetrics("g", "n"),
        )


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Return a disk whose gates are shut; opened and closed afterwards."""
    made = Bench()
    yield made
    made.store.log_gate.set()
    made.store.state_gate.set()
    await made.disk.close()


def one(index: int, term: int = 2) -> Entry:
    return Entry(term=term, index=index, kind=EntryKind.NOOP, timestamp_ms=0, crc32c=0, data=b"")


async def test_a_vote_leaves_once_it_is_durable(bench: Bench) -> None:
    """What rests on nothing leaves at once."""
    bench.disk.submit(Ready(hard_state=STATE, messages=(BEAT,), after_hard_state=(VOTE,)))
    assert bench.sent == [BEAT]

    bench.store.state_gate.set()
    await eventually(lambda: bench.told.states == [STATE])

    assert bench.sent == [BEAT, VOTE]


async def test_a_vote_rests_on_every_hard_state_before_it(bench: Bench) -> None:
    """Also when its own Ready has none."""
    bench.disk.submit(Ready(hard_state=STATE))

    bench.disk.submit(Ready(after_hard_state=(VOTE,)))

    assert bench.sent == []
    bench.store.state_gate.set()
    await eventually(lambda: bench.sent == [VOTE])


async def test_an_ack_rests_on_the_hard_state_and_on_the_entries(bench: Bench) -> None:
    """Whichever is durable last."""
    bench.disk.submit(Ready(hard_state=STATE, entries=(one(1),), after_entries=(ACK,)))

    bench.store.log_gate.set()
    await eventually(lambda: bench.told.entries == [(2, 1)])
    assert bench.sent == []

    bench.store.state_gate.set()
    await eventually(lambda: bench.sent == [ACK])


async def test_each_batch_of_a_sync_is_reported(bench: Bench) -> None:
    """The core counts them: the same entry may be among them twice."""
    bench.disk.submit(Ready(entries=(one(1),)))
    for entries in ((one(2),), (one(2, term=3),), (one(2),)):
        bench.disk.submit(Ready(entries=entries))

    bench.store.log_gate.set()
    await eventually(lambda: bench.disk.idle)

    assert bench.told.entries == [(2, 1), (2, 2), (3, 2), (2, 2)]


async def test_behind_a_cut_a_vote_waits_for_the_log(bench: Bench) -> None:
    """It is one of a log that has let go of entries: they must not come back after a restart."""
    bench.store.state_gate.set()
    bench.disk.submit(Ready(cut_behind=3))

    bench.disk.submit(Ready(hard_state=STATE, after_hard_state=(VOTE,)))
    await eventually(lambda: bench.told.states == [STATE])
    assert bench.sent == []

    bench.store.log_gate.set()
    await eventually(lambda: bench.sent == [VOTE])
    assert (bench.told.cuts, bench.told.entries) == (1, [])
    bench.store.log_gate.clear()
    bench.disk.submit(Ready(entries=(one(4),)))
    bench.disk.submit(Ready(after_hard_state=(VOTE,)))
    assert bench.sent == [VOTE, VOTE]


async def test_cuts_and_entries_reach_the_log_in_their_order(bench: Bench) -> None:
    """Whatever goes down in one sync."""
    bench.disk.submit(Ready(entries=(one(1),)))
    bench.disk.submit(Ready(entries=(one(2), one(3))))
    bench.disk.submit(Ready(cut_behind=2))
    bench.disk.submit(Ready(cut_behind=1, entries=(one(2), one(3))))
    bench.disk.submit(Ready(entries=(one(4),)))

    bench.store.log_gate.set()
    await eventually(lambda: bench.disk.idle)

    assert bench.store.calls == [
        "append to 1",
        "append to 3",
        "cut behind 2",
        "cut behind 1",
        "append to 4",
    ]


async def test_a_cut_withdraws_what_would_be_said_of_its_entries(bench: Bench) -> None:
    """An ack that waits for their write would be one for what is not there."""
    bench.store.state_gate.set()
    bench.disk.submit(Ready(entries=(one(1),), after_entries=(ACK,)))
    bench.disk.submit(Ready(cut_behind=0))

    bench.store.log_gate.set()
    await eventually(lambda: bench.disk.idle)

    assert bench.sent == []


async def test_a_disk_that_failed_says_nothing_more(bench: Bench) -> None:
    """What is on it is unknown; it is told once, and the node stops."""
    bench.store.failure = OSError(errno.EIO, "gone")
    bench.disk.submit(Ready(hard_state=STATE, after_hard_state=(VOTE,)))

    bench.store.state_gate.set()
    await eventually(lambda: bench.told.failed)
    bench.disk.submit(Ready(after_hard_state=(VOTE,)))
    await asyncio.sleep(0)

    assert bench.told.failed == [bench.store.failure]
    assert (bench.sent, bench.told.states, bench.store.saved) == ([], [], [])


class Noted:
    """A worker that notes what it is given."""

    def __init__(self, notes: list[object]) -> None:
        self._notes = notes

    def run(self, work: object, done: object) -> None:
        """Do nothing else."""
        del work, done
        self._notes.append("write")

    async def close(self) -> None:
        """There is nothing to end."""


@pytest.mark.parametrize(
    "cuts",
    [
        Ready(hard_state=HardState(3), entries=(one(2, term=3),)),
        Ready(hard_state=HardState(3), cut_behind=1),
    ],
)
async def test_a_log_is_cut_only_once_the_term_of_that_is_durable(
    bench: Bench, cuts: Ready
) -> None:
    """Else a start could take what a later leader cut for what the disk has forgotten."""
    bench.store.last_index = 3
    bench.store.log_gate.set()

    bench.disk.submit(cuts)
    await asyncio.sleep(0.05)
    assert bench.store.calls == []
    bench.store.state_gate.set()

    await eventually(lambda: bench.store.calls)
    assert bench.store.saved == [HardState(3)]


async def test_entries_that_take_no_others_place_wait_for_no_vote(bench: Bench) -> None:
    """A vote and data are written side by side."""
    bench.store.last_index = 1
    bench.store.log_gate.set()

    bench.disk.submit(Ready(hard_state=HardState(3), entries=(one(2, term=3),)))

    await eventually(lambda: bench.store.calls == ["append to 2"])
    assert bench.store.saved == []


@pytest.mark.parametrize(
    ("size_bytes", "order"), [(16 << 10, [BEAT, "write"]), ((16 << 10) + 1, ["write", BEAT])]
)
def test_a_small_write_begins_behind_what_is_sent(size_bytes: int, order: list[object]) -> None:
    """The writer would only wait for Python's lock; a large one takes longer than that."""
    notes: list[object] = []
    disk = Persister(
        log=GatedStore(),
        hard_state_file=GatedStore(),
        send=notes.append,
        events=Told(),
        now_s=lambda: 0.0,
        metrics=NodeMetrics("g", "n"),
        thread=lambda _: Noted(notes),
    )

    entry = replace(one(1), data=bytes(size_bytes))
    disk.submit(Ready(entries=(entry,), messages=(BEAT,)))

    assert notes == order
