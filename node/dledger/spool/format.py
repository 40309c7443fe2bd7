r"""The file format of the spool: pure functions from values to bytes and back. No I/O here.

Its messages' payloads are in `payload`. Version 2 is written; version 1 is read: its file header
has no token, and its payloads are shorter. Each record says which its payload is.

All integers are little endian, every CRC is CRC32C. ``docs/internals/outage-spool.md`` says what a
crash during each write leaves.

Spool file ``<first sequence, 20 digits>.spool``: a header page, records, then zeros to its end::

    0     8    magic "DLGRSPL\0"
    8     4    format version (u32)
    12    4    length of the client id in bytes (u32)
    16    8    first sequence (u64)
    24    8    stamp: random bytes, the same in the whole spool
    32    256  client id, UTF-8, zero padded
    288   16   token: random bytes, by which the group knows the spool's lanes (version 1: none)
    304   4    CRC of bytes [0, 304) (version 1: at 288, of [0, 288))
    308   3788 zeros; records begin at 4096, so that no later write touches the header's page

Record, at a multiple of 8 bytes::

    0     8    stamp, by which a reader finds the next record after damaged bytes
    8     8    sequence (u64): 1, 2, 3, ... over all files of the spool
    16    4    payload length in bytes n (u32), without padding
    20    4    CRC of the payload
    24    4    format version of the payload (u32); 0 stands for 1
    28    4    CRC of bytes [0, 28)
    32    n    payload
    32+n  0-7  zeros up to the next multiple of 8

State slot, 512 bytes, two in ``state`` at bytes 0 and 4096::

    0     8    magic "DLGRSPS\0"
    8     4    format version (u32)
    12    4    zeros
    16    8    number (u64): the higher of two valid slots counts
    24    8    replayed (u64): every message up to this sequence was stored or rejected
    32    8    accepted (u64): every message up to this sequence was synced
    40    468  zeros
    508   4    CRC of bytes [0, 508)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from dledger.errors import InvalidArgument
from dledger.files.checked_json import VersionError

FORMAT_VERSION: Final = 2
VERSIONS: Final = (1, 2)
"""Those that are read."""
FILE_HEADER_BYTES: Final = 4096
RECORD_HEADER_BYTES: Final = 32
ALIGNMENT_BYTES: Final = 8
STAMP_BYTES: Final = 8
TOKEN_BYTES: Final = 16
MAX_CLIENT_ID_BYTES: Final = 256
SLOT_BYTES: Final = 512
SLOT_STRIDE_BYTES: Final = 4096
STATE_BYTES: Final = 2 * SLOT_STRIDE_BYTES

_FILE = struct.Struct("<8sIIQ8s256s16s")
_FILE_1 = struct.Struct("<8sIIQ8s256s")
_FILE_MAGIC = b"DLGRSPL\0"
_RECORD = struct.Struct("<8sQIII")
_SLOT = struct.Struct("<8sI4xQQQ468x")
_SLOT_MAGIC = b"DLGRSPS\0"
_U32 = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """The spool that a file belongs to, and the sequence of its first record.

    Attributes:
        client_id: See `identity.SpoolIdentity`.
        stamp: The same.
        token: The same; empty in version 1.
        first_sequence: As above.
    """

    client_id: str
    stamp: bytes
    token: bytes = b""
    first_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far the spool is replayed and synced; see the module's diagram."""

    number: int
    replayed: int
    accepted: int


class Found(NamedTuple):
    """An intact record: [offset, end) in the scanned bytes, and its payload of that version."""

    sequence: int
    offset: int
    end: int
    payload: bytes
    version: int


class Gap(NamedTuple):
    """Damaged bytes [offset, end) before an intact record, and their messages [first, last]."""

    offset: int
    end: int
    first: int
    last: int
    reason: str


@dataclass(slots=True)
class Scan:
    """The result of a scan.

    Attributes:
        records: The intact records, sequences ascending.
        gaps: The damage between them.
        end: The byte after the last intact record.
        fault: Why there is no record at *end*; "" if only zeros follow.
    """

    records: list[Found] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    end: int = 0
    fault: str = ""


def encode_file_header(header: FileHeader) -> bytes:
    """Return the header's page.

    Raises:
        InvalidArgument: The client id does not fit.
    """
    client_id = header.client_id.encode()
    if not 1 <= len(client_id) <= MAX_CLIENT_ID_BYTES:
        raise InvalidArgument(
            f"a spool's client id has 1 to {MAX_CLIENT_ID_BYTES} bytes, not {len(client_id)}"
        )
    fields = _FILE.pack(
        _FILE_MAGIC,
        FORMAT_VERSION,
        len(client_id),
        header.first_sequence,
        header.stamp,
        client_id,
        header.token,
    )
    return _with_crc(fields).ljust(FILE_HEADER_BYTES, b"\0")


def decode_file_header(page: bytes) -> FileHeader:
    """Parse a header page.

    Raises:
        VersionError: It has another format version.
        ValueError: It is torn, damaged, or not a header.
    """
    old = _version_in(page) == 1
    _check("spool file", page, (_FILE_1 if old else _FILE).size, _FILE_MAGIC)
    _, _, length, first, stamp, client_id = _FILE_1.unpack_from(page)
    return FileHeader(
        client_id=client_id[:length].decode(),
        stamp=stamp,
        token=b"" if old else page[_FILE_1.size : _FILE.size],
        first_sequence=first,
    )


def encode_state(state: State) -> bytes:
    """Return the slot of *state*."""
    return _with_crc(
        _SLOT.pack(_SLOT_MAGIC, FORMAT_VERSION, state.number, state.replayed, state.accepted)
    )


def decode_state(slot: bytes) -> State:
    """Parse a state slot. Raises like `decode_file_header`."""
    _check("spool state", slot, _SLOT.size, _SLOT_MAGIC)
    _, _, number, replayed, accepted = _SLOT.unpack_from(slot)
    return State(number=number, replayed=replayed, accepted=accepted)


def _with_crc(fields: bytes) -> bytes:
    return fields + _U32.pack(crc32c(fields))


def _version_in(data: bytes) -> int:
    """Return the version that a header claims, of which its length depends; 0 if it is cut off."""
    return int.from_bytes(data[8:12], "little")


def _check(what: str, data: bytes, size: int, magic: bytes) -> None:
    if len(data) < size + 4:
        raise ValueError(f"{what} header has {len(data)} of {size + 4} bytes")
    expected = crc32c(memoryview(data)[:size])
    (found,) = _U32.unpack_from(data, size)
    if found != expected:
        raise ValueError(f"{what} header CRC32C is {found:#010x}, expected {expected:#010x}")
    if data[:8] != magic:
        raise ValueError(f"not a {what}: magic is {data[:8]!r}, expected {magic!r}")
    version = _version_in(data)
    if version not in VERSIONS:
        raise VersionError(f"{what} has format version {version}, this one reads {FORMAT_VERSION}")


def record_size(payload_length: int) -> int:
    """Return the size of a record with header and padding, in bytes."""
    return RECORD_HEADER_BYTES + payload_length + (-payload_length % ALIGNMENT_BYTES)


def encode_record(payload: bytes, *, sequence: int, stamp: bytes) -> bytes:
    """Return the padded record of a payload that `payload.encode_message` returned."""
    fields = _RECORD.pack(stamp, sequence, len(payload), crc32c(payload), FORMAT_VERSION)
    padding = bytes(-len(payload) % ALIGNMENT_BYTES)
    return b"".join((_with_crc(fields), payload, padding))


def decode_record(data: bytes, offset: int, *, stamp: bytes) -> Found:
    """Parse the record at *offset*.

    Raises:
        ValueError: It is not an intact record of this spool.
    """
    if len(data) < offset + RECORD_HEADER_BYTES:
        raise ValueError(f"the file ends in a record header, at byte {len(data)} of what was read")
    header = data[offset : offset + RECORD_HEADER_BYTES]
    found_stamp, sequence, length, crc, version = _RECORD.unpack_from(header)
    expected = crc32c(header[: _RECORD.size])
    (header_crc,) = _U32.unpack_from(header, _RECORD.size)
    if header_crc != expected:
        raise ValueError(f"record header CRC32C is {header_crc:#010x}, expected {expected:#010x}")
    if found_stamp != stamp:
        raise ValueError("the record belongs to another spool")
    start = offset + RECORD_HEADER_BYTES
    payload = data[start : start + length]
    if len(payload) < length:
        raise ValueError(f"the file ends in the payload of message {sequence}")
    if crc32c(payload) != crc:
        raise ValueError(f"payload of message {sequence} does not have CRC32C {crc:#010x}")
    return Found(sequence, offset, offset + record_size(length), payload, version or 1)


def scan(
    data: bytes, *, stamp: bytes, first: int | None, limit: int | None = None, start: int = 0
) -> Scan:
    """Find every intact record in *data* from *start* on, where a record should begin.

    Args:
        data: Records, followed by zeros or by a torn or old write.
        stamp: The spool's.
        first: The sequence that the first record should have. None: records come in any order, as
            in ``rejected/``, where lanes write beside each other; gaps name no messages then.
        limit: Sequences from here on are not part of the file; None: no limit.
        start: A multiple of 8.
    """
    result = Scan(end=start)
    expected = first
    while result.end < len(data):
        try:
            found = _expected(data, result.end, stamp, expected, limit)
        except ValueError as error:
            result.fault = str(error)
            behind = _next_record(data, result.end, stamp, expected, limit)
            if behind is None:
                break
            found = behind
        if found.offset != result.end or expected not in (None, found.sequence):
            lost = (1, 0) if expected is None else (expected, found.sequence - 1)
            reason = result.fault or f"messages before {found.sequence} are missing"
            result.gaps.append(Gap(result.end, found.offset, *lost, reason))
            result.fault = ""
        result.records.append(found)
        result.end = found.end
        expected = None if expected is None else found.sequence + 1
    if not data[result.end :].strip(b"\0"):
        result.fault = ""
    return result


def _expected(
    data: bytes, offset: int, stamp: bytes, first: int | None, limit: int | None
) -> Found:
    """Return the record at *offset*; raise ValueError unless its sequence is in [first, limit)."""
    found = decode_record(data, offset, stamp=stamp)
    if found.sequence < (first or 0) or (limit is not None and found.sequence >= limit):
        raise ValueError(f"a record of message {found.sequence} is not expected here")
    return found


def _next_record(
    data: bytes, start: int, stamp: bytes, first: int | None, limit: int | None
) -> Found | None:
    """Return the first intact record after *start*."""
    for offset in _candidates(data, start, stamp):
        with suppress(ValueError):
            return _expected(data, offset, stamp, first, limit)
    return None


def _candidates(data: bytes, start: int, stamp: bytes) -> Iterator[int]:
    """Yield every aligned offset after *start* where the stamp is."""
    offset = data.find(stamp, start + 1)
    while offset >= 0:
        if offset % ALIGNMENT_BYTES == 0:
            yield offset
        offset = data.find(stamp, offset + 1)
