"""Logs for tests: entries, and data directories that the shipped store wrote."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from crc32c import crc32c

from dledger.store.commit_log import CommitLog
from dledger.store.files import RealFiles
from dledger.store.identity import LOG_DIRECTORY, join, load_or_format
from dledger.types import Entry, EntryKind

GROUP_ID = "6b1f3d1e-0c1c-4d57-9a3c-3a8f0a3f1c11"
SEGMENT_BYTES = 16 << 10


def entry(index: int, *, term: int = 1, data: bytes = b"", timestamp_ms: int = 0) -> Entry:
    """Return a DATA entry, or a no-op if it has no data."""
    return Entry(
        term=term,
        index=index,
        kind=EntryKind.DATA if data else EntryKind.NOOP,
        timestamp_ms=timestamp_ms,
        crc32c=crc32c(data),
        data=data,
    )


def entries(count: int, *, seed: int = 1, max_body: int = 600) -> list[Entry]:
    """Return entries from 1 on; a term of twenty each begins with a no-op; 10 ms between two."""
    rng = random.Random(seed)
    return [
        entry(
            index,
            term=1 + index // 20,
            data=b"" if index % 20 == 0 else rng.randbytes(rng.randint(1, max_body)),
            timestamp_ms=0 if index % 20 == 0 else 10 * index,
        )
        for index in range(1, count + 1)
    ]


def data_directory(
    directory: Path,
    log_entries: Sequence[Entry] | Iterable[Entry],
    *,
    group_id: str = GROUP_ID,
    segment_bytes: int = SEGMENT_BYTES,
) -> Path:
    """Write a node's data directory with the shipped store, synced and closed; return it."""
    files = RealFiles()
    identity = join(files, directory, load_or_format(files, directory, "orders/orders-0"), group_id)
    log = CommitLog.open(
        files,
        directory / LOG_DIRECTORY,
        identity=identity,
        segment_bytes=segment_bytes,
        reserve_bytes=0,
    )
    log.append(list(log_entries))
    log.sync()
    log.close()
    return directory
