"""Duty 8 of `Ready`: a snapshot is installed behind every write that was under way."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

from crc32c import crc32c

from dledger.broker.commands import CreateTopic
from dledger.broker.state import BrokerState
from dledger.common.metrics import NodeMetrics
from dledger.errors import DiskFull, StorageError
from dledger.files.memory_files import Fault, MemoryFiles
from dledger.raft.ready import Ready, SnapshotChunk
from dledger.replica.installation import Installation
from dledger.replica.persistence import Persister
from dledger.replica.snapshots import Memberships, Snapshots
from dledger.store.commit_log import CommitLog
from dledger.store.format import Base
from dledger.store.hard_state import HardStateFile
from dledger.store.identity import LOG_DIRECTORY, join, load_or_format
from dledger.store.snapshot_file import Snapshot, encode_snapshot
from dledger.store.snapshot_files import SNAPSHOT_DIRECTORY, SnapshotFiles, info_of
from dledger.types import Entry, EntryKind, HardState, NodeId, SnapshotInfo
from tests.replica.group import GROUP_ID
from tests.waiting import eventually

_DATA = Path("/data")


class GatedHardState(HardStateFile):
    """A hard state whose saving waits for a gate."""

    gate = threading.Event()

    def save(self, state: HardState) -> None:
        assert self.gate.wait(20)
        super().save(state)


class Bench:
    """One node's disk and what installs snapshots on it; events are remembered."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.events: list[str] = []
        self.finished: list[Memberships | None] = []
        identity = load_or_format(self.files, _DATA, "node", new_id=lambda: NodeId("n1"))
        identity = join(self.files, _DATA, identity, GROUP_ID)
        self.log = CommitLog.open(self.files, _DATA / LOG_DIRECTORY, identity=identity)
        self.hard_state_file = GatedHardState(self.files, _DATA)
        self.hard_state_file.gate = threading.Event()
        self.hard_state_file.gate.set()
        self.state = BrokerState()
        self.snapshots = Snapshots(
            SnapshotFiles(self.files, _DATA / SNAPSHOT_DIRECTORY, reserve_bytes=0),
            group_id=GROUP_ID,
            log=self.log,
            state=self.state,
        )
        self.snapshots.attach(
            applied_index=lambda: 0, on_loaded=lambda: None, on_error=self.disk_failed
        )
        self.disk = Persister(
            log=self.log,
            hard_state_file=self.hard_state_file,
            send=lambda _: None,
            events=self,
            now_s=lambda: 0.0,
            metrics=NodeMetrics("test", "n1"),
        )
        self.installation = Installation(
            self.snapshots, self.disk, finished=self._finish, failed=self.disk_failed
        )

    def take(self, ready: Ready) -> None:
        self.disk.submit(ready)
        self.installation.take(ready)

    def _finish(self, info: SnapshotInfo, memberships: Memberships | None) -> None:
        self.events.append("finished")
        self.finished.append(memberships)

    def hard_state_durable(self, hard_state: HardState) -> None:
        self.events.append(f"term {hard_state.term} durable")

    def entries_durable(self, term: int, index: int) -> None:
        self.events.append(f"entry {index} durable")

    def cut_durable(self) -> None: ...

    def disk_full(self, error: DiskFull) -> None: ...

    def disk_failed(self, error: BaseException) -> None:
        self.events.append(type(error).__name__)

    async def close(self) -> None:
        await self.disk.close()
        await self.installation.close()


def _snapshot() -> tuple[SnapshotInfo, bytes]:
    state = BrokerState()
    data = CreateTopic(name="t", type="NORMAL", queues=1).encode()
    state.apply(_entry(9, data))
    snapshot = Snapshot(
        group_id=GROUP_ID,
        applied=Base(index=9, term=2, chain=5),
        base=Base(index=6, term=2, chain=4),
        memberships=(),
        body=state.encode(),
    )
    encoded = b"".join(encode_snapshot(snapshot))
    return info_of(snapshot, encoded), encoded


def _entry(index: int, data: bytes = b"x") -> Entry:
    return Entry(
        term=1, index=index, kind=EntryKind.DATA, timestamp_ms=1, crc32c=crc32c(data), data=data
    )


async def test_the_writes_under_way_end_before_the_log_is_replaced() -> None:
    """Entries and hard state: otherwise an older leader could append below the snapshot."""
    bench, (info, encoded) = Bench(), _snapshot()
    bench.hard_state_file.gate.clear()

    bench.take(
        Ready(
            hard_state=HardState(term=2),
            entries=(_entry(1),),
            chunks=(SnapshotChunk(info, 0, encoded),),
            install=info,
        )
    )
    await eventually(lambda: bench.events)
    await asyncio.sleep(0.05)
    before = (list(bench.events), bench.log.first_index)
    bench.hard_state_file.gate.set()
    await eventually(lambda: bench.finished)
    await bench.close()

    assert before == (["entry 1 durable"], 1)
    assert bench.events == ["entry 1 durable", "term 2 durable", "finished"]
    assert (bench.log.first_index, bench.log.last_index) == (7, 6)
    assert bench.state.topics.get("t") is not None
    assert bench.snapshots.index == 9


async def test_a_stopped_node_installs_nothing() -> None:
    """The leader sends it again after the restart."""
    bench, (info, encoded) = Bench(), _snapshot()

    bench.take(Ready(entries=(_entry(1),), chunks=(SnapshotChunk(info, 0, encoded),), install=info))
    await bench.close()

    assert bench.finished == []
    assert bench.log.first_index == 1


async def test_a_snapshot_without_room_is_given_up() -> None:
    """Nothing changes; the leader asks again."""
    bench, (info, encoded) = Bench(), _snapshot()
    bench.files.inject(Fault("pwritev", errno.ENOSPC, suffix="incoming"))

    bench.take(Ready(chunks=(SnapshotChunk(info, 0, encoded),), install=info))
    await eventually(lambda: bench.finished)
    await bench.close()

    assert bench.finished == [None]
    assert bench.log.first_index == 1


async def test_a_failed_write_of_a_snapshot_ends_the_node() -> None:
    """Whatever fails on the disk, nothing it says counts any more."""
    bench, (info, encoded) = Bench(), _snapshot()
    bench.files.inject(Fault("rename", errno.EIO))

    bench.take(Ready(chunks=(SnapshotChunk(info, 0, encoded),), install=info))
    await eventually(lambda: bench.events)
    await bench.close()

    assert bench.events == [StorageError.__name__]
    assert bench.finished == []


async def test_pieces_faster_than_the_disk_are_refused_for_a_while() -> None:
    """What waits to be written is bounded; the leader sends the piece again."""
    bench = Bench()
    big = SnapshotInfo(last_index=6, last_term=2, last_chain=0, size_bytes=1 << 30, crc32c=0)
    piece = bytes(1 << 20)

    for number in range(17):
        bench.snapshots.receive(SnapshotChunk(big, number << 20, piece))
    backlogged = bench.snapshots.is_backlogged
    await eventually(lambda: not bench.snapshots.is_backlogged)
    await bench.close()

    assert backlogged
