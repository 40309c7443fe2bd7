"""A running node's snapshots: taken, sent to followers that need them, received and installed.

A snapshot's state is ahead of the log that goes with it, which begins after the snapshot's *base*:
the newest entry of which no message is kept. A node that installs a snapshot gets the log from the
base on by ordinary replication, with every message in it, and skips the entries that its state
already contains. So a new replica holds as much as the others, and a node needs only its newest
snapshot to help one. Owned by the driver; all I/O runs in one thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from dledger.broker.snapshot_codec import MalformedStateError
from dledger.broker.state import BrokerState, FrozenState
from dledger.common.pacing import in_short_turns
from dledger.common.watchdog import Watchdog
from dledger.errors import CorruptFile, DiskFull, OffsetOutOfRange, Refused, StorageError
from dledger.raft.ready import SnapshotChunk
from dledger.replica import snapshot_backoff
from dledger.store.commit_log import CommitLog
from dledger.store.format import Base
from dledger.store.snapshot_file import Snapshot
from dledger.store.snapshot_files import SnapshotFiles
from dledger.types import Membership, SnapshotInfo

logger = logging.getLogger(__name__)

_PIECES: Final = 4
_EXPORT_BYTES: Final = 1 << 20
_MAX_BACKLOG_BYTES: Final = 16 << 20

_T = TypeVar("_T")
Memberships = Sequence[tuple[int, Membership]]


@dataclass(frozen=True, slots=True)
class Received:
    """A complete snapshot from a leader, and its decoded state."""

    info: SnapshotInfo
    snapshot: Snapshot
    state: BrokerState


class Snapshots:
    """Implements the core's `SnapshotReader`.

    Attributes:
        index: The last entry that the state got from a snapshot; later ones are yet to be applied.
        first_index: The oldest entry that the newest durable snapshot needs; 0 without one.
    """

    def __init__(
        self,
        files: SnapshotFiles,
        *,
        group_id: str,
        log: CommitLog,
        state: BrokerState,
        restored_from: str = "",
        watchdog: Watchdog | None = None,
    ) -> None:
        """Recover into *state*, which `load` does; call `load` before anything else.

        *restored_from* is the group whose backup was restored to this disk; "" if none was.
        """
        self._files = files
        self._group_id = group_id
        self._restored_from = restored_from
        self._log = log
        self._state = state
        self._watchdog = watchdog or Watchdog()
        self._covered = Snapshot(
            group_id=group_id, applied=Base(), base=Base(), memberships=(), body=b""
        )
        self._thread = ThreadPoolExecutor(1, "snapshots")
        self._busy = asyncio.Lock()
        self._pieces: OrderedDict[tuple[SnapshotInfo, int], bytes] = OrderedDict()
        self._loading: set[tuple[SnapshotInfo, int]] = set()
        self._backlog_bytes = 0
        self._applied_index: Callable[[], int] = lambda: 0
        self._on_loaded: Callable[[], None] = lambda: None
        self._on_error: Callable[[BaseException], None] = lambda _: None
        self.index = 0
        self.first_index = 0

    def attach(
        self,
        *,
        applied_index: Callable[[], int],
        on_loaded: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """Set how to read the applied index, and the callbacks for a read chunk and a failed disk.

        All three are called on the event loop.
        """
        self._applied_index, self._on_loaded, self._on_error = applied_index, on_loaded, on_error

    async def close(self) -> None:
        """Wait for running work to finish."""
        await asyncio.to_thread(self._thread.shutdown)

    # -- at start --------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the newest usable snapshot into the state; finish an installation. Blocks.

        Raises:
            CorruptFile: No intact snapshot reaches the start of the log, or one contradicts it.
            StorageError: The disk failed.
        """
        found = self._files.load(self._group_id, restored_from=self._restored_from)
        if self.unfinished:
            logger.warning(
                "this node died while taking a snapshot, %d times in a row: the next one is "
                "delayed, is taken as a follower if possible, and is given more time",
                self.unfinished,
            )
        if found:
            self._recover(self._ours(found[-1]))
        elif self._log.first_index > 1:
            raise CorruptFile(
                "snapshots", f"none is whole, and the log begins with entry {self._log.first_index}"
            )

    def _ours(self, snapshot: Snapshot) -> Snapshot:
        """Return *snapshot*; make a restored one this group's first, as the leader sends it.

        Members of the group that was backed up are not members of this one.
        """
        if snapshot.group_id == self._group_id:
            return snapshot
        ours = replace(snapshot, group_id=self._group_id, memberships=())
        self._files.save(ours)
        return ours

    def _recover(self, snapshot: Snapshot) -> None:
        applied = snapshot.applied
        if applied.index < self._log.first_index - 1:
            raise CorruptFile(
                "snapshots",
                f"the newest whole one ends with entry {applied.index}, "
                f"the log begins with {self._log.first_index}",
            )
        state = self._decoded(snapshot)
        if not self._continues(snapshot.base):
            self._restart(snapshot)
        elif not self._continues(applied) and applied.index <= self._log.last_index:
            raise CorruptFile(
                "snapshots", f"the log's entry {applied.index} is another than the snapshot's"
            )
        self._adopt(snapshot, state)

    def _decoded(self, snapshot: Snapshot) -> BrokerState:
        try:
            return self._state.decode(snapshot.body)
        except MalformedStateError as error:
            raise CorruptFile("snapshots", f"of entry {snapshot.applied.index}: {error}") from error

    def _continues(self, place: Base) -> bool:
        """Whether the log has exactly the entry *place*, or begins after it."""
        if place.index < self._log.first_index - 1:
            return True
        return place.index <= self._log.last_index and self._log.chain(place.index) == place.chain

    def _restart(self, snapshot: Snapshot) -> None:
        base = snapshot.base
        logger.warning("the log restarts behind entry %d, as a snapshot asks", base.index)
        self._log.restart_behind(index=base.index, term=base.term, chain=base.chain)
        self._files.settle()

    def _adopt(self, snapshot: Snapshot, state: BrokerState) -> None:
        self._state.replace(state)
        self._covers(snapshot)
        logger.info(
            "state at entry %d from a snapshot; the log has [%d, %d]",
            self.index,
            self._log.first_index,
            self._log.last_index,
        )

    def _covers(self, snapshot: Snapshot) -> None:
        """Use a durable snapshot from now on."""
        self._covered = replace(snapshot, body=b"")
        self.index, self.first_index = snapshot.applied.index, snapshot.base.index + 1
        self._log.need_from(self.first_index)

    def memberships(self) -> list[tuple[int, Membership]]:
        """Return all known memberships of the log as (index, membership), oldest first.

        A snapshot has all of them, including those damaged in the log. But memberships that this
        log does not have yet, or has other entries in place of, are not in force here.
        """
        logged = self.logged_index
        known = {index: one for index, one in self._covered.memberships if index <= logged}
        return sorted({**known, **dict(self._log.memberships())}.items())

    @property
    def logged_index(self) -> int:
        """The newest entry of the log that the snapshot shows to be committed.

        That is the snapshot's own last entry, if the log has exactly that entry. If not, the log
        does not have it yet, or ends in uncommitted entries of a deposed leader; only the base is
        certain then.
        """
        applied, base = self._covered.applied, self._covered.base
        has_applied = applied.index <= self._log.last_index and self._continues(applied)
        return applied.index if has_applied else max(base.index, self._log.first_index - 1)

    @property
    def unfinished(self) -> int:
        """The number of consecutive snapshots during which this node died."""
        return self._files.unfinished

    @property
    def now_ms(self) -> int:
        """The log's time in the state, Unix milliseconds."""
        return self._state.now_ms

    # -- taking ----------------------------------------------------------------------------------

    async def take(self) -> int:
        """Write a snapshot of the state, unless one exists for it; return its last index.

        Raises:
            DiskFull: There is no space; the previous snapshot stays.
            StorageError: The disk failed.
        """
        async with self._busy:
            if self._applied_index() > self.index:
                await self._run_or_fail(self._files.begin)
                await self._take(self._describe(self._applied_index()))
            return self.index

    async def _take(self, snapshot: Snapshot) -> None:
        began_s = time.perf_counter()
        work = f"freeze the state at entry {snapshot.applied.index} for a snapshot"
        with self._watchdog.during(work, looks=snapshot_backoff.looks(self.unfinished)):
            frozen = self._state.freeze()
        frozen_s = time.perf_counter()
        size_bytes = await self._run_or_fail(self._save, snapshot, frozen)
        self._covers(snapshot)
        logger.info(
            "snapshot of entry %d: %d bytes, frozen in %.0f ms, durable after %.0f ms",
            self.index,
            size_bytes,
            (frozen_s - began_s) * 1000,
            (time.perf_counter() - began_s) * 1000,
        )

    async def _run_or_fail(self, work: Callable[..., _T], *arguments: object) -> _T:
        try:
            return await self._run(work, *arguments)
        except StorageError as error:
            self._on_error(error)
            raise

    def _describe(self, applied_index: int) -> Snapshot:
        base_index = max(self._state.first_index, self._log.first_index) - 1
        return Snapshot(
            group_id=self._group_id,
            applied=self._place(applied_index),
            base=self._place(base_index),
            memberships=tuple(pair for pair in self.memberships() if pair[0] <= applied_index),
            body=b"",
        )

    def _place(self, index: int) -> Base:
        return Base(index=index, term=self._log.term(index), chain=self._log.chain(index))

    def _save(self, snapshot: Snapshot, state: FrozenState) -> int:
        return self._files.save(snapshot, state.pieces(in_short_turns))

    def forget_before(self, index: int) -> None:
        """Drop the messages in entries below *index*, in the newest snapshot too. Blocks.

        For a stopped node: on running nodes a RETAIN command in the log does this.

        Raises:
            DiskFull: There is no room.
            StorageError: The disk failed.
        """
        self._state.forget_before(index)
        base = self._place(index - 1)
        snapshot = replace(self._covered, base=base)
        self._save(snapshot, self._state.freeze())
        self._covers(snapshot)

    # -- sending ---------------------------------------------------------------------------------

    @property
    def disk_bytes(self) -> int:
        """What the snapshots on the disk take, unfinished ones included."""
        return self._files.disk_bytes

    def newest(self) -> SnapshotInfo | None:
        """Return the newest snapshot; None while the log still has every entry."""
        found = self._files.newest
        return found if found is not None and found.last_index > 0 else None

    def read(self, info: SnapshotInfo, offset: int, max_bytes: int) -> bytes | None:
        """Return bytes from memory, or None and start reading them. Raises OffsetOutOfRange."""
        if not self._files.holds(info):
            raise OffsetOutOfRange(offset, first=0, last=-1)
        piece = self._pieces.get((info, offset))
        if piece is None:
            self._load_piece(info, offset, max_bytes)
        return piece

    def _load_piece(self, info: SnapshotInfo, offset: int, size: int) -> None:
        key = (info, offset)
        if key in self._loading:
            return
        self._loading.add(key)
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, self._files.read, info, offset, size)
        future.add_done_callback(lambda done: self._loaded(key, done))

    def _loaded(self, key: tuple[SnapshotInfo, int], done: asyncio.Future[bytes]) -> None:
        self._loading.discard(key)
        error = done.exception()
        if isinstance(error, StorageError):
            self._on_error(error)
            return
        if error is None:
            self._pieces[key] = done.result()
        while len(self._pieces) > _PIECES:
            self._pieces.popitem(last=False)
        self._on_loaded()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the newest snapshot's file, for a backup.

        Raises:
            Refused: There is no snapshot.
            OffsetOutOfRange: Newer snapshots replaced it meanwhile.
            StorageError: The disk cannot read it back.
        """
        info = self._files.newest
        if info is None:
            raise Refused("this node has taken no snapshot yet")
        for offset in range(0, info.size_bytes, _EXPORT_BYTES):
            yield await self._run(self._files.read, info, offset, _EXPORT_BYTES)

    # -- receiving -------------------------------------------------------------------------------

    @property
    def is_backlogged(self) -> bool:
        """Whether too many chunks wait to be written; the leader must resend further ones later."""
        return self._backlog_bytes > _MAX_BACKLOG_BYTES

    def receive(self, chunk: SnapshotChunk) -> None:
        """Store a chunk; without space for it, the snapshot is later found incomplete."""
        self._backlog_bytes += len(chunk.data)
        future = asyncio.get_running_loop().run_in_executor(
            self._thread, self._files.receive, chunk.info, chunk.offset, chunk.data
        )
        future.add_done_callback(lambda done: self._received(len(chunk.data), done))

    def _received(self, size_bytes: int, done: asyncio.Future[None]) -> None:
        self._backlog_bytes -= size_bytes
        error = done.exception()
        if isinstance(error, DiskFull):
            logger.error("disk full while receiving a snapshot: %s", error)
        elif error is not None:
            self._on_error(error)

    async def received(self, info: SnapshotInfo) -> Received | None:
        """Return the received snapshot if it is intact and of this group; else delete it.

        Raises:
            StorageError: The disk failed.
        """
        return await self._run(self._check, info)

    def _check(self, info: SnapshotInfo) -> Received | None:
        snapshot = self._files.received(info)
        try:
            if snapshot is not None and snapshot.group_id == self._group_id:
                return Received(info, snapshot, self._decoded(snapshot))
        except CorruptFile as error:
            logger.error("refusing the leader's snapshot: %s", error)
        self._files.discard()
        return None

    async def install(self, received: Received) -> Memberships:
        """Replace log and state by the received snapshot; return the memberships known then.

        A log that has exactly the snapshot's last entry stays as it is. If the log conflicts with
        the committed entry at the state's index, it is truncated before that.

        No log write may be in progress, and nothing may read the log until this returns.

        Raises:
            StorageError: The disk failed.
        """
        async with self._busy:
            await self._run(self._install, received)
            self._pieces.clear()
            self._adopt(received.snapshot, received.state)
            return self.memberships()

    def _install(self, received: Received) -> None:
        """Make the snapshot durable first, then restart the log after its base.

        Conflicting entries are removed before either: at start, a log that contradicts its
        snapshot is treated as damage.
        """
        snapshot = received.snapshot
        applied, is_kept = snapshot.applied, self._continues(snapshot.base)
        if is_kept and not self._continues(applied):
            self._log.cut_behind(applied.index - 1)
        self._files.install(received.info, snapshot)
        if not is_kept:
            self._restart(snapshot)

    async def _run(self, work: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
