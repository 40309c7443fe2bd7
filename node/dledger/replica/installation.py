"""Installs the snapshot that a leader sends in place of entries: duty 8 of `Ready`.

Owned by the driver. Chunks are written to a temporary file as they arrive. Once the snapshot is
complete, running writes finish first, including the hard state: after a restart no leader of an
earlier term may append where the snapshot has committed entries. Then the snapshot is checked and
replaces the log and the state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from dledger.errors import DiskFull, StorageError
from dledger.raft.ready import Ready
from dledger.replica.persistence import Persister
from dledger.replica.snapshots import Memberships, Snapshots
from dledger.types import SnapshotInfo

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.5


class Installation:
    """The snapshot installations of one node, one at a time.

    Args:
        finished: Called with the memberships of the installed snapshot; None if it was unusable.
        failed: Called when the disk fails.

    Attributes:
        replaces_log: While set, nothing may read the log and the core does not step. Messages that
            arrive during these few writes are lost, which Raft tolerates.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        disk: Persister,
        *,
        finished: Callable[[SnapshotInfo, Memberships | None], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._snapshots = snapshots
        self._persister = disk
        self._finished = finished
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self.replaces_log = self._closing = False

    def take(self, ready: Ready) -> None:
        """Store the chunks; start the installation when they are complete."""
        for chunk in ready.chunks:
            self._snapshots.receive(chunk)
        if ready.install is not None:
            self._task = asyncio.get_running_loop().create_task(self._install(ready.install))

    async def _install(self, info: SnapshotInfo) -> None:
        try:
            if not await self._persister.drained():
                return
            memberships = await self._replace(info)
        except StorageError as error:
            self._failed(error)
            return
        self._finished(info, memberships)

    async def _replace(self, info: SnapshotInfo) -> Memberships | None:
        received = await self._snapshots.received(info)
        if received is None:
            logger.error("the snapshot at entry %d arrived damaged", info.last_index)
            return None
        self.replaces_log = True
        try:
            while not self._closing:
                try:
                    return await self._snapshots.install(received)
                except DiskFull as error:
                    logger.error("disk full while installing a snapshot: %s", error)
                    await asyncio.sleep(_RETRY_S)
            return None
        finally:
            self.replaces_log = False

    async def close(self) -> None:
        """Wait for a running installation to finish, or for one that waits for room to give up."""
        self._closing = True
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._snapshots.close()
