"""Which backups a store has: manifests, published by number, and HEAD, which names the newest.

::

    <store url>/<group id>/
        data/<first>-<last>-<sha256>.parquet     entries, 20 digits an index
        places/<first>-<last>-<sha256>.parquet   where the messages of these entries are
        erasures/<first>-<last>-<sha256>.parquet what ERASEs among these entries name
        bases/<applied>-<sha256>.snap            a snapshot, which stands for older entries
        chunks/<first>-<last>-<sha256>.json.zst  manifest rows of up to 1,000 objects of data/
        manifests/<number>.json                  a backup; numbers count from 1
        HEAD                                     the newest number: tells if that manifest was lost

A backup exists once its manifest does; the number makes concurrent writers notice each other.
Objects that no manifest names were left by a run that was killed, or are of a backup that expired.
Used by all jobs and the data source.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final

import pyarrow as pa

from dledger_pipeline.archive.archive import create_once
from dledger_pipeline.archive.extent import Extent
from dledger_pipeline.archive.file_rows import encode_rows, file_row, spans_from
from dledger_pipeline.archive.hashed_json import (
    MAX_JSON_BYTES,
    Signature,
    decode_hashed,
    encode_hashed,
    field,
    resign,
    row_of,
    signature_of,
)
from dledger_pipeline.archive.manifest import (
    OBJECT_KINDS,
    BaseRow,
    Chunk,
    ChunkRow,
    Manifest,
    RestorePoint,
    base_name,
    check_joins,
    chunk_name,
    manifest_name,
)
from dledger_pipeline.archive.topics import MAX_ROWS, TopicRow, Topics
from dledger_pipeline.errors import (
    AlreadyExists,
    CorruptManifest,
    CorruptObject,
    ForeignManifest,
    LostManifest,
    NoBackup,
    ObjectMissing,
    StoreError,
    VersionConflict,
)
from dledger_pipeline.object_store.store import Store

_HEAD: Final = "HEAD"
_MAX_HEAD_BYTES: Final = 1 << 16
"""Two fields, a hash and a signature take some 300 bytes."""
_MAX_CHUNK_BYTES: Final = 32 << 20
"""Of JSON: 1,000 rows take some 700 KB, and 35 bytes for each of at most 256 spans."""
_MAX_CRC: Final = (1 << 32) - 1
_ATTEMPTS: Final = 100
"""To move HEAD: each failure means that another run moved it, so more is a fault of the store."""
_UNMOVED: Final = 4
"""So often HEAD may be refused to be moved though nobody else has moved it."""
_NUMBER: Final = re.compile(r"manifests/(\d{10})\.json")
_ZSTD: Final = "zstd"
_OF_TOPICS: Final = ("applied_index", "made", "others_gone_by")


def publish(store: Store, manifest: Manifest) -> Manifest:
    """Make *manifest* the group's newest backup, after checking that it is whole.

    Its ranges must join by index and chain, and all its objects exist.

    Returns:
        The manifest as it is in the store.

    Raises:
        VersionConflict: Another run has published this number; nothing was published.
        StoreError: The store failed; or it has no compare and swap, which HEAD needs: then the
            manifest is published all the same.
        BrokenBackup: Ranges do not join; names the file.
        TargetNotAvailable: No base reaches its last entry, so that it could not be restored.
        ObjectMissing, CorruptObject: A file is not there, or not as long as it was. Nothing was
            published.
    """
    check_joins(manifest)
    manifest.start_for(manifest.last_index)
    stored = replace(manifest, chunks=tuple(_stored(store, manifest, c) for c in manifest.chunks))
    _check_present(store, stored)
    name = f"{manifest.group_id}/{manifest.name}"
    data = _encode(stored, store.manifest_key)
    try:
        store.create(name, data)
    except AlreadyExists as error:
        if not _is_there(store, name, data):  # else the answer to an earlier try was lost
            raise VersionConflict(name) from error
    _advance_head(store, stored)
    return stored


def _is_there(store: Store, name: str, data: bytes) -> bool:
    try:
        return bytes(store.get(name, max_bytes=MAX_JSON_BYTES)) == data
    except (ObjectMissing, CorruptObject):
        return False


def load(
    store: Store,
    group_id: str | None = None,
    number: int | None = None,
    *,
    chunks: dict[ChunkRow, Chunk] | None = None,
) -> Manifest:
    """Return a published backup.

    Args:
        store: The store's root.
        group_id: Whose; None if the store holds one group only.
        number: Which; None: the newest.
        chunks: Those that are known, which are not read; the others are added.

    Raises:
        NoBackup: There is none, or it takes a *group_id* to say which.
        LostManifest: The newest one's manifest is gone.
        CorruptManifest, NotSigned, ForeignManifest: It is damaged, not ours, or another group's.
        ObjectMissing: There is none of this number, or one of its chunks is missing.
        StoreError: The store failed.
    """
    group_id = only_group(store) if group_id is None else group_id
    if number is not None:
        return _read(store, group_id, number, chunks)
    manifest = newest(store, group_id, chunks)
    if manifest is None:
        raise NoBackup(f"no backup of group {group_id} was published in {store.url}")
    return manifest


def newest(
    store: Store, group_id: str, chunks: dict[ChunkRow, Chunk] | None = None
) -> Manifest | None:
    """Return the group's newest backup; None if it has none. Raises like `load`."""
    head = head_number(store, group_id)  # first: what is published after it is no loss
    known = numbers(store, group_id)
    if head > max(known, default=0):
        raise LostManifest(f"{group_id}/{manifest_name(head)}", max(known, default=None))
    return _read(store, group_id, known[-1], chunks) if known else None


def numbers(store: Store, group_id: str) -> list[int]:
    """Return the numbers of the group's published backups, ascending."""
    found = (_NUMBER.fullmatch(name.partition("/")[2]) for name in _names(store, group_id))
    return sorted(int(match[1]) for match in found if match)


def _names(store: Store, group_id: str) -> list[str]:
    return [*store.list(f"{group_id}/manifests")]


def groups(store: Store) -> list[str]:
    """Return the ids of the groups that have a backup."""
    return [folder for folder in store.folders() if _names(store, folder)]


def only_group(store: Store) -> str:
    """Return the id of the only group that has a backup. Raises NoBackup."""
    found = groups(store)
    if not found:
        raise NoBackup(
            f"no backup was published in {store.url}: is that the store that --store should name?"
        )
    if len(found) > 1:
        raise NoBackup(
            f"{store.url} holds backups of {len(found)} groups; give the group id of one: "
            f"{', '.join(found)}"
        )
    return found[0]


def signature(store: Store, manifest: Manifest) -> Signature:
    """Return whether a loaded manifest is signed. Raises like `load`."""
    name = f"{manifest.group_id}/{manifest.name}"
    data = store.get(name, max_bytes=MAX_JSON_BYTES)
    return signature_of(name, data, store.manifest_key)


def sign(store: Store, manifest: Manifest) -> None:
    """Sign a manifest, whose hashes stand for all its objects.

    Whatever is in the store now becomes trusted, so verify it first.

    Raises:
        StoreError: The store failed.
        CorruptManifest, ObjectMissing: It is damaged, or not there.
    """
    resign(store, f"{manifest.group_id}/{manifest.name}")


# -- HEAD ---------------------------------------------------------------------------------------


def _advance_head(store: Store, manifest: Manifest) -> None:
    name = f"{manifest.group_id}/{_HEAD}"
    data = encode_hashed({"group_id": manifest.group_id, "number": manifest.number})
    before, unmoved = b"", 0
    for _ in range(_ATTEMPTS):
        try:
            try:
                stored = store.get_versioned(name, max_bytes=_MAX_HEAD_BYTES)
            except ObjectMissing:
                store.create(name, data)
                return
            if _number_in(name, manifest.group_id, stored.data) >= manifest.number:
                return
            unmoved = unmoved + 1 if stored.data.to_pybytes() == before else 0
            before = stored.data.to_pybytes()
            store.replace(name, data, stored.version)
            return
        except (AlreadyExists, VersionConflict):
            if unmoved >= _UNMOVED:
                raise StoreError(
                    f"{manifest.name} is published, but {name} cannot be moved to it: the store "
                    "says that it was replaced, and it was not; does a proxy in front of the store "
                    "rewrite ETags? (If-Match with the ETag of a GET must work)"
                ) from None
            continue  # another run moved it; read where it is now
    raise VersionConflict(name)


def head_number(store: Store, group_id: str) -> int:
    """Return what HEAD names; 0 if it is missing or damaged, since it only tells of a loss."""
    name = f"{group_id}/{_HEAD}"
    try:
        data = store.get(name, max_bytes=_MAX_HEAD_BYTES)
    except (ObjectMissing, CorruptObject):
        return 0
    return _number_in(name, group_id, data)


def _number_in(name: str, group_id: str, data: pa.Buffer) -> int:
    try:
        content = decode_hashed(name, data)
        _check_group(name, group_id, content)
        return int(field(name, content, "number", int))
    except CorruptManifest:
        return 0


# -- manifests ----------------------------------------------------------------------------------


def _check_present(store: Store, manifest: Manifest) -> None:
    folder = manifest.group_id
    sizes = {
        listed.name: listed.size_bytes
        for kind in OBJECT_KINDS
        for listed in store.listed(f"{folder}/{kind}")
    }
    for name, size_bytes in manifest.objects.items():
        found = sizes.get(f"{folder}/{name}")
        if found is None:
            raise ObjectMissing(f"{folder}/{name}")
        if found != size_bytes:
            raise CorruptObject(f"{folder}/{name}", f"it has {found} of {size_bytes} bytes")


def content_of(store: Store, group_id: str, number: int) -> dict[str, Any]:
    """Return the fields of a manifest that is this one, whole, and signed where there is a key.

    Raises:
        CorruptManifest, NotSigned, ForeignManifest: It is damaged, not ours, or another group's.
        NewerBackup: A newer version wrote it.
        ObjectMissing: There is none of this number.
        StoreError: The store failed.
    """
    name = f"{group_id}/{manifest_name(number)}"
    data = store.get(name, max_bytes=MAX_JSON_BYTES)
    content = decode_hashed(name, data, store.manifest_key)
    _check_group(name, group_id, content)
    if field(name, content, "number", int) != number:
        raise CorruptManifest(name, "it states another number")
    return content


def _read(
    store: Store, group_id: str, number: int, known: dict[ChunkRow, Chunk] | None = None
) -> Manifest:
    name, content = f"{group_id}/{manifest_name(number)}", content_of(store, group_id, number)
    chunks = [row_of(ChunkRow, name, row) for row in field(name, content, "chunks", list)]
    known = {} if known is None else known
    known.update({row: _read_chunk(store, group_id, row) for row in chunks if row not in known})
    try:
        manifest = Manifest(
            number=number,
            group=field(name, content, "group", str),
            group_id=group_id,
            as_of_ms=field(name, content, "as_of_ms", int),
            chunks=tuple(known[row] for row in chunks),
            bases=tuple(_base(name, row) for row in field(name, content, "bases", list)),
            points=tuple(
                row_of(RestorePoint, name, row) for row in field(name, content, "points", list)
            ),
            topics=_topics(name, field(name, content, "topics", dict)),
        )
    except ValueError as error:
        raise CorruptManifest(name, str(error)) from error
    if not manifest.points:
        raise CorruptManifest(name, "it states no restore point")
    check_joins(manifest)
    if Extent.read(name, content) != Extent.of(manifest):
        raise CorruptManifest(name, "it does not have what it states as its extent")
    return manifest


def _check_group(name: str, group_id: str, content: Mapping[str, Any]) -> None:
    found = field(name, content, "group_id", str)
    if found != group_id:
        raise ForeignManifest(name, expected=group_id, found=found)


def _encode(manifest: Manifest, key: bytes | None) -> bytes:
    return encode_hashed(
        {
            "number": manifest.number,
            "group": manifest.group,
            "group_id": manifest.group_id,
            "as_of_ms": manifest.as_of_ms,
            "term": manifest.term,
            "extent": Extent.of(manifest).encode(),
            "chunks": [asdict(chunk.row) for chunk in manifest.chunks if chunk.row is not None],
            "bases": [asdict(base) for base in manifest.bases],
            "points": [asdict(point) for point in manifest.points],
            "topics": asdict(manifest.topics),
        },
        key,
    )


def _base(name: str, content: Any) -> BaseRow:
    if not isinstance(content, dict) or "kept" not in content:
        raise CorruptManifest(name, f"a base is {content!r:.80}")
    row = row_of(BaseRow, name, content, kept=spans_from(name, content["kept"]))
    if row.name != base_name(row.applied_index, row.sha256):
        raise CorruptManifest(name, f"{row.name!r:.200} does not have the name of its contents")
    if not 1 <= row.first_index <= row.applied_index + 1 or row.applied_chain > _MAX_CRC:
        raise CorruptManifest(name, f"{row.name} states numbers that no log has")
    return row


def _topics(name: str, content: Mapping[str, Any]) -> Topics:
    rows = tuple(row_of(TopicRow, name, row) for row in field(name, content, "rows", list))
    numbers = {key: field(name, content, key, int) for key in _OF_TOPICS}
    generations = [row.generation for row in rows]
    if (
        len(rows) > MAX_ROWS
        or len({*generations}) < len(rows)
        or not all(1 <= each <= numbers["made"] for each in generations)
        or max((row.gone_by for row in rows), default=0) > numbers["applied_index"]
        or numbers["others_gone_by"] > numbers["applied_index"]
    ):
        raise CorruptManifest(name, "it states topics that no group has")
    return Topics(rows=rows, **numbers)


# -- chunks -------------------------------------------------------------------------------------


def _stored(store: Store, manifest: Manifest, chunk: Chunk) -> Chunk:
    """Return *chunk* after storing its rows, if they are not."""
    if chunk.row is not None:
        return chunk
    raw = encode_rows(chunk.files)
    data = pa.Codec(_ZSTD).compress(raw)
    sha256 = hashlib.sha256(data).hexdigest()
    first, last = chunk.files[0].first_index, chunk.files[-1].last_index
    row = ChunkRow(
        name=chunk_name(first, last, sha256),
        sha256=sha256,
        object_bytes=len(data),
        raw_bytes=len(raw),
        files=len(chunk.files),
        first_index=first,
        last_index=last,
    )
    create_once(store, f"{manifest.group_id}/{row.name}", data)
    return Chunk(chunk.files, row)


def _read_chunk(store: Store, group_id: str, row: ChunkRow) -> Chunk:
    name = f"{group_id}/{row.name}"
    data = store.get(name, max_bytes=_MAX_CHUNK_BYTES)
    found = hashlib.sha256(data).hexdigest()
    if found != row.sha256 or row.name != chunk_name(row.first_index, row.last_index, found):
        raise CorruptManifest(name, f"its SHA-256 is {found}, the manifest says {row.sha256}")
    if row.raw_bytes > _MAX_CHUNK_BYTES:
        raise CorruptManifest(name, f"it states {row.raw_bytes} bytes, more than a chunk has")
    try:
        content = json.loads(pa.Codec(_ZSTD).decompress(data, row.raw_bytes).to_pybytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptManifest(name, f"not compressed JSON: {error}") from error
    if not isinstance(content, list) or len(content) != row.files or not content:
        raise CorruptManifest(name, f"it does not have the {row.files} files that it should")
    files = tuple(file_row(name, each) for each in content)
    if (files[0].first_index, files[-1].last_index) != (row.first_index, row.last_index):
        raise CorruptManifest(name, "its files do not begin and end where its name says")
    return Chunk(files, row)
