"""State shared by the threads of an open commit log: its metadata, its files, and the two locks.

`CommitLog` changes it; `LogReader` and `LogScrubber` read it. `lock` guards the metadata and is
never held during I/O, so that the event loop may take it; `writing` serialises the writers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dledger.errors import StorageError
from dledger.store.identity import Identity
from dledger.store.log_index import LogIndex
from dledger.store.recent import RecentEntries
from dledger.store.segment_files import SegmentFiles
from dledger.store.watermark import Watermark

_log = logging.getLogger(__name__)


class LogState:
    """The state of one open log.

    Attributes:
        synced_index: The newest entry known to be synced.
        rows_index: The newest entry whose identity row is durable in the watermark file.
        truncations: How often the log was truncated.
        failure: Why the log accepts no more calls, once a write or sync has failed.
        needed_from: The first entry that no durable snapshot covers.
    """

    def __init__(
        self,
        disk: SegmentFiles,
        watermark: Watermark,
        index: LogIndex,
        recent: RecentEntries,
        *,
        identity: Identity,
        rows_index: int,
    ) -> None:
        self.disk, self.watermark = disk, watermark
        self.index, self.recent, self.identity = index, recent, identity
        self.synced_index, self.rows_index = index.last_index, rows_index
        self.truncations = self.needed_from = 0
        self.failure: str | None = None
        self.writing, self.lock = threading.Lock(), threading.Lock()

    def check_usable(self) -> None:
        """Raise StorageError if the log has failed."""
        if self.failure:
            raise StorageError(f"the log has failed: {self.failure}")

    @contextmanager
    def poisoning(self) -> Iterator[None]:
        """Turn a failed write or sync into a permanent failure of the log.

        After a failed fsync Linux may mark dirty pages clean, so a later sync that succeeds proves
        nothing: the disk's contents are unknown until the log is recovered (`recovery.repair`).
        """
        try:
            yield
        except OSError as error:
            self.failure = self.failure or str(error)
            _log.error("log of node %s failed: %s", self.identity.node_id, error)
            raise StorageError(f"the log has failed: {error}") from error

    def mark_faulty(self, first: int, last: int, reason: str) -> None:
        """Mark the records of [first, last] that are still in the log as damaged."""
        with self.lock:
            first, last = max(first, self.index.first_index), min(last, self.index.last_index)
            if first <= last:
                self.index.faulty.add(first, last)
                _log.error("rot: entries [%d, %d]: %s", first, last, reason)
