"""Reads the records of a node's data directory, in the chunks that `records.parse` takes.

Reads only, and takes no lock: a directory in use is read up to its durable watermark. Used by
`entry_ranges` and by a deep verify.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from dledger.errors import CorruptRecord
from dledger.files.files import Mode, RealFiles
from dledger.store.format import (
    ALIGNMENT_BYTES,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    SegmentIndex,
    decode_index,
    decode_record_header,
    decode_segment_header,
    record_size,
)
from dledger.store.identity import LOG_DIRECTORY
from dledger.store.log_scan import segment_firsts
from dledger.store.segment import INDEX_SUFFIX, segment_name
from dledger.store.watermark import Watermark
from dledger_pipeline.log.records import RecordBytes, follow

CHUNK_BYTES: Final = 4 << 20
"""As a node's Export sends (`services.export`)."""


def read_segment(
    path: Path, *, last_index: int | None = None, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[RecordBytes]:
    """Yield the records of a segment file in chunks of about *chunk_bytes*, not yet checked.

    Uses the index file beside it if that is whole and fits.

    Args:
        path: The ``.seg`` file.
        last_index: The last record wanted, which must be there; None: all up to the first zeros.
        chunk_bytes: A larger record is a chunk of its own.

    Raises:
        CorruptRecord: The segment's header is not valid, or it ends before *last_index*.
    """
    with path.open("rb", buffering=0) as file:
        header = _header(file, path)
        index = _index(file, header, path)
        chunks = _indexed(file, index, chunk_bytes) if index else _followed(file, chunk_bytes)
        chain, first, end = header.previous_chain, header.first_index, SEGMENT_HEADER_BYTES
        for offset, data, starts in chunks:
            count = len(starts) if last_index is None else min(len(starts), last_index + 1 - first)
            if count <= 0:
                break
            end = starts[count] if count < len(starts) else len(data)
            yield RecordBytes(
                segment=path.name,
                offset=offset,
                data=memoryview(data)[:end],
                positions=np.array(starts[:count], np.uint32) // ALIGNMENT_BYTES,
                previous_chain=chain,
                first_index=first,
            )
            chain, first = _chain_at(data, starts[count - 1]), first + count
            end += offset
    if last_index is not None and first <= last_index:
        raise CorruptRecord(path.name, end, f"the record of index {first} is missing")


def synced_segments(directory: Path) -> list[tuple[Path, int, int]]:
    """Return path, first and last index of each segment, up to the watermark.

    Args:
        directory: A node's data directory, or a ``log`` directory alone.

    Raises:
        CorruptRecord: The first segment is missing. If a later one is, reading the segment before
            it fails.
        CorruptFile: The watermark is damaged or missing.
    """
    inside = directory / LOG_DIRECTORY
    log = inside if inside.is_dir() else directory
    files = RealFiles()
    watermark = Watermark.open(files, log, Mode.READ)
    watermark.close()
    mark = watermark.mark
    firsts = [first for first in segment_firsts(files, log) if first <= mark.index]
    if mark.first_index <= mark.index and firsts[:1] != [mark.first_index]:
        raise CorruptRecord(segment_name(mark.first_index), 0, "the segment is missing")
    spans = pairwise([*firsts, mark.index + 1])
    return [(log / segment_name(first), first, following - 1) for first, following in spans]


def read_log(directory: Path, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[RecordBytes]:
    """Yield the synced records of a node's data directory, or of a ``log`` directory alone.

    Raises:
        CorruptRecord: A segment is missing or does not continue the one before.
        CorruptFile: The watermark is damaged or missing.
    """
    chain: int | None = None
    for path, first, last in synced_segments(directory):
        for chunk in read_segment(path, last_index=last, chunk_bytes=chunk_bytes):
            if chunk.first_index == first and chain is not None:
                _check_continues(chunk, chain)
            yield chunk
            chain = last_chain(chunk)


def _check_continues(chunk: RecordBytes, chain: int) -> None:
    if chunk.previous_chain != chain:
        raise CorruptRecord(
            chunk.segment,
            0,
            f"continues chain CRC {chunk.previous_chain:#010x}, the log has {chain:#010x}",
        )


def _header(file: BinaryIO, path: Path) -> SegmentHeader:
    try:
        header = decode_segment_header(os.pread(file.fileno(), SEGMENT_HEADER_BYTES, 0))
        if path.name != segment_name(header.first_index):
            raise ValueError(f"first index is {header.first_index}, the name says otherwise")
    except ValueError as error:
        raise CorruptRecord(path.name, 0, str(error)) from error
    return header


def _index(file: BinaryIO, header: SegmentHeader, path: Path) -> SegmentIndex | None:
    """Return the segment's index file if it is valid and fits the last record; else None."""
    try:
        index = decode_index(path.with_suffix(INDEX_SUFFIX).read_bytes())
        if (index.first_index, index.previous_chain) != (header.first_index, header.previous_chain):
            return None
        last = len(index.positions) - 1
        at = index.positions[last] * ALIGNMENT_BYTES
        found = decode_record_header(
            os.pread(file.fileno(), RECORD_HEADER_BYTES, at),
            0,
            chain=index.chains[last - 1] if last else index.previous_chain,
            index=index.first_index + last,
        )
        return index if at + record_size(found.length) == index.end else None
    except (ValueError, IndexError, FileNotFoundError):
        return None


def _indexed(
    file: BinaryIO, index: SegmentIndex, chunk_bytes: int
) -> Iterator[tuple[int, bytes, list[int]]]:
    """Yield (offset in the file, records, where they begin in there) by the index file."""
    starts = np.array([*index.positions, index.end // ALIGNMENT_BYTES], np.int64) * ALIGNMENT_BYTES
    at, count = 0, len(index.positions)
    while at < count:
        stop = int(np.searchsorted(starts, starts[at] + chunk_bytes, "right")) - 1
        stop = min(max(stop, at + 1), count)
        offset = int(starts[at])
        data = os.pread(file.fileno(), int(starts[stop]) - offset, offset)
        yield offset, data, (starts[at:stop] - offset).tolist()
        at = stop


def _followed(file: BinaryIO, chunk_bytes: int) -> Iterator[tuple[int, bytes, list[int]]]:
    """Yield the same from the lengths in the records, up to zeros or an incomplete record.

    An incomplete record is yielded last, so that `parse` reports it.
    """
    size, offset = os.fstat(file.fileno()).st_size, SEGMENT_HEADER_BYTES
    wanted = chunk_bytes = max(chunk_bytes, RECORD_HEADER_BYTES)
    while offset < size:
        data = os.pread(file.fileno(), wanted, offset)
        starts, end = follow(memoryview(data))
        if starts:
            yield offset, data[:end], starts
            offset, wanted = offset + end, chunk_bytes
        elif not any(data[:RECORD_HEADER_BYTES]):
            return
        elif offset + wanted < size:
            wanted = min(_first_size(data), size - offset)
        else:
            yield offset, data, [0]
            return


def _first_size(data: bytes) -> int:
    return record_size(int.from_bytes(data[4:8], "little"))


def _chain_at(data: bytes | memoryview, start: int) -> int:
    return int.from_bytes(data[start : start + 4], "little")


def last_chain(chunk: RecordBytes) -> int:
    """Return the chain CRC that the last record of *chunk* states; its positions are known."""
    positions = chunk.positions
    last = int(positions[-1]) * ALIGNMENT_BYTES if positions is not None else 0
    return _chain_at(memoryview(chunk.data), last)
