"""Which objects make a backup: the manifest, written last, and HEAD, moved to it at the end.

::

    <store url>/<group id>/
        data/<first>-<last>-<sha256>.parquet   entries, 20 digits an index
        manifests/<last>.json                  a whole backup of entries up to <last>
        HEAD                                   which manifest counts; moved by compare-and-swap

A backup exists once HEAD names it or a later one. Objects that no manifest names were left by a run
that was killed. Contents depend on the log only: no clock, no host names. Manifest and HEAD are
`hashed_json`. Used by all jobs and the data source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

from dledger_pipeline.archive.archive import ManifestRow, object_name
from dledger_pipeline.archive.hashed_json import (
    MAX_JSON_BYTES,
    Signature,
    decode_hashed,
    encode_hashed,
    field,
    row_of,
    signature_of,
)
from dledger_pipeline.errors import (
    AlreadyExists,
    BrokenBackup,
    CorruptManifest,
    CorruptObject,
    ForeignManifest,
    NoBackup,
    ObjectMissing,
    VersionConflict,
)
from dledger_pipeline.object_store.store import Store

_HEAD: Final = "HEAD"
_MAX_HEAD_BYTES: Final = 1 << 16
"""Two fields, a hash and a signature take some 300 bytes."""
_MAX_CRC: Final = (1 << 32) - 1
_ATTEMPTS: Final = 100
"""To move HEAD: each failure means that another run moved it, so more is a fault of the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A backup of entries [first_index, last_index] of one group.

    Attributes:
        group: The BrokerGroup's name.
        group_id: The group's UUID.
        files: The ranges, ascending, without gap; at least one.
    """

    group: str
    group_id: str
    files: tuple[ManifestRow, ...]

    def __post_init__(self) -> None:
        """Refuse a manifest without files, which has no first and last index."""
        if not self.files:
            raise ValueError("a manifest has at least one file")

    @property
    def name(self) -> str:
        """The object's name within the group's folder."""
        return manifest_name(self.last_index)

    @property
    def first_index(self) -> int:
        """The first entry of the backup."""
        return self.files[0].first_index

    @property
    def last_index(self) -> int:
        """The last entry of the backup."""
        return self.files[-1].last_index

    @property
    def last_chain(self) -> int:
        """The chain CRC of the last entry's record, which the next backup continues."""
        return self.files[-1].last_chain

    @property
    def term(self) -> int:
        """The term of the last entry."""
        return self.files[-1].last_term

    @property
    def last_timestamp_ms(self) -> int:
        """The highest timestamp of any entry, Unix milliseconds; 0 if none has one."""
        return max(row.last_timestamp_ms for row in self.files)

    @property
    def records(self) -> int:
        """The number of entries."""
        return sum(row.records for row in self.files)

    @property
    def record_bytes(self) -> int:
        """What the entries take in segments, headers and padding included."""
        return sum(row.record_bytes for row in self.files)

    @property
    def object_bytes(self) -> int:
        """What the objects take in the store."""
        return sum(row.object_bytes for row in self.files)


def manifest_name(last_index: int) -> str:
    """Return the name, within the group's folder, of the manifest that ends with *last_index*."""
    return f"manifests/{last_index:020}.json"


def publish(store: Store, manifest: Manifest) -> Manifest:
    """Make *manifest* the group's newest backup, after checking that it is whole.

    Its ranges must join by index and chain, and its objects exist. If another run has published the
    same log up to the same index, that manifest is kept. HEAD never moves backwards.

    Returns:
        The manifest that is in the store.

    Raises:
        BrokenBackup: Ranges do not join, or are not the log of the backup before; names the file.
        ObjectMissing, CorruptObject: A file is not there, or not as long as it was. Nothing was
            published.
        CorruptManifest, ForeignManifest: What was published before is.
        StoreError: The store failed.
    """
    _check_joins(manifest)
    before = newest(store, manifest.group_id)
    if before is not None:
        _check_same_history(manifest, before)
    _check_present(store, manifest, before)
    published = _create(store, manifest)
    _advance_head(store, published)
    return published


def load(store: Store, group_id: str | None = None, at: int | None = None) -> Manifest:
    """Return a published backup.

    Args:
        store: The store's root.
        group_id: Whose; None if the store holds one group only.
        at: The last index of an earlier backup; None: the newest, that of HEAD.

    Raises:
        NoBackup: There is none, or it takes a *group_id* to say which.
        CorruptManifest: It is damaged.
        ForeignManifest: It belongs to another group.
        ObjectMissing: HEAD names a manifest that is not there, or there is none for *at*.
        StoreError: The store failed.
    """
    group_id = _only_group(store) if group_id is None else group_id
    if at is not None:
        return _read(store, group_id, at)
    manifest = newest(store, group_id)
    if manifest is None:
        raise NoBackup(f"no backup of group {group_id} was published in {store.url}")
    return manifest


def signature(store: Store, manifest: Manifest) -> Signature:
    """Return whether a loaded manifest is signed. Raises like `load`."""
    name = f"{manifest.group_id}/{manifest.name}"
    data = store.get(name, max_bytes=MAX_JSON_BYTES)
    return signature_of(name, data, store.manifest_key)


def sign(store: Store, group_id: str, last_index: int) -> None:
    """Sign the manifest that ends with *last_index*, and HEAD, which may have no signature so far.

    Whatever is in the store now becomes trusted, so verify it first.

    Raises:
        StoreError: The store failed.
        CorruptManifest, ObjectMissing: They are damaged, or not there.
    """
    for name in (f"{group_id}/{manifest_name(last_index)}", f"{group_id}/{_HEAD}"):
        stored = store.get_versioned(name, max_bytes=MAX_JSON_BYTES)
        store.replace(
            name,
            encode_hashed(decode_hashed(name, stored.data), store.manifest_key),
            stored.version,
        )


def newest(store: Store, group_id: str) -> Manifest | None:
    """Return the newest backup of the group, the base of an incremental one; None if none.

    Raises:
        CorruptManifest, ForeignManifest, ObjectMissing, StoreError: Like `load`.
    """
    head = _read_head(store, group_id)
    return None if head is None else _read(store, group_id, head[0])


def _only_group(store: Store) -> str:
    groups = [name.split("/")[0] for name in store.list() if name.endswith(f"/{_HEAD}")]
    if not groups:
        raise NoBackup(
            f"no backup was published in {store.url}: is that the store that --store should name?"
        )
    if len(groups) > 1:
        raise NoBackup(
            f"{store.url} holds backups of {len(groups)} groups; give the group id of one: "
            f"{', '.join(groups)}"
        )
    return groups[0]


def _check_joins(manifest: Manifest) -> None:
    for row in manifest.files:
        if row.records != row.last_index - row.first_index + 1 or row.records < 1:
            raise BrokenBackup(row.name, f"it states {row.records} entries")
    for before, row in pairwise(manifest.files):
        if row.first_index != before.last_index + 1:
            raise BrokenBackup(row.name, f"expected entry {before.last_index + 1} first")
        if row.first_chain != before.last_chain:
            raise BrokenBackup(
                row.name,
                f"it follows chain CRC {row.first_chain:#010x}, "
                f"the backup has {before.last_chain:#010x}",
            )


def _check_same_history(manifest: Manifest, before: Manifest) -> None:
    """Refuse a manifest that has another chain CRC than *before* at the same index."""
    known = {row.last_index: row.last_chain for row in before.files}
    for row in manifest.files:
        chain = known.get(row.last_index, row.last_chain)
        if chain != row.last_chain:
            raise BrokenBackup(
                row.name,
                f"entry {row.last_index} has chain CRC {row.last_chain:#010x}, "
                f"in the backup before it has {chain:#010x}: another history of the group",
            )


def _check_present(store: Store, manifest: Manifest, before: Manifest | None) -> None:
    known = set(before.files) if before else set()
    for row in manifest.files:
        if row not in known:
            name = f"{manifest.group_id}/{row.name}"
            size = store.size(name)
            if size != row.object_bytes:
                raise CorruptObject(name, f"it has {size} of {row.object_bytes} bytes")


def _create(store: Store, manifest: Manifest) -> Manifest:
    """Write the manifest, unless there is one of the same log; return the one that is there."""
    name = f"{manifest.group_id}/{manifest.name}"
    try:
        store.create(name, _encode(manifest, store.manifest_key))
    except AlreadyExists:
        existing = _read(store, manifest.group_id, manifest.last_index)
        if (existing.first_index, existing.last_chain) != (
            manifest.first_index,
            manifest.last_chain,
        ):
            raise BrokenBackup(name, "it exists already, with another history") from None
        return existing
    return manifest


def _advance_head(store: Store, manifest: Manifest) -> None:
    name = f"{manifest.group_id}/{_HEAD}"
    data = encode_hashed(
        {
            "group_id": manifest.group_id,
            "last_index": manifest.last_index,
        },
        store.manifest_key,
    )
    for _ in range(_ATTEMPTS):
        head = _read_head(store, manifest.group_id)
        try:
            if head is None:
                store.create(name, data)
            elif head[0] < manifest.last_index:
                store.replace(name, data, head[1])
            return
        except (AlreadyExists, VersionConflict):
            continue  # another run moved it; read where it is now
    raise VersionConflict(name)


def _read_head(store: Store, group_id: str) -> tuple[int, str] | None:
    """Return the last index that HEAD names, and HEAD's version; None if there is no HEAD."""
    name = f"{group_id}/{_HEAD}"
    try:
        stored = store.get_versioned(name, max_bytes=_MAX_HEAD_BYTES)
    except ObjectMissing:
        return None
    content = decode_hashed(name, stored.data, store.manifest_key)
    _check_group(name, group_id, content)
    return field(name, content, "last_index", int), stored.version


def _read(store: Store, group_id: str, last_index: int) -> Manifest:
    name = f"{group_id}/{manifest_name(last_index)}"
    data = store.get(name, max_bytes=MAX_JSON_BYTES)
    content = decode_hashed(name, data, store.manifest_key)
    _check_group(name, group_id, content)
    rows = tuple(_row(name, row) for row in field(name, content, "files", list))
    if not rows or rows[-1].last_index != last_index:
        raise CorruptManifest(name, "its files do not end where its name says")
    manifest = Manifest(group=field(name, content, "group", str), group_id=group_id, files=rows)
    _check_joins(manifest)
    return manifest


def _check_group(name: str, group_id: str, content: Mapping[str, Any]) -> None:
    found = field(name, content, "group_id", str)
    if found != group_id:
        raise ForeignManifest(name, expected=group_id, found=found)


def _row(name: str, content: Any) -> ManifestRow:
    row = row_of(ManifestRow, name, content)
    if asdict(row) != content:
        raise CorruptManifest(name, f"not the fields of a file: {content!r:.200}")
    if row.name != object_name(row.first_index, row.last_index, row.sha256):
        raise CorruptManifest(name, f"{row.name!r:.200} does not have the name of its contents")
    crc = max(row.first_chain, row.last_chain)
    if not 1 <= row.first_index <= row.last_index or crc > _MAX_CRC or not row.object_bytes:
        raise CorruptManifest(name, f"{row.name} states numbers that no log has")
    return row


def _encode(manifest: Manifest, key: bytes | None) -> bytes:
    return encode_hashed(
        {
            "group": manifest.group,
            "group_id": manifest.group_id,
            "term": manifest.term,
            "first_index": manifest.first_index,
            "last_index": manifest.last_index,
            "last_timestamp_ms": manifest.last_timestamp_ms,
            "files": [asdict(row) for row in manifest.files],
        },
        key,
    )
