"""Compacted messages in the store: Parquet objects and a manifest of their own, written last.

::

    <store url>/<group id>/compacted/
        <last>-<topics>.json                            which objects, of which backup
        <last>-<topics>/<first>-<last>-<sha256>.parquet messages of entries [first, last] that stay

*last* is the last index of the backup that was compacted, *topics* the beginning of a hash of the
topics' names. A backup is never changed by its compaction. Contents depend on the log and the
topics only, so that a rerun finds what it would write.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from dledger_pipeline.errors import AlreadyExists, CorruptManifest, CorruptObject, NoBackup
from dledger_pipeline.messages import MESSAGE_SCHEMA
from dledger_pipeline.store import Store

FORMAT_VERSION: Final = 1
FOLDER: Final = "compacted"
_ROW_GROUP_ROWS: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedFile:
    """The messages that stay of the entries [first_index, last_index].

    Attributes:
        name: The object, relative to the group's folder.
        messages: How many stay.
        dropped: How many newer ones took the place of.
    """

    name: str
    first_index: int
    last_index: int
    messages: int
    dropped: int
    object_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """All messages of a backup, of *topics* only the newest for each key.

    Attributes:
        last_index: The last entry of the backup.
        topics: Sorted.
        files: Ascending; ranges without messages have none.
    """

    group_id: str
    last_index: int
    topics: tuple[str, ...]
    files: tuple[CompactedFile, ...] = ()

    @property
    def folder(self) -> str:
        """Where its objects are, within the group's folder."""
        return f"{FOLDER}/{self.last_index:020}-{_digest(self.topics)}"

    @property
    def name(self) -> str:
        """The manifest's name within the group's folder."""
        return f"{self.folder}.json"

    @property
    def messages(self) -> int:
        """How many messages stay."""
        return sum(file.messages for file in self.files)

    @property
    def dropped(self) -> int:
        """How many do not."""
        return sum(file.dropped for file in self.files)

    def encode(self) -> bytes:
        """Return the manifest's bytes: canonical JSON."""
        return json.dumps({"format": FORMAT_VERSION} | asdict(self), sort_keys=True).encode()


def _digest(topics: Collection[str]) -> str:
    return sha256("\n".join(sorted(topics)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedRange:
    """Compacted messages in the store: one object. Pickles."""

    store: Store
    group_id: str
    file: CompactedFile

    @property
    def last_index(self) -> int:
        """The last entry that it was made of."""
        return self.file.last_index

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield messages (`MESSAGE_SCHEMA`); raises ObjectMissing, CorruptObject, StoreError."""
        name = f"{self.group_id}/{self.file.name}"
        data = self.store.get(name)
        if sha256(data).hexdigest() != self.file.sha256:
            raise CorruptObject(name, "it does not have the SHA-256 that its manifest states")
        yield from pq.read_table(pa.BufferReader(data)).cast(MESSAGE_SCHEMA).to_batches()


def write(
    store: Store, compaction: Compaction, messages: pa.Table, *, dropped: int, span: tuple[int, int]
) -> CompactedFile:
    """Write the *messages* that stay of the entries [*span*] as one object of *compaction*.

    Raises:
        CorruptObject: An object of that name is there and has other bytes.
        StoreError: It could not be written.
    """
    data = _parquet(messages)
    digest = sha256(data).hexdigest()
    first, last = span
    name = f"{compaction.folder}/{first:020}-{last:020}-{digest}.parquet"
    _create_once(store, f"{compaction.group_id}/{name}", data)
    return CompactedFile(
        name=name,
        first_index=first,
        last_index=last,
        messages=messages.num_rows,
        dropped=dropped,
        object_bytes=data.size,
        sha256=digest,
    )


def _parquet(messages: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(
        messages.combine_chunks(), sink, compression="zstd", row_group_size=_ROW_GROUP_ROWS
    )
    return sink.getvalue()


def _create_once(store: Store, name: str, data: pa.Buffer | bytes) -> None:
    try:
        store.create(name, data)
    except AlreadyExists:
        if not store.get(name).equals(pa.py_buffer(data)):
            raise CorruptObject(name, "it is there already, with other bytes") from None


def publish(store: Store, compaction: Compaction) -> None:
    """Write the manifest, which makes the compaction visible.

    Raises:
        CorruptObject: There is another one of the same backup and topics.
        StoreError: It could not be written.
    """
    _create_once(store, f"{compaction.group_id}/{compaction.name}", compaction.encode())


def load(store: Store, group_id: str, topics: Collection[str]) -> Compaction:
    """Return the newest compaction of just these *topics*.

    Raises:
        NoBackup: There is none.
        CorruptManifest: Its manifest is damaged.
    """
    ending = f"-{_digest(topics)}.json"
    found = [name for name in store.list(f"{group_id}/{FOLDER}") if name.endswith(ending)]
    if not found:
        raise NoBackup(
            f"group {group_id} has no compaction of the topics {', '.join(sorted(topics))}; "
            "`dledger-pipeline compact` makes one"
        )
    return _decode(store.get(found[-1]).to_pybytes(), found[-1])


def _decode(data: bytes, name: str) -> Compaction:
    try:
        fields = json.loads(data)
        if fields.pop("format") != FORMAT_VERSION:
            raise ValueError("its format is not known")
        files = tuple(CompactedFile(**file) for file in fields.pop("files"))
        return Compaction(**fields | {"topics": tuple(fields["topics"]), "files": files})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptManifest(name, str(error)) from error
