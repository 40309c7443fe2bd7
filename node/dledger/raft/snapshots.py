"""A node's own snapshots as the core sees them: names, offsets and bytes.

What a snapshot holds and how it is stored is the caller's. Source: Raft 7.
"""

from __future__ import annotations

from typing import Protocol

from dledger.types import SnapshotInfo


class SnapshotReader(Protocol):
    """The node's own snapshots."""

    def newest(self) -> SnapshotInfo | None:
        """Return the newest complete snapshot, if there is one."""
        ...

    def read(self, info: SnapshotInfo, offset: int, max_bytes: int) -> bytes | None:
        """Return bytes from *offset*, which is below its size: at least one, cut at *max_bytes*.

        None: not in memory now; the caller of the core fetches them and then calls
        `Raft.entries_available`.

        Raises:
            OffsetOutOfRange: The snapshot has been deleted; a newer one is sent instead.
        """
        ...
