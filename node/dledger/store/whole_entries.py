"""What a log can give to one whose own is damaged: entries that are whole."""

from __future__ import annotations

from dledger.errors import FaultyEntry, OffsetOutOfRange, StorageError
from dledger.store.commit_log import CommitLog
from dledger.types import Entry


def whole_entries(log: CommitLog, first: int, last: int, max_bytes: int) -> tuple[Entry, ...]:
    """Return what the log can give of [first, last], from the first whole entry on."""
    first, last = max(first, log.first_index), min(last, log.last_index)
    for damaged in log.faulty:
        if first in damaged:
            first = damaged.stop
    if first > last:
        return ()
    try:
        return log.read(first, last, max_bytes)
    except (FaultyEntry, OffsetOutOfRange, StorageError):
        return ()
