"""Compacted messages in the store: Parquet objects and a manifest of their own, written last.

::

    <store url>/<group id>/compacted/
        <last>-<topics>.json                            which objects, of which backup
        <last>-<topics>/<first>-<last>-<sha256>.parquet messages of entries [first, last] that stay

*last* is the last index of the backup that was compacted, *topics* the beginning of a hash of the
topics' names. A compaction does not change its backup. A rerun finds what it would write; where it
writes something else, since the backup was cut anew, lost its oldest entries or got a key, its
manifest replaces the one before, and objects that no manifest names are left to `gc`. Used by the
jobs `compact`, `sign` and `gc`, and by the data source.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
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
    resign,
    row_of,
)
from dledger_pipeline.archive.parquet_sizes import inflated_bytes
from dledger_pipeline.archive.selection import Bounds, MayHold, anything
from dledger_pipeline.errors import (
    AlreadyExists,
    CorruptManifest,
    CorruptObject,
    NoBackup,
    ObjectMissing,
    VersionConflict,
)
from dledger_pipeline.log.messages import MESSAGE_SCHEMA
from dledger_pipeline.object_store.store import Store

FOLDER: Final = "compacted"
_MANIFEST: Final = re.compile(rf"/{FOLDER}/\d{{20}}-([0-9a-f]{{16}})\.json$")
_ATTEMPTS: Final = 5
"""To write a manifest that others write, too, or that `gc` deletes at the same time."""
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
    """Write the manifest, which makes the compaction visible, in place of one of the same name.

    Raises:
        ObjectMissing, CorruptObject: One of its objects is not there any more, or not as it was.
        VersionConflict: Others wrote it all the time.
        StoreError: It could not be written.
    """
    _check_present(store, compaction)
    name = f"{compaction.group_id}/{compaction.name}"
    data = encode_hashed(asdict(compaction), store.manifest_key)
    for _ in range(_ATTEMPTS):
        try:
            try:
                store.create(name, data)
            except AlreadyExists:
                store.replace(name, data, _version(store, name))
        except (ObjectMissing, VersionConflict):
            continue  # another run wrote it, or gc deleted it, meanwhile
        return
    raise VersionConflict(name)


def _version(store: Store, name: str) -> str:
    return store.get_versioned(name, max_bytes=MAX_JSON_BYTES).version


def _check_present(store: Store, compaction: Compaction) -> None:
    listed = store.listed(f"{compaction.group_id}/{compaction.folder}")
    sizes = {each.name: each.size_bytes for each in listed}
    for file in compaction.files:
        name = f"{compaction.group_id}/{file.name}"
        if name not in sizes:
            raise ObjectMissing(name)
        if sizes[name] != file.object_bytes:
            raise CorruptObject(name, f"it has {sizes[name]} of {file.object_bytes} bytes")


def load(store: Store, group_id: str, topics: Collection[str]) -> Compaction:
    """Return the newest compaction of just these *topics*.

    Raises:
        NoBackup: There is none.
        CorruptManifest, NotSigned: Its manifest is damaged, or not ours.
    """
    name = newest(store.list(f"{group_id}/{FOLDER}")).get(_digest(topics))
    if name is None:
        raise NoBackup(
            f"group {group_id} has no compaction of the topics {', '.join(sorted(topics))}; "
            "`dledger-pipeline compact` makes one"
        )
    return read(store, name)


def topics_hash(name: str) -> str:
    """Return the hash of the topics in a compaction manifest's name; "" if it is no such name."""
    match = _MANIFEST.search(name)
    return match[1] if match else ""


def newest(names: Iterable[str]) -> dict[str, str]:
    """Return the manifest of the newest compaction by its topics' hash, out of names ascending."""
    return {found: name for name in names if (found := topics_hash(name))}


def read(store: Store, name: str) -> Compaction:
    """Return the compaction whose manifest is *name*. Raises like `load`."""
    content = decode_hashed(name, store.get(name, max_bytes=MAX_JSON_BYTES), store.manifest_key)
    return _decode(content, name)


def sign(store: Store, group_id: str) -> int:
    """Sign the newest compaction of each choice of topics, all of whose objects are read first.

    Returns:
        How many.

    Raises:
        ObjectMissing, CorruptObject, CorruptManifest: One is not whole, and was not signed.
        StoreError: The store failed.
    """
    plain = store.trusted()
    names = newest(store.list(f"{group_id}/{FOLDER}")).values()
    for name in names:
        for file in read(plain, name).files:
            for _ in CompactedRange(store=plain, group_id=group_id, file=file).read():
                pass
        resign(store, name)
    return len(names)


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
