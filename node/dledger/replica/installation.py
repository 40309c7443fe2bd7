"""Taking in the snapshot that a leader sends in place of entries: duty 8 of `Ready`.

Owned by the driver. The pieces are written aside as they come. When all are there, the running
writes end first, that of the hard state too: after a restart no leader of an earlier term may
append where the snapshot says what is committed. Then it is checked, and replaces log and state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dledger.errors import StorageError
from dledger.raft.ready import Ready
from dledger.replica.persistence import Persister
from dledger.replica.snapshots import Memberships, Snapshots
from dledger.types import SnapshotInfo

logger = logging.getLogger(__name__)


class Installation:
    """One node's installations, one after the other.

    Args:
        finished: Called with the memberships of an installed snapshot; None: it was not usable.
        failed: Called when the disk failed.

    Attributes:
        replaces_log: While it is set nobody may ask the log anything, and the core does not step:
            messages are lost, which is no harm, for the few writes that it takes.
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
        self.replaces_log = False

    def take(self, ready: Ready) -> None:
        """Keep the pieces; begin to install when they are complete."""
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
            logger.error("the snapshot behind entry %d arrived damaged", info.last_index)
            return None
        self.replaces_log = True
        try:
            return await self._snapshots.install(received)
        finally:
            self.replaces_log = False

    async def close(self) -> None:
        """Let a running installation end."""
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._snapshots.close()
