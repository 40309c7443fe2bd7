"""A disk to which a backup with a base was restored: its snapshot becomes the new group's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c

from dledger.broker.commands import CreateTopic
from dledger.broker.state import BrokerState
from dledger.errors import CorruptFile, Refused
from dledger.files.memory_files import MemoryFiles
from dledger.replica.snapshots import Snapshots
from dledger.store.commit_log import CommitLog
from dledger.store.format import Base
from dledger.store.identity import (
    LOG_DIRECTORY,
    begin_restore,
    finish_restore,
    join,
    load_identity,
)
from dledger.store.snapshot_file import Snapshot, decode_snapshot
from dledger.store.snapshot_files import SNAPSHOT_DIRECTORY, SnapshotFiles
from dledger.store.watermark import Watermark
from dledger.types import Entry, EntryKind, Member, Membership, NodeId
from tests.replica.group import GROUP_ID

OLD_ID = "00000000-aaaa-bbbb-cccc-444444444444"
DATA = Path("/data")
BASE = Base(index=6, term=2, chain=66)
OLD_MEMBERS = Membership.of([Member(id=NodeId("old"), name="old-0", address="a:1")], OLD_ID)


def _entry(index: int) -> Entry:
    data = CreateTopic(name=f"t{index}", type="NORMAL", queues=1).encode()
    return Entry(
        term=2, index=index, kind=EntryKind.DATA, timestamp_ms=index, crc32c=crc32c(data), data=data
    )


class Restored:
    """A restored disk with a base at entry 8, and entries 7 to 9 behind entry 6."""

    def __init__(self, *, snapshot_of: str = OLD_ID) -> None:
        self.files = MemoryFiles()
        begun = begin_restore(self.files, DATA, "dev/node-0", group_id=OLD_ID)
        watermark = Watermark.open(self.files, DATA / LOG_DIRECTORY)
        watermark.rebase(BASE, index=BASE.index, chain=BASE.chain)
        watermark.close()
        log = CommitLog.open(self.files, DATA / LOG_DIRECTORY, identity=begun)
        log.append([_entry(index) for index in (7, 8, 9)])
        log.sync()
        state = BrokerState()
        state.apply(_entry(8))
        self.snapshot = Snapshot(
            group_id=snapshot_of,
            applied=Base(index=8, term=2, chain=log.chain(8)),
            base=BASE,
            memberships=((1, OLD_MEMBERS),),
            body=state.encode(),
        )
        log.close()
        self._files().save(self.snapshot)
        finish_restore(self.files, DATA, begun, 9)

    def _files(self) -> SnapshotFiles:
        return SnapshotFiles(self.files, DATA / SNAPSHOT_DIRECTORY, reserve_bytes=0)

    def joined(self) -> Snapshots:
        """Join the new group and load what is on the disk, as a start does."""
        identity = load_identity(self.files, DATA)
        assert identity is not None
        identity = join(self.files, DATA, identity, GROUP_ID)
        log = CommitLog.open(self.files, DATA / LOG_DIRECTORY, identity=identity)
        self.state = BrokerState()
        snapshots = Snapshots(
            self._files(),
            group_id=GROUP_ID,
            restored_from=identity.recovered_from,
            log=log,
            state=self.state,
        )
        snapshots.load()
        return snapshots


def test_a_restored_snapshot_becomes_the_new_groups_own() -> None:
    """With the new group's id, so that its members accept it; without the old group's members."""
    disk = Restored()

    snapshots = disk.joined()

    assert (snapshots.index, snapshots.first_index) == (8, 7)
    assert [topic.name for topic in disk.state.topics.all()] == ["t8"]
    assert snapshots.memberships() == []
    info = snapshots.newest()
    assert info is not None
    assert (info.last_index, info.last_term, info.last_chain) == (6, 2, 66)
    again = disk.joined()
    assert again.newest() == info, "the next start finds the same"


async def test_its_bytes_are_exported_whole() -> None:
    """As a backup of the new group begins with them."""
    snapshots = Restored().joined()

    data = b"".join([piece async for piece in snapshots.pieces()])

    exported = decode_snapshot(data)
    assert (exported.group_id, exported.applied.index) == (GROUP_ID, 8)
    await snapshots.close()


def test_a_snapshot_of_any_other_group_is_damage() -> None:
    """Only the group that was restored may have left one."""
    with pytest.raises(CorruptFile, match="it is of group 'foreign'"):
        Restored(snapshot_of="foreign").joined()


async def test_a_node_without_a_snapshot_exports_none() -> None:
    """It says so, and a backup lets it take one first."""
    disk = Restored()
    disk.files.remove(DATA / SNAPSHOT_DIRECTORY / f"{8:020}.snap")
    with pytest.raises(CorruptFile, match="the log begins with entry 7"):
        disk.joined()

    files = SnapshotFiles(MemoryFiles(), DATA / SNAPSHOT_DIRECTORY, reserve_bytes=0)
    identity = load_identity(disk.files, DATA)
    assert identity is not None
    log = CommitLog.open(disk.files, DATA / LOG_DIRECTORY, identity=identity)
    snapshots = Snapshots(files, group_id=GROUP_ID, log=log, state=BrokerState())
    with pytest.raises(Refused, match="no snapshot yet"):
        await anext(snapshots.pieces())
    await snapshots.close()
