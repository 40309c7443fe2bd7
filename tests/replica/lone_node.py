"""One whole driver on a real disk, which may rot while it is down; a test plays the other nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from dledger.broker.commands import CreateTopic
from dledger.broker.state import BrokerState
from dledger.files.files import RealFiles
from dledger.raft.core import Raft
from dledger.raft.messages import (
    DiscardRequest,
    DiscardResponse,
    HeartbeatRequest,
    InstallSnapshotRequest,
    Message,
)
from dledger.replica.driver import DriverConfig
from dledger.types import Entry, EntryKind, Member, NodeId
from tests.replica.group import IDS, DriverNode
from tests.waiting import eventually

SELF, SECOND, THIRD = IDS
_NOBODY_TICKS = DriverConfig(tick_s=3600)


def member(name: str) -> Member:
    return Member(id=NodeId(name), name=name, address=f"{name}:1")


def entry(index: int, kind: EntryKind, data: bytes, *, term: int = 1) -> Entry:
    return Entry(
        term=term, index=index, kind=kind, timestamp_ms=index, crc32c=crc32c(data), data=data
    )


def data_entries(first: int, last: int, *, term: int = 1) -> list[Entry]:
    return [
        entry(
            index,
            EntryKind.DATA,
            CreateTopic(name=f"t{index}", type="NORMAL", queues=1).encode(),
            term=term,
        )
        for index in range(first, last + 1)
    ]


class LoneNode:
    """One node's disk, and the node while it runs; what it says is kept, and goes nowhere."""

    def __init__(self, directory: Path, node_id: NodeId = SELF) -> None:
        self._directory, self._id = directory, node_id
        self.sent: list[Message] = []
        self.open()

    def open(self) -> None:
        """Open the disk, without running."""
        self.node = DriverNode(
            self._id,
            self._directory,
            send=self.sent.append,
            files=RealFiles(),
            config=_NOBODY_TICKS,
            state=BrokerState(),
        )

    async def write(self, entries: Sequence[Entry], *, snapshot_at: int = 0) -> None:
        """Fill the log behind its founding entry; of its beginning there may be a snapshot."""
        self.node.log.append(entries)
        self.node.log.sync()
        if snapshot_at:
            await self.take_snapshot(snapshot_at)

    async def take_snapshot(self, index: int) -> None:
        """Apply everything up to *index*, and take a snapshot."""
        node, broker = self.node, self.node.broker
        assert broker is not None
        for one in node.log.read(1, index, 1 << 20):
            if one.kind is EntryKind.DATA:
                broker.apply(one)
        node.snapshots.attach(
            applied_index=lambda: index, on_loaded=lambda: None, on_error=self.node.fatal.append
        )
        await node.snapshots.take()

    async def start(self, *, rotten: Sequence[int] = ()) -> Raft:
        """Let records rot, and start on what is left."""
        extents = [self.node.log.read_extent(index, index, 1)[0] for index in rotten]
        await self.close()
        for extent in extents:
            path = self._directory / "log" / extent.segment.name
            contents = bytearray(path.read_bytes())
            contents[extent.offset + 60] ^= 1
            path.write_bytes(bytes(contents))
        self.open()
        self.node.driver.start()
        return self.core

    async def close(self) -> None:
        """Stop, as a crash of the process would."""
        await self.node.driver.stop()
        await self.node.snapshots.close()
        self.node.log.close()

    @property
    def core(self) -> Raft:
        return self.node.driver.core

    async def ask(self, *, firm: bool) -> set[NodeId]:
        """Wait until all are asked; return whom."""
        asked = await eventually(lambda: self._asked(firm=firm))
        return {one.recipient for one in asked}

    def _asked(self, *, firm: bool) -> list[DiscardRequest]:
        return [m for m in self.sent if isinstance(m, DiscardRequest) and m.firm is firm]

    def lacks(self, *peers: NodeId, firm: bool) -> None:
        """Let peers say that they lack what they were asked for."""
        for one in self._asked(firm=firm):
            if one.recipient in peers:
                answer = DiscardResponse(
                    sender=one.recipient,
                    recipient=SELF,
                    term=one.term,
                    index=one.index,
                    entry_term=one.entry_term,
                    firm=firm,
                    lacks=True,
                )
                self.node.driver.receive(answer)

    async def discard(self, *peers: NodeId) -> None:
        """Let the node discard its damaged end on the word of these."""
        self.node.driver.entries_lost(self.node.log.faulty)
        for firm in (False, True):
            await self.ask(firm=firm)
            self.lacks(*peers, firm=firm)


def ends(node: DriverNode) -> tuple[int, int]:
    """Return where the log ends, to the core and on the disk."""
    return node.driver.core.last_index, node.log.last_index


def follow_leader(node: LoneNode, *, term: int) -> None:
    """Let the second node be heard as the leader of *term*."""
    node.node.driver.receive(
        HeartbeatRequest(
            sender=SECOND, recipient=SELF, term=term, commit_index=0, commit_chain=0, round=1
        )
    )


def send_snapshot(leader: LoneNode, follower: LoneNode, *, term: int) -> None:
    """Let the newest snapshot of one node arrive at another, from the leader of *term*."""
    snapshots, driver = leader.node.snapshots, follower.node.driver
    info = snapshots.newest()
    assert info is not None
    follow_leader(follower, term=term)
    driver.receive(
        InstallSnapshotRequest(
            sender=SECOND,
            recipient=SELF,
            term=term,
            info=info,
            offset=0,
            data=snapshots._files.read(info, 0, info.size_bytes),
        )
    )
