"""The vectorised reader equals a slow, obvious one: on whole records, and on damaged ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.errors import CorruptRecord
from dledger.store.format import encode_records
from dledger.types import Entry, EntryKind
from dledger_pipeline.errors import CorruptObject
from dledger_pipeline.log.records import (
    ENTRY_SCHEMA,
    RecordBytes,
    check,
    encode,
    parse,
    record_sizes,
)

SEGMENT = "00000000000000000007.seg"
OFFSET = 4096


def slow_parse(data: bytes, *, previous_chain: int, first_index: int) -> list[tuple[Any, ...]]:
    """Parse one record after the other; raise CorruptRecord at the first that is not valid."""
    rows: list[tuple[Any, ...]] = []
    at, chain, index = 0, previous_chain, first_index
    while at < len(data):
        header = data[at : at + 40]
        if len(header) < 40:
            raise CorruptRecord(SEGMENT, OFFSET + at, "header")
        found, length, term, i, time_ms, body_crc, kind, zeros = struct.unpack("<IIQQqIB3s", header)
        body = data[at + 40 : at + 40 + length]
        end = at + 40 + length + -length % 8
        if (
            found != crc32c(header[4:], chain)
            or i != index
            or kind > 2
            or zeros != bytes(3)
            or end > len(data)
            or crc32c(body) != body_crc
        ):
            raise CorruptRecord(SEGMENT, OFFSET + at, "record")
        rows.append((i, term, kind, time_ms, body_crc, found, body))
        at, chain, index = end, found, index + 1
    return rows


def entry_lists(max_body: int = 100) -> st.SearchStrategy[list[Entry]]:
    """Entries that follow each other."""
    rows = st.tuples(
        st.sampled_from(EntryKind),
        st.integers(0, 2),
        st.integers(-(2**63), 2**63 - 1),
        st.binary(max_size=max_body),
    )
    return st.builds(_entries, st.integers(1, 1 << 40), st.lists(rows, min_size=1, max_size=12))


def _entries(first: int, rows: list[tuple[EntryKind, int, int, bytes]]) -> list[Entry]:
    entries, term = [], 1
    for index, (kind, step, timestamp, data) in enumerate(rows, first):
        term += step
        entries.append(
            Entry(
                term=term,
                index=index,
                kind=kind,
                timestamp_ms=timestamp,
                crc32c=crc32c(data),
                data=data,
            )
        )
    return entries


def chunk_of(entries: Sequence[Entry], *, chain: int, positions: bool) -> RecordBytes:
    """Return the shipped store's bytes of *entries*."""
    encoded = encode_records(entries, chain=chain, position=0)
    return RecordBytes(
        segment=SEGMENT,
        offset=OFFSET,
        data=b"".join(encoded.buffers),
        positions=np.array(encoded.positions, np.uint32) if positions else None,
        previous_chain=chain,
        first_index=entries[0].index,
    )


def with_data(chunk: RecordBytes, data: bytes) -> RecordBytes:
    """Return the chunk with other bytes."""
    return RecordBytes(
        segment=chunk.segment,
        offset=chunk.offset,
        data=data,
        positions=chunk.positions,
        previous_chain=chunk.previous_chain,
        first_index=chunk.first_index,
    )


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Return a batch as the slow parser returns it."""
    return [tuple(row.values()) for row in batch.to_pylist()]


def outcome(chunk: RecordBytes, *, slow: bool) -> list[tuple[Any, ...]] | tuple[str, int]:
    """Return the rows, or the segment and offset of the fault."""
    try:
        if slow:
            return slow_parse(
                bytes(chunk.data),
                previous_chain=chunk.previous_chain,
                first_index=chunk.first_index,
            )
        return rows_of(parse(chunk))
    except CorruptRecord as error:
        return error.segment, error.offset


chains = st.integers(0, (1 << 32) - 1)


@given(entry_lists(), chains, st.booleans())
def test_records_are_parsed_like_a_slow_parser_does(
    entries: list[Entry], chain: int, positions: bool
) -> None:
    """Whole records: every field of every row, and the schema."""
    chunk = chunk_of(entries, chain=chain, positions=positions)

    batch = parse(chunk)

    assert batch.schema == ENTRY_SCHEMA
    batch.validate(full=True)
    assert rows_of(batch) == outcome(chunk, slow=True)


@given(entry_lists(), chains, st.booleans(), st.data())
@settings(max_examples=300)
def test_damaged_records_are_the_same_or_named_by_segment_and_offset(
    entries: list[Entry], chain: int, positions: bool, data: st.DataObject
) -> None:
    """Flipped bits and missing tails: equal rows, or the byte at which the slow parser stops."""
    chunk = chunk_of(entries, chain=chain, positions=positions)
    raw = bytearray(chunk.data)
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=3)):
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    damaged = with_data(chunk, bytes(raw))

    found = outcome(damaged, slow=False)

    expected = outcome(damaged, slow=True)
    if positions and not isinstance(expected, tuple) and len(expected) < len(entries):
        expected = (SEGMENT, OFFSET + len(raw))  # cut between records, and positions name more
    assert found == expected


@given(entry_lists(), chains)
def test_encoding_gives_back_the_bytes_that_were_parsed(entries: list[Entry], chain: int) -> None:
    """Byte for byte; and of any part of them."""
    chunk = chunk_of(entries, chain=chain, positions=True)
    batch = parse(chunk)
    half = len(batch) // 2

    assert encode(batch) == chunk.data
    assert b"".join((encode(batch.slice(0, half)), encode(batch.slice(half)))) == chunk.data
    assert record_sizes(batch).sum() == len(chunk.data)


@given(st.binary(max_size=400), st.booleans())
def test_arbitrary_bytes_are_refused(raw: bytes, positions: bool) -> None:
    """No bytes crash the reader."""
    chunk = RecordBytes(
        segment=SEGMENT,
        offset=OFFSET,
        data=raw + b"\1",
        positions=np.frombuffer(raw[: len(raw) // 4 * 4], np.uint32) if positions else None,
        previous_chain=0,
        first_index=1,
    )

    with pytest.raises(CorruptRecord, match=SEGMENT) as raised:
        parse(chunk)

    assert raised.value.offset == OFFSET


def test_no_bytes_are_no_records() -> None:
    """An empty batch of the schema, with and without positions."""
    for positions in (None, np.zeros(0, np.uint32)):
        batch = parse(
            RecordBytes(
                segment=SEGMENT,
                offset=OFFSET,
                data=b"",
                positions=positions,
                previous_chain=0,
                first_index=1,
            )
        )

        assert batch.schema == ENTRY_SCHEMA
        assert len(batch) == 0
        assert encode(batch) == b""


def test_wrong_positions_are_named_at_the_record_that_they_miss() -> None:
    """A damaged index is no record's fault, but nothing is read by it."""
    entries = _entries(1, [(EntryKind.DATA, 0, 0, b"x" * 20)] * 4)
    chunk = chunk_of(entries, chain=0, positions=True)
    assert chunk.positions is not None
    chunk.positions[2] += 1

    with pytest.raises(CorruptRecord, match="position") as raised:
        parse(chunk)

    assert raised.value.offset == OFFSET + 2 * 64


@given(entry_lists(), chains, st.data())
def test_a_changed_row_is_found_by_its_crcs(
    entries: list[Entry], chain: int, data: st.DataObject
) -> None:
    """Any column of any row that did not come from the reader."""
    batch = parse(chunk_of(entries, chain=chain, positions=True))
    first = entries[0].index
    rows = batch.to_pylist()
    at = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.sampled_from(ENTRY_SCHEMA.names))
    value = rows[at][column]
    rows[at][column] = value + b"x" if column == "body" else value ^ 1
    changed = pa.RecordBatch.from_pylist(rows, schema=ENTRY_SCHEMA)

    assert check(batch, name="o", previous_chain=chain, first_index=first) == (
        batch["chain_crc32c"][-1].as_py()
    )
    with pytest.raises(CorruptObject, match=f"entry {first + at} "):
        check(changed, name="o", previous_chain=chain, first_index=first)
