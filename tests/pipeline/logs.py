"""Logs for tests: entries, data directories that the shipped store wrote, and backups."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from dledger.broker.state import BrokerState
from dledger.files.files import RealFiles
from dledger.store.commit_log import CommitLog
from dledger.store.format import Base, encode_records
from dledger.store.identity import LOG_DIRECTORY, join, load_or_format
from dledger.store.snapshot_file import Snapshot, encode_snapshot
from dledger.types import Entry, EntryKind
from dledger_pipeline.archive.archive import ManifestRow, write_range
from dledger_pipeline.archive.bases import write_base
from dledger_pipeline.archive.catalog import newest, publish
from dledger_pipeline.archive.hashed_json import encode_hashed
from dledger_pipeline.archive.manifest import (
    BaseRow,
    ChunkRow,
    Manifest,
    RestorePoint,
    chunk_name,
    first_manifest,
)
from dledger_pipeline.log.records import RecordBytes, parse
from dledger_pipeline.object_store.store import Store

GROUP_ID = "6b1f3d1e-0c1c-4d57-9a3c-3a8f0a3f1c11"
DAY_S = 86_400
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


def batches(
    log_entries: Sequence[Entry], *, chain: int = 0, sizes: Iterable[int] = ()
) -> list[pa.RecordBatch]:
    """Return entries as the reader returns them, cut into batches of *sizes* and a rest."""
    encoded = encode_records(log_entries, chain=chain, position=0)
    whole = parse(
        RecordBytes(
            segment="test",
            offset=0,
            data=b"".join(encoded.buffers),
            positions=None,
            previous_chain=chain,
            first_index=log_entries[0].index,
        )
    )
    cut, at = [], 0
    for size in sizes:
        cut.append(whole.slice(at, size))
        at += size
    return [*cut, whole.slice(at)]


def archived(
    store: Store, log_entries: Sequence[Entry], ranges: Iterable[int], group_id: str = GROUP_ID
) -> tuple[ManifestRow, ...]:
    """Archive entries from 1 on, in ranges of so many; return their rows."""
    rows: list[ManifestRow] = []
    first, chain = 0, 0
    for count in ranges:
        part = batches(log_entries[first : first + count], chain=chain)
        rows.append(write_range(store, group_id, part, previous_chain=chain))
        first, chain = first + count, rows[-1].last_chain
    return tuple(rows)


def backup(
    store: Store, log_entries: Sequence[Entry], ranges: Iterable[int], group_id: str = GROUP_ID
) -> Manifest:
    """Publish a backup of entries from 1 on, in ranges of so many."""
    previous = newest(store, group_id)
    rows = archived(store, log_entries, ranges, group_id)
    return publish(store, manifest(rows, group_id, number=previous.number + 1 if previous else 1))


def based_backup(
    store: Store,
    log_entries: Sequence[Entry],
    runs: Sequence[tuple[int, int]],
    bases: Sequence[tuple[BrokerState, int]],
    *,
    size: int = 20,
) -> Manifest:
    """Publish a backup that has only the entries [first, last] of *runs*, in ranges of *size*.

    *bases* are states, each with the oldest entry that a node with it still has.
    """
    chains = [0, *batches(log_entries)[0].column("chain_crc32c").to_pylist()]
    rows = [
        write_range(
            store,
            GROUP_ID,
            batches(log_entries[at - 1 : min(at - 1 + size, last)], chain=chains[at - 1]),
            previous_chain=chains[at - 1],
        )
        for first, last in runs
        for at in range(first, last + 1, size)
    ]
    made = replace(
        first_manifest("orders", GROUP_ID, rows),
        bases=tuple(written_base(store, state, first, chains) for state, first in bases),
    )
    point = RestorePoint(last_index=made.last_index, kept_from=1, as_of_ms=made.last_timestamp_ms)
    return publish(store, made.seen(point))


def written_base(
    store: Store, state: BrokerState, first_index: int, chains: Sequence[int]
) -> BaseRow:
    """Write a snapshot of a state."""
    applied = state.applied_index
    snapshot = Snapshot(
        group_id=GROUP_ID,
        applied=Base(index=applied, term=1, chain=chains[applied]),
        base=Base(index=first_index - 1, term=int(first_index > 1), chain=chains[first_index - 1]),
        memberships=(),
        body=b"",
    )
    data = b"".join(encode_snapshot(snapshot, state.freeze().pieces()))
    return write_base(store, GROUP_ID, data, now_ms=0)


def manifest(rows: Sequence[ManifestRow], group_id: str = GROUP_ID, *, number: int = 1) -> Manifest:
    """Return an unpublished manifest of archived ranges, as of its newest entry."""
    made = replace(first_manifest("orders", group_id, rows), number=number)
    return made.seen(
        RestorePoint(last_index=made.last_index, kept_from=1, as_of_ms=made.last_timestamp_ms)
    )


def flip(store: Store, name: str, at: int = -1) -> None:
    """Flip a bit of a byte of an object, in its middle unless told, as rot would."""
    data = bytearray(store.get(name).to_pybytes())
    data[at if at >= 0 else len(data) // 2] ^= 1
    store.put(name, bytes(data))


def contents(store: Store) -> dict[str, bytes]:
    """Return all objects of a store."""
    return {name: store.get(name).to_pybytes() for name in store.list()}


def rewrite(
    store: Store, published: Manifest, files: list[dict[str, Any]] | None = None, **fields: object
) -> None:
    """Write a manifest again, without signature but with all hashes right, as a forger can.

    *files* are its rows then, whatever they say; *fields* are changed in the manifest itself.
    """
    folder = f"{published.group_id}/"
    plain = store.trusted() if store.manifest_key else store
    standing = json.loads(plain.get(folder + published.name).to_pybytes())
    content = {name: value for name, value in standing.items() if "sha256" not in name}
    if files is not None:
        raw = json.dumps(files).encode()
        data = pa.Codec("zstd").compress(raw)
        sha256 = hashlib.sha256(data).hexdigest()
        first, last = published.first_index, published.last_index
        row = ChunkRow(
            name=chunk_name(first, last, sha256),
            sha256=sha256,
            object_bytes=len(data),
            raw_bytes=len(raw),
            files=len(files),
            first_index=first,
            last_index=last,
        )
        plain.put(folder + row.name, data)
        content["chunks"] = [asdict(row)]
        sizes = [size for each in files if isinstance(size := each.get("object_bytes"), int)]
        more_bytes = sum(sizes) - sum(each.object_bytes for each in published.files)
        content["extent"]["object_bytes"] += more_bytes
    plain.put(folder + published.name, encode_hashed(content | fields))


def file_rows(published: Manifest, **change: object) -> list[dict[str, Any]]:
    """Return the rows of a manifest's files as JSON objects, the first one changed."""
    rows = [asdict(row) for row in published.files]
    rows[0].update(change)
    return rows


def age(directory: Path, days: float) -> None:
    """Make all objects of a store in a directory so much older; a new one shows the time."""
    for path in directory.rglob("*"):
        if path.is_file():
            then = path.stat().st_mtime - days * DAY_S
            os.utime(path, (then, then))
    (directory / GROUP_ID / "data/clock").write_bytes(b"")
