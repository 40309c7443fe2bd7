"""Three real drivers on real disks, joined by an in-process network that can be cut."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from crc32c import crc32c

from dledger.broker.state import BrokerState
from dledger.common.metrics import NodeMetrics
from dledger.files.files import Files, RealFiles
from dledger.raft.config import RaftConfig
from dledger.raft.messages import Message
from dledger.replica.driver import Driver, DriverConfig
from dledger.replica.room_keeper import RoomConfig
from dledger.replica.snapshots import Snapshots
from dledger.store.commit_log import CommitLog
from dledger.store.hard_state import HardStateFile
from dledger.store.identity import LOG_DIRECTORY, join, load_or_format
from dledger.store.snapshot_files import SNAPSHOT_DIRECTORY, SnapshotFiles
from dledger.types import Entry, EntryKind, HardState, Member, Membership, NodeId, Role
from tests.waiting import eventually

GROUP_ID = "11111111-2222-3333-4444-555555555555"
IDS = tuple(NodeId(f"n{number}") for number in (1, 2, 3))
MEMBERSHIP = Membership.of(Member(id=i, name=f"node-{i}", address=f"{i}:1") for i in IDS)


class Clock:
    """Real clocks, with a wall clock that a test may set back or forth, and time that passes."""

    def __init__(self) -> None:
        self.jump_ms = 0
        self.passed_s = 0

    def monotonic_s(self) -> float:
        return time.monotonic() + self.passed_s

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.jump_ms


class Recorder:
    """A state machine that remembers what was applied, and answers with the command's number."""

    def __init__(self) -> None:
        self.applied: list[Entry] = []
        self.leapt_ms = 0

    def apply(self, entry: Entry) -> list[object]:
        self.applied.append(entry)
        return list(split(entry.data))


def command(text: str) -> bytes:
    """Return a framed command as tests use it: a length byte and the text."""
    data = text.encode()
    return bytes([len(data)]) + data


def split(data: bytes) -> list[str]:
    """Return the texts of concatenated commands."""
    texts = []
    while data:
        texts.append(data[1 : 1 + data[0]].decode())
        data = data[1 + data[0] :]
    return texts


class DriverNode:
    """One driver and what it stands on."""

    def __init__(
        self,
        node_id: NodeId,
        directory: Path,
        *,
        send: Callable[[Message], None],
        files: Files,
        config: DriverConfig,
        state: BrokerState | None = None,
        promote_learners: bool = True,
        segment_bytes: int = 1 << 20,
    ) -> None:
        self.id = node_id
        self.clock = Clock()
        self.state = Recorder()
        self.broker = state
        self.metrics = NodeMetrics("test", node_id)
        self.fatal: list[BaseException] = []
        identity = load_or_format(files, directory, f"node-{node_id}", new_id=lambda: node_id)
        identity = join(files, directory, identity, GROUP_ID)
        hard_state_file = HardStateFile(files, directory)
        self.log = CommitLog.open(
            files, directory / LOG_DIRECTORY, identity=identity, segment_bytes=segment_bytes
        )
        self.snapshots = Snapshots(
            SnapshotFiles(files, directory / SNAPSHOT_DIRECTORY, reserve_bytes=0),
            group_id=GROUP_ID,
            log=self.log,
            state=state or BrokerState(),
        )
        self.snapshots.load()
        if not self.log.last_index:
            hard_state_file.save(HardState(term=1))
            self.log.append([founding_entry()])
            self.log.sync()
        self.driver = Driver(
            config=replace(config, room=room_config(segment_bytes)),
            raft=RaftConfig(
                id=node_id, election_timeout_ticks=20, promote_learners=promote_learners
            ),
            hard_state_file=hard_state_file,
            hard_state=hard_state_file.load(),
            log=self.log,
            state=self.state if state is None else state,
            send=send,
            on_membership=lambda _: None,
            on_fatal=self.fatal.append,
            clock=self.clock,
            rng=random.Random(node_id),
            metrics=self.metrics,
            snapshots=self.snapshots,
        )

    def lives(self, s: int) -> None:
        """Let time pass, with a look at the log's clock each five seconds as ticks have them."""
        for _ in range(0, s, 5):
            self.clock.passed_s += 5
            self.driver.log_clock.look()


def room_config(segment_bytes: int) -> RoomConfig:
    """Return thresholds for disks that are as small as a test's segments."""
    return RoomConfig(
        segment_bytes=segment_bytes,
        least_segment_bytes=segment_bytes,
        small_files_bytes=0,
        percent=0,
    )


def founding_entry() -> Entry:
    """Return the first entry of every test log."""
    data = MEMBERSHIP.encode()
    return Entry(
        term=1,
        index=1,
        kind=EntryKind.MEMBERSHIP,
        timestamp_ms=0,
        crc32c=crc32c(data),
        data=data,
    )


class DriverGroup:
    """Three nodes and the network between them."""

    def __init__(
        self,
        directory: Path,
        *,
        files: Mapping[NodeId, Files] | None = None,
        config: DriverConfig | None = None,
        brokers: bool = False,
        segment_bytes: int = 1 << 20,
        promote_learners: bool = True,
    ) -> None:
        self._brokers, self._segment_bytes = brokers, segment_bytes
        self._promote_learners = promote_learners
        self._directory = directory
        self._files = files or {}
        self._config = config or DriverConfig(tick_s=0.01)
        self.nodes: dict[NodeId, DriverNode] = {}
        self.cut: set[NodeId] = set()
        self.sent: list[Message] = []
        self.tamper: Callable[[Message], Message] = lambda message: message
        self._stopped: list[DriverNode] = []

    def start(self, *ids: NodeId) -> None:
        """Start the given nodes, or all."""
        for node_id in ids or IDS:
            node = DriverNode(
                node_id,
                self._directory / node_id,
                send=self._deliver,
                files=self._files.get(node_id, RealFiles()),
                config=self._config,
                state=BrokerState() if self._brokers else None,
                segment_bytes=self._segment_bytes,
                promote_learners=self._promote_learners,
            )
            self.nodes[node_id] = node
            node.driver.start()

    def _deliver(self, message: Message) -> None:
        self.sent.append(message)
        message = self.tamper(message)
        if message.sender in self.cut or message.recipient in self.cut:
            return
        if message.recipient in self.nodes and message.sender in self.nodes:
            recipient = self.nodes[message.recipient].driver
            asyncio.get_running_loop().call_soon(recipient.receive, message)

    async def stop(self, *ids: NodeId) -> None:
        """Stop the given nodes, or all, as a crash of the process would."""
        for node_id in ids or tuple(self.nodes):
            node = self.nodes.pop(node_id)
            await node.driver.stop()
            node.log.close()

    async def leader(self) -> DriverNode:
        """Wait for a leader that serves."""
        return await eventually(self._serving_leader)

    def _serving_leader(self) -> DriverNode | None:
        serving = [
            node
            for node in self.nodes.values()
            if node.driver.is_serving_leader() and node.id not in self.cut
        ]
        return max(serving, key=lambda node: node.driver.core.term, default=None)

    def followers(self) -> list[DriverNode]:
        """Return the nodes that do not lead."""
        return [n for n in self.nodes.values() if n.driver.core.role is not Role.LEADER]
