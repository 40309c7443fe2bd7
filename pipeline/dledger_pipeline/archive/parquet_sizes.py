"""Checks the decompressed size of a Parquet object before it is decompressed. Pure.

A store is not trusted: an object with the right hash may still be a decompression bomb. The sizes
in Parquet's footer are compared with the manifest's, and those in each page's own header with the
footer's, since a reader allocates what the page states. Only encodings are accepted that take at
least as much room as their values: a dictionary or shared prefixes would make a small page a large
column. Used by `archive` and `places_objects`.

The header of a page is a struct in Thrift's compact protocol (``PageHeader`` of the format's
``parquet.thrift``): varints, zigzag numbers, fields by the difference of their ids.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from dledger_pipeline.errors import CorruptObject

MAX_INFLATED_BYTES: Final = 1 << 30
"""Of one object; ours are made of 64 to 128 MiB of records."""
MAX_FOOTER_BYTES: Final = 16 << 20
_MAX_LIST: Final = 1 << 17
"""Elements of a list in a footer or a header, such as column chunks of all row groups."""
_MAGIC: Final = b"PAR1"
_PLAIN, _RLE, _DELTA_BINARY_PACKED = 0, 3, 5
_ENCODINGS: Final = frozenset({_PLAIN, _RLE, _DELTA_BINARY_PACKED})
_TYPE, _INFLATED, _COMPRESSED, _PAGE_V1, _PAGE_V2 = 1, 2, 3, 5, 8
_DATA_PAGE, _DATA_PAGE_V2 = 0, 3
_NUM_VALUES, _ENCODING_V1, _ENCODING_V2 = 1, 2, 4
_MAX_DEPTH: Final = 8
_MAX_VARINT_BYTES: Final = 10


class _Malformed(Exception):
    """The footer or a page's header is malformed."""


def opened(
    data: pa.Buffer, name: str, *, schema: pa.Schema, rows: int, inflated_bytes: int
) -> pq.ParquetFile:
    """Open the object *data* as a Parquet file, after checking its decompressed size.

    Args:
        data: The object's bytes.
        name: The object's, for errors.
        schema: What it must have.
        rows: How many rows it must have.
        inflated_bytes: What all of its pages may take at most, their headers included.

    Raises:
        CorruptObject: It is not Parquet, or its schema, rows or sizes are others.
    """
    try:
        file = _footer(data)
        _check_shape(file, name, schema=schema, rows=rows, inflated_bytes=inflated_bytes)
        _check_pages(data, file.metadata)
    except (pa.ArrowException, OSError, _Malformed, UnicodeDecodeError) as error:
        raise CorruptObject(name, f"not readable as Parquet: {error}") from error
    return file


def inflated_bytes(data: pa.Buffer) -> int:
    """Return what the pages of an object that we wrote take, their headers included."""
    return _stated(pq.ParquetFile(pa.BufferReader(data)).metadata)


def stated_rows(data: pa.Buffer, name: str) -> int:
    """Return how many rows an object says that it has. Raises CorruptObject."""
    try:
        return int(_footer(data).metadata.num_rows)
    except (pa.ArrowException, OSError, _Malformed) as error:
        raise CorruptObject(name, f"not readable as Parquet: {error}") from error


def _footer(data: pa.Buffer) -> pq.ParquetFile:
    tail = bytes(memoryview(data)[-8:])
    size_bytes = int.from_bytes(tail[:4], "little")
    if len(tail) < 8 or tail[4:] != _MAGIC:
        raise _Malformed("it does not end in PAR1")
    if size_bytes > min(data.size, MAX_FOOTER_BYTES):
        raise _Malformed(f"its footer would have {size_bytes} bytes")
    limits = {"thrift_container_size_limit": _MAX_LIST, "thrift_string_size_limit": 1 << 20}
    try:
        return pq.ParquetFile(pa.BufferReader(data), **limits)
    except UnicodeDecodeError as error:  # in a key of its metadata
        raise _Malformed(f"its footer has a text that is not UTF-8: {error}") from error


def _check_shape(
    file: pq.ParquetFile, name: str, *, schema: pa.Schema, rows: int, inflated_bytes: int
) -> None:
    if not file.schema_arrow.equals(schema, check_metadata=False):
        raise CorruptObject(name, f"its columns are {file.schema_arrow.names!r:.200}")
    if file.metadata.num_rows != rows:
        found = file.metadata.num_rows
        raise CorruptObject(name, f"it has {found} entries, the manifest says {rows}")
    stated, most = _stated(file.metadata), min(inflated_bytes, MAX_INFLATED_BYTES)
    if stated > most:
        raise CorruptObject(
            name, f"it would inflate to {stated} bytes, more than the {most} of its manifest"
        )


def _stated(metadata: Any) -> int:
    return sum(
        metadata.row_group(group).column(column).total_uncompressed_size
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    )


def _check_pages(data: pa.Buffer, metadata: Any) -> None:
    view = memoryview(data).cast("B")
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            _check_column(view, metadata.row_group(group).column(column))


def _check_column(view: memoryview, chunk: Any) -> None:
    """Check a column chunk's pages against the footer."""
    if chunk.has_dictionary_page:
        raise _Malformed(f"column {chunk.path_in_schema} has a dictionary")
    at, inflated, values = chunk.data_page_offset, 0, 0
    end = at + chunk.total_compressed_size
    if not 0 <= at <= end <= len(view):
        raise _Malformed(f"column {chunk.path_in_schema} lies outside of the object")
    while at < end:
        header, body_at = _Thrift(view[:end], at).struct()
        page = _data_page(header)
        inflated += body_at - at + _size(header, _INFLATED)
        values += _size(page, _NUM_VALUES)
        at = body_at + _size(header, _COMPRESSED)
    if at != end or inflated > chunk.total_uncompressed_size or values != chunk.num_values:
        raise _Malformed(
            f"column {chunk.path_in_schema} has pages of {inflated} bytes and {values} values, "
            f"its footer says {chunk.total_uncompressed_size} and {chunk.num_values}"
        )


def _data_page(header: dict[int, Any]) -> dict[int, Any]:
    """Return the part of a page's header about its values; only pages of data are accepted."""
    kind = header.get(_TYPE)
    if kind == _DATA_PAGE:
        page, encoding_at = header.get(_PAGE_V1), _ENCODING_V1
    elif kind == _DATA_PAGE_V2:
        page, encoding_at = header.get(_PAGE_V2), _ENCODING_V2
    else:
        raise _Malformed(f"a page of type {kind!r}")
    encoding = page.get(encoding_at) if isinstance(page, dict) else None
    if not isinstance(page, dict) or not isinstance(encoding, int) or encoding not in _ENCODINGS:
        raise _Malformed("a page in an encoding that may inflate")
    return page


def _size(fields: dict[int, Any], number: int) -> int:
    value = fields.get(number)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _Malformed(f"field {number} of a page's header is {value!r:.40}")
    return value


class _Thrift:
    """Reads one struct of the compact protocol; the bytes may be anything."""

    def __init__(self, view: memoryview, at: int) -> None:
        self._view, self._at = view, at

    def struct(self) -> tuple[dict[int, Any], int]:
        """Return the fields by number, and where the bytes after the struct begin."""
        return self._struct(_MAX_DEPTH), self._at

    def _struct(self, depth: int) -> dict[int, Any]:
        if not depth:
            raise _Malformed("structs are nested too deeply")
        fields, number = dict[int, Any](), 0
        while first := self._byte():
            number = number + (first >> 4) if first >> 4 else self._zigzag()
            if number in fields:
                raise _Malformed(f"field {number} of a page's header twice")
            fields[number] = self._value(first & 15, depth, is_field=True)
        return fields

    def _value(self, kind: int, depth: int, *, is_field: bool = False) -> Any:
        match kind:
            case 1 | 2:  # in a struct, the kind holds the value
                return kind == 1 if is_field else self._byte() == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._zigzag()
            case 7 | 8:
                return self._skipped(8 if kind == 7 else self._varint())
            case 9 | 10:
                return self._list(depth)
            case 12:
                return self._struct(depth - 1)
        raise _Malformed(f"a value of kind {kind}")

    def _list(self, depth: int) -> list[Any]:
        first = self._byte()
        size = first >> 4 if first >> 4 != 15 else self._varint()
        if size > _MAX_LIST or not depth:
            raise _Malformed(f"a list of {size}")
        return [self._value(first & 15, depth - 1) for _ in range(size)]

    def _byte(self) -> int:
        self._skipped(1)
        return self._view[self._at - 1]

    def _skipped(self, size: int) -> None:
        if size > len(self._view) - self._at:
            raise _Malformed("a page's header is cut short")
        self._at += size

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise _Malformed("a number of more than 10 bytes")

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
