"""Writes into the logs of a group that stands still, as a door of another version would have.

What no door lets in any more lies in logs that were written before; this is how a run has such.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from crc32c import crc32c

from dledger.files.files import RealFiles
from dledger.store.commit_log import CommitLog
from dledger.store.identity import LOG_DIRECTORY, load_identity
from dledger.types import Entry, EntryKind

_READ_BYTES: Final = 64 << 20


def write(data: Path, commands: Sequence[bytes]) -> None:
    """Append *commands*, an entry each, to the log of every node below *data*.

    All nodes have stopped. Who lacks the end of the longest log gets that first: so the entries are
    the same everywhere, and committed as soon as somebody leads.
    """
    logs = [_open(each.parent) for each in sorted(data.glob(f"*/{LOG_DIRECTORY}"))]
    assert logs, f"no logs below {data}"
    longest = max(logs, key=lambda log: log.last_index)
    last, term = longest.last_index, longest.term(longest.last_index)
    entries = [_entry(term, last + n, command) for n, command in enumerate(commands, 1)]
    for log in logs:
        while log.last_index < last:
            log.append(longest.read(log.last_index + 1, last, _READ_BYTES))
    for log in logs:
        log.append(entries)
        log.sync()
        log.close()


def _open(directory: Path) -> CommitLog:
    files = RealFiles()
    identity = load_identity(files, directory)
    assert identity is not None, directory
    return CommitLog.open(files, directory / LOG_DIRECTORY, identity=identity)


def _entry(term: int, index: int, data: bytes) -> Entry:
    return Entry(
        term=term,
        index=index,
        kind=EntryKind.DATA,
        timestamp_ms=time.time_ns() // 1_000_000,
        crc32c=crc32c(data),
        data=data,
    )
