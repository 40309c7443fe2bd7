"""What the store's tests share: entries, and a formatted disk in memory that can be crashed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

from crc32c import crc32c

from dledger.files.files import Files
from dledger.files.memory_files import MemoryFiles
from dledger.store.commit_log import CommitLog, Durability
from dledger.store.identity import Identity, join, load_or_format
from dledger.types import Entry, EntryKind

DATA = Path("/data")
LOG = DATA / "log"
GROUP = "6f1c7a52-0000-4000-8000-00000000beef"
NODE = "11111111-0000-4000-8000-000000000001"


def entry(
    index: int,
    term: int = 1,
    data: bytes | None = None,
    kind: EntryKind = EntryKind.DATA,
) -> Entry:
    """Return an entry whose data names it, unless given."""
    body = f"{term}:{index}".encode() if data is None else data
    return Entry(
        term=term,
        index=index,
        kind=kind,
        timestamp_ms=1_700_000_000_000 + index,
        crc32c=crc32c(body),
        data=body,
    )


def entries(first: int, last: int, term: int = 1, size: int | None = None) -> list[Entry]:
    """Return entries [first, last] of one term."""
    data = None if size is None else bytes(range(256)) * (size // 256) + bytes(size % 256)
    return [entry(index, term, data) for index in range(first, last + 1)]


def format_disk(files: Files, directory: Path = DATA, group: str = GROUP) -> Identity:
    """Format *directory* for the node NODE and let it join *group*."""
    identity = load_or_format(files, directory, "orders-0", new_id=lambda: NODE)
    return join(files, directory, identity, group)


class Disk:
    """A formatted disk in memory and its log."""

    def __init__(self, *, segment_bytes: int = 8192, durability: Durability = "sync") -> None:
        self.files = MemoryFiles()
        self.identity = format_disk(self.files)
        self.segment_bytes = segment_bytes
        self.durability: Durability = durability

    def open(self, files: Files | None = None) -> CommitLog:
        """Open the log, recovering it."""
        return CommitLog.open(
            files or self.files,
            LOG,
            identity=self.identity,
            segment_bytes=self.segment_bytes,
            reserve_bytes=0,
            durability=self.durability,
        )

    def with_entries(self, batch: Iterable[Entry], *, sync: bool = True) -> CommitLog:
        """Open the log and append a batch to it."""
        log = self.open()
        log.append(list(batch))
        if sync:
            log.sync()
        return log

    def crash(self, seed: int = 0) -> CommitLog:
        """Cut the power and open the log again."""
        self.files.crash(Random(seed))
        return self.open()

    def names(self, suffix: str = "") -> list[str]:
        """Return the names in the log directory that end in *suffix*."""
        return [name for name in self.files.list(LOG) if name.endswith(suffix)]

    def contents(self, name: str) -> bytearray:
        """Return the bytes of a file of the log, to look at or to rot."""
        return self.files.contents(LOG / name)


def everything(log: CommitLog) -> list[Entry]:
    """Return all entries, read back from disk."""
    found: list[Entry] = []
    while len(found) < log.last_index:
        found += log.read(len(found) + 1, log.last_index, 1 << 20)
    return found
