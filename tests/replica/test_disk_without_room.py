"""What finds no room on the disk: it counts for nothing, and goes down in order once there is."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from dledger.common.metrics import NodeMetrics
from dledger.errors import DiskFull
from dledger.raft.messages import AppendResponse, HeartbeatResponse, Message, VoteResponse
from dledger.raft.ready import Ready
from dledger.replica import persistence as disk_module
from dledger.replica.persistence import Persister, PersisterEvents
from dledger.types import Entry, EntryKind, HardState, NodeId
from tests.waiting import eventually

SELF, OTHER = NodeId("1"), NodeId("2")
STATE = HardState(2, OTHER)
VOTE = VoteResponse(sender=SELF, recipient=OTHER, term=2, granted=True)
BEAT = HeartbeatResponse(sender=SELF, recipient=OTHER, term=2, round=1)


class SmallStore:
    """A log and a hard state file in one, with or without room."""

    last_index = 0

    def __init__(self) -> None:
        self.has_room = False
        self.gate = threading.Event()
        self.gate.set()
        self.refused = 0
        self.saved: list[HardState] = []
        self.written: list[int] = []

    def _take_room(self) -> None:
        assert self.gate.wait(20)
        if not self.has_room:
            self.refused += 1
            raise DiskFull("no room")

    def save(self, state: HardState) -> None:
        """Write term and vote, if there is room."""
        self._take_room()
        self.saved.append(state)

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries, if there is room."""
        self._take_room()
        self.written += [entry.index for entry in entries]

    def cut_behind(self, last: int) -> None:
        """Have nothing behind it."""

    def sync(self) -> None:
        """Do it at once."""


class Bench(PersisterEvents):
    """One disk, what it said and what it reported."""

    def __init__(self) -> None:
        self.store = SmallStore()
        self.sent: list[Message] = []
        self.durable: list[tuple[int, int]] = []
        self.states: list[HardState] = []
        self.full: list[DiskFull] = []
        self.disk = Persister(
            log=self.store,
            hard_state_file=self.store,
            send=self.sent.append,
            events=self,
            now_s=lambda: 0.0,
            metrics=NodeMetrics("g", "n"),
        )

    def hard_state_durable(self, hard_state: HardState) -> None:
        self.states.append(hard_state)

    def entries_durable(self, term: int, index: int) -> None:
        self.durable.append((term, index))

    def cut_durable(self) -> None:
        raise NotImplementedError

    def disk_full(self, error: DiskFull) -> None:
        self.full.append(error)

    def disk_failed(self, error: BaseException) -> None:
        raise error


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """Return a disk without room, which tries again at once."""
    monkeypatch.setattr(disk_module, "_RETRY_S", 0.0)
    made = Bench()
    yield made
    await made.disk.close()


def one(index: int) -> Entry:
    return Entry(term=2, index=index, kind=EntryKind.NOOP, timestamp_ms=0, crc32c=0, data=b"")


def ack(index: int) -> AppendResponse:
    return AppendResponse(
        sender=SELF,
        recipient=OTHER,
        term=2,
        success=True,
        match_index=index,
        conflict_term=0,
        conflict_index=0,
    )


async def test_what_found_no_room_is_written_before_what_came_later(bench: Bench) -> None:
    """It came while that was tried. The log has no holes; nothing is told before it is there."""
    bench.store.gate.clear()
    bench.disk.submit(Ready(entries=(one(1),), after_entries=(ack(1),)))
    bench.disk.submit(Ready(entries=(one(2),), after_entries=(ack(2),)))
    bench.store.gate.set()
    await eventually(lambda: bench.full)
    assert (bench.sent, bench.durable) == ([], [])

    bench.store.has_room = True
    await eventually(lambda: bench.disk.idle)

    assert bench.store.written == [1, 2]
    assert bench.durable == [(2, 1), (2, 2)]
    assert bench.sent == [ack(1), ack(2)]


async def test_a_vote_that_found_no_room_is_not_told(bench: Bench) -> None:
    """Neither when the write ended nor with whatever is said next; it is once it is on disk."""
    bench.disk.submit(Ready(hard_state=STATE, after_hard_state=(VOTE,)))
    await eventually(lambda: bench.store.refused > 1)
    bench.disk.submit(Ready(messages=(BEAT,)))
    assert (bench.sent, bench.states) == ([BEAT], [])

    bench.store.has_room = True
    await eventually(lambda: bench.states == [STATE])

    assert bench.store.saved == [STATE]
    assert bench.sent == [BEAT, VOTE]


async def test_a_later_vote_takes_the_place_of_one_that_found_no_room(bench: Bench) -> None:
    """The newest term and vote cover all before."""
    later = HardState(3, SELF)
    bench.disk.submit(Ready(hard_state=STATE, after_hard_state=(VOTE,)))
    await eventually(lambda: bench.store.refused)
    bench.disk.submit(Ready(hard_state=later))

    bench.store.has_room = True
    await eventually(lambda: bench.states and bench.states[-1] == later)

    assert bench.store.saved[-1] == later
    assert bench.sent == [VOTE]
