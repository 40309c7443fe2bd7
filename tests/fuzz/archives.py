"""What the pipeline reads: objects of a store that others may write, and a node's exports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterator
from dataclasses import asdict, replace
from functools import partial
from random import Random
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c
from google.protobuf.message import DecodeError

from dledger.broker import commands
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.errors import CorruptRecord, NewerCommand, NewerFormat
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.store.format import encode_records
from dledger.types import Entry, EntryKind
from dledger_pipeline.archive import catalog, manifest
from dledger_pipeline.archive.archive import ManifestRow, object_name, read_range
from dledger_pipeline.archive.erasures import erasures_name
from dledger_pipeline.archive.hashed_json import encode_hashed
from dledger_pipeline.archive.message_ranges import StoredPlaces
from dledger_pipeline.archive.places import PlacesRow, places_name, spans_of
from dledger_pipeline.archive.places_objects import describe_places
from dledger_pipeline.archive.queue_offsets import QueueOffsets
from dledger_pipeline.archive.selection import EVERYTHING, Selection, overlap
from dledger_pipeline.archive.verify import _check_row
from dledger_pipeline.errors import (
    BackupError,
    CorruptObject,
    ExportError,
    MalformedMessage,
    ObjectMissing,
    StoreError,
    TargetNotAvailable,
)
from dledger_pipeline.log.export_client import ExportClient, _exported_places
from dledger_pipeline.log.messages import QUEUE_SLICE_SCHEMA, decode
from dledger_pipeline.log.places import flaw
from dledger_pipeline.log.records import RecordBytes, encode, parse
from dledger_pipeline.object_store.store import Objects, Store
from dledger_pipeline.object_store.stored import Listed, Removal, Stored
from tests.fuzz.disks import rechained
from tests.fuzz.logs import Entries, a_batch, archived
from tests.fuzz.mutation import NUMBERS, json_bytes, mutated, nested, spoil
from tests.fuzz.target import Broken, Target

GROUP_ID: Final = "g1"
_MOST: Final = 1 << 63
"""Numbers of Arrow's and Parquet's columns are below."""


class FewObjects(Objects):
    """A store of a few objects in memory; nothing is written or removed."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = objects

    def get(self, name: str, max_bytes: int) -> Stored:
        """Return an object, if it is no larger."""
        if name not in self._objects:
            raise ObjectMissing(name)
        if len(self._objects[name]) > max_bytes:
            raise CorruptObject(name, f"it has more than {max_bytes} bytes")
        return Stored(data=pa.py_buffer(self._objects[name]), version_of=lambda: "1")

    def size(self, name: str) -> int:
        """Return its length."""
        return int(self.get(name, 1 << 40).data.size)

    def put(self, name: str, data: memoryview) -> None:
        """Write nothing."""
        raise StoreError(f"{name}: {len(data)} bytes are not to be written")

    def create(self, name: str, data: memoryview) -> None:
        """Write nothing."""
        self.put(name, data)

    def replace(self, name: str, data: memoryview, version: str) -> None:
        """Write nothing."""
        raise StoreError(f"{name} {version}: {len(data)} bytes are not to be written")

    def list(self, prefix: str) -> Iterator[Listed]:
        """Yield the objects below a folder."""
        for name, data in self._objects.items():
            if name.startswith(prefix):
                yield Listed(name=name, size_bytes=len(data), modified_s=0)

    def folders(self) -> Iterator[str]:
        """Yield the first part of each name."""
        yield from {name.partition("/")[0]: None for name in self._objects}

    def delete(self, name: str) -> None:
        """Remove nothing."""
        raise StoreError(f"{name} is not to be removed")

    def delete_old(self, name: str, before_s: float) -> Removal:
        """Remove nothing."""
        raise StoreError(f"{name} is not to be removed, before {before_s} or later")

    def sweep(self, before_s: float) -> int:
        """Remove nothing."""
        raise StoreError(f"nothing is to be removed, before {before_s} or later")


def store_of(**objects: bytes) -> Store:
    """Return a store with these objects."""
    return Store("memory://", None, FewObjects(objects))


def _row(first: int, last: int, **more: Any) -> dict[str, Any]:
    sha = hashlib.sha256(b"%d" % first).hexdigest()
    return {
        "name": object_name(first, last, sha),
        "first_index": first,
        "last_index": last,
        "records": last - first + 1,
        "record_bytes": 100,
        "object_bytes": 100,
        "sha256": sha,
        "first_chain": first - 1,
        "last_chain": last,
        "last_term": 1,
        "first_timestamp_ms": 0,
        "last_timestamp_ms": 5,
        "places": {
            "name": places_name(first, last, sha),
            "object_bytes": 9,
            "sha256": sha,
            "rows": 2,
            "spans": [[1, 0, 0, 0, 5], [2, 0, 3, 7, 9]] if first != 6 else None,
        },
        "erasures": {
            "name": erasures_name(first, last, sha),
            "object_bytes": 9,
            "sha256": sha,
            "rows": 2,
        }
        if first != 6
        else None,
        **more,
    }


def _base_row(applied: int, first: int) -> dict[str, Any]:
    sha = "b" * 64
    return {
        "name": manifest.base_name(applied, sha),
        "first_index": first,
        "applied_index": applied,
        "applied_term": 1,
        "applied_chain": applied,
        "object_bytes": 100,
        "sha256": sha,
        "as_of_ms": 5,
    }


def _chunk_row(data: bytes, raw: bytes, first: int, last: int, files: int) -> dict[str, Any]:
    sha = hashlib.sha256(data).hexdigest()
    return {
        "name": manifest.chunk_name(first, last, sha),
        "sha256": sha,
        "object_bytes": len(data),
        "raw_bytes": len(raw),
        "files": files,
        "first_index": first,
        "last_index": last,
    }


class Manifests(Target):
    """A manifest and HEAD whose hashes are right: numbers that columns hold, names that stay."""

    name = "manifests"
    refuses = (BackupError, StoreError)
    _TOPICS: ClassVar = {
        "applied_index": 30,
        "made": 3,
        "others_gone_by": 8,
        "rows": [
            {"name": "t", "generation": 1, "gone_by": 0},
            {"name": "u", "generation": 2, "gone_by": 9},
        ],
    }

    def draw(self, rng: Random) -> bytes:
        rows = [_row(1, 5), _row(6, 9), _row(20, 29)][: rng.randint(1, 3)]
        bases = [_base_row(applied, first) for applied, first in ((7, 3), (25, 20))]
        points = [{"last_index": 9, "kept_from": 3, "as_of_ms": 9}]
        content = {"group": "g", "group_id": GROUP_ID, "term": 1, "first_index": 1, "number": 1,
                   "last_index": rows[-1]["last_index"], "as_of_ms": 9, "points": points,
                   "bases": bases[len(rows) - 1 :], "chunks": rows,
                   "topics": self._TOPICS}  # fmt: skip
        head = {"group_id": GROUP_ID, "number": 1}
        if rng.random() < 0.9:
            content = self._spoilt(rng, content)
        if rng.random() < 0.1:
            head = spoil(rng, head)
        return json_bytes([content, head, rng.random() < 0.02 and nested(rng)])

    def _spoilt(self, rng: Random, content: dict[str, Any]) -> Any:
        """Change it, and then often make what is derived right again."""
        spoilt = spoil(rng, content, 2)
        if isinstance(spoilt, dict) and rng.random() < 0.7:
            files = spoilt.get("chunks")
            for row in files if isinstance(files, list) else ():
                if isinstance(row, dict) and rng.random() < 0.9:
                    _derive(row)
        return spoilt

    def mutate(self, rng: Random, data: bytes) -> bytes:
        try:
            content, head, deep = json.loads(data)
            return json_bytes([self._spoilt(rng, content), head, deep])
        except (ValueError, TypeError, AttributeError):
            return self.draw(rng)

    def feed(self, data: bytes) -> Hashable:
        try:
            content, head, deep = json.loads(data)
            objects = {f"{GROUP_ID}/HEAD": deep.encode() if deep else encode_hashed(head)}
            rows = content["chunks"]
            raw = json.dumps(rows).encode()
            chunk = pa.Codec("zstd").compress(raw).to_pybytes()
            first, last = rows[0]["first_index"], rows[-1]["last_index"]
            described = _chunk_row(chunk, raw, first, last, len(rows))
            objects[f"{GROUP_ID}/{described['name']}"] = chunk
            objects[f"{GROUP_ID}/{manifest.manifest_name(1)}"] = encode_hashed(
                content | {"chunks": [described]}
            )
        except (LookupError, ValueError, TypeError, OverflowError, RecursionError, AttributeError):
            return "no manifest"
        store = store_of(**objects)
        found = catalog.load(store, GROUP_ID)
        for row in found.files:
            if {"", ".", ".."} & set(row.name.split("/")):
                raise Broken(f"an object lies outside: {row.name!r:.60}")
            if row.places:
                row.places.may_hold(Selection(queue_id=1), {1})
            numbers = [value for value in asdict(row).values() if isinstance(value, int)]
            if min(numbers) < 0 or max(numbers) >= _MOST:
                raise Broken(f"a number has no column: {min(numbers)} to {max(numbers)}")
        again = catalog._encode(found, None)
        store = store_of(**objects | {f"{GROUP_ID}/{found.name}": again})
        for index in range(35):
            try:
                start = found.start_for(index)
            except TargetNotAvailable:
                continue
            if not found.first_index <= start.first_index <= index + 1:
                raise Broken(f"entry {index} is restored from {start.first_index} on")
        if catalog.load(store, GROUP_ID) != found:
            raise Broken("written again it is another backup")
        return len(found.files)


def _derive(row: dict[str, Any]) -> None:
    """Make the fields of a row agree with each other, if they can."""
    try:
        row["records"] = row["last_index"] - row["first_index"] + 1
        row["name"] = object_name(row["first_index"], row["last_index"], row["sha256"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return


class ArchiveObjects(Target):
    """A Parquet object with the right hash: entries with right CRCs, or an error that names it."""

    name = "archive-objects"
    refuses = (BackupError, StoreError, CorruptRecord)
    _LOG: ClassVar = [
        Entry(term=1, index=n, kind=EntryKind.DATA, timestamp_ms=n, crc32c=crc32c(b"x" * n),
              data=b"x" * n)
        for n in range(1, 6)
    ]  # fmt: skip

    def __init__(self) -> None:
        self._table = pa.Table.from_batches([archived(self._LOG)])

    def draw(self, rng: Random) -> bytes:
        table = self._table
        for _ in range(rng.randrange(3)):
            table = self._odd(rng, table)
        sink = pa.BufferOutputStream()
        compression = rng.choice(("zstd", "none", "snappy"))
        pq.write_table(table, sink, compression=compression, use_dictionary=rng.random() < 0.5)
        made = sink.getvalue().to_pybytes()
        return mutated(rng, made, 3) if rng.random() < 0.5 else made

    def _odd(self, rng: Random, table: pa.Table) -> pa.Table:
        way = rng.randrange(5)
        if way == 0 and table.num_columns:
            return table.drop_columns([rng.choice(table.column_names)])
        if way == 1:
            return table.slice(rng.randint(0, table.num_rows), rng.randint(0, 5))
        if way == 2:
            return pa.concat_tables([table, table.slice(0, rng.randrange(3))])
        if way == 3 and table.num_columns:
            at = rng.randrange(table.num_columns)
            column = table.column(at)
            if not pa.types.is_integer(column.type):
                return table
            low, high = _range_of(column.type)
            values = column.to_pylist()
            if values:
                number = rng.choice([n for n in NUMBERS if low <= n <= high])
                values[rng.randrange(len(values))] = rng.choice((number, None))
            field = pa.field(table.field(at).name, column.type, nullable=None in values)
            return table.set_column(at, field, pa.array(values, column.type))
        return table.replace_schema_metadata({"a": "b" * rng.choice((1, 70_000))})

    def feed(self, data: bytes) -> Hashable:
        sha = hashlib.sha256(data).hexdigest()
        row = ManifestRow(
            **{
                **_row(1, 5, first_chain=0, places=None),
                "name": object_name(1, 5, sha),
                "sha256": sha,
                "object_bytes": len(data),
                "record_bytes": 5 * 48,
                "last_chain": encode_records(self._LOG, chain=0, position=0).chains[-1],
                "first_timestamp_ms": 1,
            }
        )
        store = store_of(**{f"{GROUP_ID}/{row.name}": data})
        table = read_range(store, GROUP_ID, row)
        read_range(store, GROUP_ID, row, partial(overlap, {"index": (2, 3)}), ["timestamp_ms"])
        _check_row(row.name, row, table)
        for batch in table.to_batches():
            encode(batch)
        return int(table.num_rows)


def _range_of(kind: pa.DataType) -> tuple[int, int]:
    signed = pa.types.is_signed_integer(kind)
    bits = kind.bit_width
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


class Exports(Target):
    """A chunk of a node's export, from a node that lies: entries with right CRCs, or an error."""

    name = "exports"
    refuses = (CorruptRecord, ExportError, NewerFormat, DecodeError)

    def __init__(self) -> None:
        self._exporter = ExportClient("127.0.0.1:1")
        log = ArchiveObjects._LOG
        encoded = encode_records(log, chain=0, position=0)
        self._seed = pb.ExportChunk(
            first_index=1, last_index=5, previous_chain=0, segment="s", offset=4_096,
            positions=np.array(encoded.positions, "<u4").tobytes(),
            records=b"".join(encoded.buffers),
        )  # fmt: skip

    def close(self) -> None:
        self._exporter.close()

    def draw(self, rng: Random) -> bytes:
        chunk = pb.ExportChunk()
        chunk.CopyFrom(self._seed)
        if rng.random() < 0.6:
            records = mutated(rng, chunk.records, 2)
            chunk.records = rechained(records) if rng.random() < 0.7 else records
        if rng.random() < 0.4:
            chunk.positions = mutated(rng, chunk.positions, 2)
        for name in ("first_index", "last_index", "offset"):
            if rng.random() < 0.1:
                number = rng.choice([n for n in NUMBERS if 0 <= n < _MOST])
                setattr(chunk, name, number)
        raw = bytes(chunk.SerializeToString())
        return mutated(rng, raw, 2) if rng.random() < 0.2 else raw

    def feed(self, data: bytes) -> Hashable:
        chunk = self._exporter._chunk(*self._exporter._received(data))
        batch = parse(chunk)
        _same_but_padding(bytes(chunk.data), encode(batch))
        return int(batch.num_rows)


class Places(Target):
    """Chunks of places from a node that lies: places that cannot overlap, or an error."""

    name = "places"
    refuses = (ExportError, DecodeError)
    _COLUMNS: ClassVar = {
        "first_offsets": "<u8", "indexes": "<u8", "starts": "<u4", "ends": "<u4", "rows": "<u4"
    }  # fmt: skip

    def draw(self, rng: Random) -> bytes:
        chunk = pb.ExportPlacesChunk(
            state=pb.PlacesState(kept_from=1, applied_index=9, topics_made=2)
        )
        chunk.state.topics.add(name="t", generation=1)
        for queue_id in range(rng.randrange(3)):
            at = rng.choice((0, 100))
            values = {"first_offsets": [0, 2, 5], "indexes": [3, 3, 4], "starts": [at, at, at],
                      "ends": [at + 50] * 3, "rows": [0, 2, 0]}  # fmt: skip
            raw = {
                name: np.array(column, self._COLUMNS[name]).tobytes()
                for name, column in values.items()
            }
            if rng.random() < 0.5:
                name = rng.choice(sorted(raw))
                raw[name] = mutated(rng, raw[name], 2)
            chunk.queues.add(generation=1, queue_id=queue_id, end_offset=6, **raw)
        for name in ("kept_from", "applied_index", "topics_made"):
            if rng.random() < 0.1:
                setattr(chunk.state, name, rng.choice([n for n in NUMBERS if -_MOST <= n < _MOST]))
        raw_chunk = bytes(chunk.SerializeToString())
        return mutated(rng, raw_chunk, 2) if rng.random() < 0.3 else raw_chunk

    def feed(self, data: bytes) -> Hashable:
        chunk = pb.ExportPlacesChunk.FromString(data)
        found = _exported_places("n", list(chunk.queues), chunk.state, 1, 9).places
        found.validate(full=True)
        spans_of(found)
        if reason := flaw(found, 1, 9):
            raise Broken(f"accepted though {reason}")
        return int(found.num_rows)


class PlacesObjects(Target):
    """A places object with the right hash: messages that lie in the entries, or an error."""

    name = "places-objects"
    refuses = (BackupError, StoreError, MalformedMessage)

    def __init__(self) -> None:
        log = [
            Entry(term=1, index=n, kind=EntryKind.DATA, timestamp_ms=n, crc32c=crc32c(body),
                  data=body)
            for n, body in enumerate(ArchivedMessages._BEFORE * 2, start=1)
        ]  # fmt: skip
        self._entries = archived(log)
        self._places = QueueOffsets().add(self._entries)

    def draw(self, rng: Random) -> bytes:
        rows = [dict(each) for each in self._places.to_pylist() * rng.randrange(1, 3)]
        for _ in range(rng.randrange(3)):
            field = rng.choice(QUEUE_SLICE_SCHEMA)
            low, high = _range_of(field.type)
            rng.choice(rows)[field.name] = rng.choice([n for n in NUMBERS if low <= n <= high])
        table = pa.Table.from_pylist(rows, QUEUE_SLICE_SCHEMA)
        table = table.replace_schema_metadata({"dledger.group_id": GROUP_ID})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, use_dictionary=rng.random() < 0.1)
        made = sink.getvalue().to_pybytes()
        return mutated(rng, made, 2) if rng.random() < 0.3 else made

    def feed(self, data: bytes) -> Hashable:
        sha = hashlib.sha256(data).hexdigest()
        name = places_name(1, 4, sha)
        row = ManifestRow(**_row(1, 4, places=None))
        store = store_of(**{f"{GROUP_ID}/{name}": data})
        places = describe_places(store, GROUP_ID, row, name)
        if not isinstance(places, PlacesRow):
            raise Broken("no row")
        row = replace(row, places=places)
        topics = frozenset({1, 2})
        stored = StoredPlaces(store=store, group_id=GROUP_ID, row=row, topics=topics)
        slices = stored.read(EVERYTHING)
        if not slices.num_rows:
            return 0
        stored.check_fits(slices, self._entries)
        found = decode(self._entries, slices)
        found.validate(full=True)
        return int(found.num_rows)


def _same_but_padding(one: bytes, other: bytes) -> None:
    """Raise Broken unless they differ in the padding of records only, which carries nothing."""
    if len(one) != len(other) or _headers(one) != _headers(other):
        raise Broken("written again it has other bytes")


def _headers(records: bytes) -> list[bytes]:
    found, at = [], 0
    while at + 40 <= len(records):
        length = int.from_bytes(records[at + 4 : at + 8], "little")
        found.append(records[at : at + 40 + length])
        at += 40 + length + (-length % 8)
    return found


class ArchivedMessages(Target):
    """Messages out of entries that a hostile store holds: columns, or the entry is named."""

    name = "archived-messages"
    refuses = (MalformedMessage, NewerCommand)
    _BEFORE: ClassVar = [
        commands.CreateTopic(name="t", type="NORMAL", queues=4).encode(),
        encode_produce(
            Columns(message_ids=["a"], bodies=[b"x"], born_at_ms=[0]), client_id="c", topic="t"
        ),
    ]

    def __init__(self) -> None:
        self._entries = Entries()

    def draw(self, rng: Random) -> bytes:
        return a_batch(rng) if rng.random() < 0.6 else self._entries.draw(rng)[8:]

    def feed(self, data: bytes) -> Hashable:
        log = [
            Entry(term=1, index=n, kind=EntryKind.DATA, timestamp_ms=n, crc32c=crc32c(body),
                  data=body)
            for n, body in enumerate([*self._BEFORE, data], start=1)
        ]  # fmt: skip
        entries = archived(log)
        found = decode(entries, QueueOffsets().add(entries))
        found.validate(full=True)
        return int(found.num_rows)


class Records(Target):
    """Records of a log: the pipeline takes what a node takes, and writes the same again."""

    name = "records"
    refuses = (CorruptRecord, NewerFormat)

    def draw(self, rng: Random) -> bytes:
        entries = [
            Entry(
                term=rng.choice((1, 2, *[n for n in NUMBERS if 0 <= n < _MOST])),
                index=n,
                kind=rng.choice(list(EntryKind)),
                timestamp_ms=rng.choice((0, 5, -1)),
                crc32c=crc32c(body),
                data=body,
            )
            for n, body in enumerate(
                (rng.randbytes(rng.choice((0, 1, 8, 100))) for _ in range(rng.randrange(5))), 1
            )
        ]
        records = b"".join(encode_records(entries, chain=0, position=0).buffers)
        way = rng.randrange(3)
        return records if way == 0 else self.mutate(rng, records)

    def mutate(self, rng: Random, data: bytes) -> bytes:
        spoilt = mutated(rng, data, 2)
        return rechained(spoilt) if rng.random() < 0.8 else spoilt

    def feed(self, data: bytes) -> Hashable:
        batch = parse(
            RecordBytes(
                segment="s", offset=0, data=data, positions=None, previous_chain=0, first_index=1
            )
        )
        _same_but_padding(data, encode(batch))
        return int(batch.num_rows)
