"""Compacted messages in the store: Parquet objects and a manifest of their own, written last.

::

    <store url>/<group id>/compacted/
        <last>-<topics>.json                            which objects, of which backup
        <last>-<topics>/<first>-<last>-<sha256>.parquet messages of entries [first, last] that stay

*last* is the last index of the backup that was compacted, *topics* the beginning of a hash of the
topics' names. A compaction does not change its backup. Contents depend on the log and the topics
only, so that a rerun finds what it would write. Used by the compaction job and the data source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from dledger_pipeline.archive.archive import create_once, read_object
from dledger_pipeline.archive.hashed_json import (
    MAX_JSON_BYTES,
    decode_hashed,
    encode_hashed,
    field,
    row_of,
)
from dledger_pipeline.archive.parquet_sizes import inflated_bytes
from dledger_pipeline.archive.selection import Bounds, MayHold, anything
from dledger_pipeline.errors import CorruptManifest, NoBackup
from dledger_pipeline.log.messages import MESSAGE_SCHEMA
from dledger_pipeline.object_store.store import Store

FOLDER: Final = "compacted"
_ROW_GROUP_ROWS: Final = 1 << 16
"""Some 64 MiB of messages of 1 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedFile:
    """The messages that stay of the entries [first_index, last_index].

    Attributes:
        name: The object, relative to the group's folder.
        messages: How many stay.
        dropped: How many were replaced by newer ones.
        inflated_bytes: What the object's pages take, their headers included.
    """

    name: str
    first_index: int
    last_index: int
    messages: int
    dropped: int
    object_bytes: int
    inflated_bytes: int
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
        """How many messages do not stay."""
        return sum(file.dropped for file in self.files)


def _digest(topics: Collection[str]) -> str:
    return sha256("\n".join(sorted(topics)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedRange:
    """Compacted messages in the store: one object. Pickles."""

    store: Store
    group_id: str
    file: CompactedFile

    @property
    def bounds(self) -> Bounds:
        """The indexes, as the manifest states them."""
        return {"index": (self.file.first_index, self.file.last_index)}

    def read(
        self, may_hold: MayHold = anything, columns: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield messages (`MESSAGE_SCHEMA`, or *columns* of it), without row groups of no use.

        Raises:
            ObjectMissing, CorruptObject, StoreError: The object cannot be read.
        """
        file = self.file
        yield from read_object(
            self.store,
            f"{self.group_id}/{file.name}",
            object_bytes=file.object_bytes,
            sha256=file.sha256,
            schema=MESSAGE_SCHEMA,
            rows=file.messages,
            inflated_bytes=file.inflated_bytes,
            may_hold=may_hold,
            columns=columns,
        ).to_batches()


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
    create_once(store, f"{compaction.group_id}/{name}", data)
    return CompactedFile(
        name=name,
        first_index=first,
        last_index=last,
        messages=messages.num_rows,
        dropped=dropped,
        object_bytes=data.size,
        inflated_bytes=inflated_bytes(data),
        sha256=digest,
    )


def _parquet(messages: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(
        messages.combine_chunks(),
        sink,
        compression="zstd",
        use_dictionary=False,  # `parquet_sizes` lets none through
        row_group_size=_ROW_GROUP_ROWS,
    )
    return sink.getvalue()


def publish(store: Store, compaction: Compaction) -> None:
    """Write the manifest, which makes the compaction visible.

    Raises:
        CorruptObject: There is another one of the same backup and topics.
        StoreError: It could not be written.
    """
    data = encode_hashed(asdict(compaction), store.manifest_key)
    create_once(store, f"{compaction.group_id}/{compaction.name}", data)


def load(store: Store, group_id: str, topics: Collection[str]) -> Compaction:
    """Return the newest compaction of just these *topics*.

    Raises:
        NoBackup: There is none.
        CorruptManifest, NotSigned: Its manifest is damaged, or not ours.
    """
    ending = f"-{_digest(topics)}.json"
    found = [name for name in store.list(f"{group_id}/{FOLDER}") if name.endswith(ending)]
    if not found:
        raise NoBackup(
            f"group {group_id} has no compaction of the topics {', '.join(sorted(topics))}; "
            "`dledger-pipeline compact` makes one"
        )
    name = found[-1]
    content = decode_hashed(name, store.get(name, max_bytes=MAX_JSON_BYTES), store.manifest_key)
    return _decode(content, name)


def _decode(content: dict[str, Any], name: str) -> Compaction:
    topics = field(name, content, "topics", list)
    if not all(isinstance(topic, str) and _is_text(topic) for topic in topics):
        raise CorruptManifest(name, f"topics is {topics!r:.80}")
    return Compaction(
        group_id=field(name, content, "group_id", str),
        last_index=field(name, content, "last_index", int),
        topics=tuple(topics),
        files=tuple(
            row_of(CompactedFile, name, row) for row in field(name, content, "files", list)
        ),
    )


def _is_text(topic: str) -> bool:
    """Whether it can be encoded: JSON may have half of a surrogate pair."""
    try:
        topic.encode()
    except UnicodeEncodeError:
        return False
    return True
