r"""The file format of the spool: pure functions from values to bytes and back. No I/O here.

All integers are little endian, every CRC is CRC32C. ``docs/internals/outage-spool.md`` says what a
crash during each write leaves.

Spool file ``<first sequence, 20 digits>.spool``: a header page, records, then zeros to its end::

    0     8    magic "DLGRSPL\0"
    8     4    format version (u32)
    12    4    length of the client id in bytes (u32)
    16    8    first sequence (u64)
    24    8    stamp: random bytes, the same in the whole spool
    32    256  client id, UTF-8, zero padded
    288   4    CRC of bytes [0, 288)
    292   3804 zeros; records begin at 4096, so that no later write touches the header's page

Record, at a multiple of 8 bytes::

    0     8    stamp, by which a reader finds the next record after damaged bytes
    8     8    sequence (u64): 1, 2, 3, ... over all files of the spool
    16    4    payload length in bytes n (u32), without padding
    20    4    CRC of the payload
    24    4    zeros
    28    4    CRC of bytes [0, 28)
    32    n    payload
    32+n  0-7  zeros up to the next multiple of 8

Payload, one message::

    0     8    born at, Unix milliseconds (i64)
    8     4    queue id (i32); -1: the leader chooses
    12    2    number of keys k (u16)
    14    2    number of properties p (u16)
    16    4m   byte lengths of m = 4 + k + 2p strings (u32)
    ..         the strings, UTF-8: topic, message id, tag, reason (in rejected files, else ""),
               keys, then each property's name and value
    ..         body, up to the end

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
from dledger.types import Record

FORMAT_VERSION: Final = 1
FILE_HEADER_BYTES: Final = 4096
RECORD_HEADER_BYTES: Final = 32
ALIGNMENT_BYTES: Final = 8
STAMP_BYTES: Final = 8
MAX_CLIENT_ID_BYTES: Final = 256
SLOT_BYTES: Final = 512
SLOT_STRIDE_BYTES: Final = 4096
STATE_BYTES: Final = 2 * SLOT_STRIDE_BYTES

_FILE = struct.Struct("<8sIIQ8s256s")
_FILE_MAGIC = b"DLGRSPL\0"
_RECORD = struct.Struct("<8sQII4x")
_PAYLOAD = struct.Struct("<qiHH")
_SLOT = struct.Struct("<8sI4xQQQ468x")
_SLOT_MAGIC = b"DLGRSPS\0"
_U32 = struct.Struct("<I")
_FIXED_STRINGS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message and its destination; *reason* says why the group refused it, if it did."""

    topic: str
    record: Record
    queue_id: int = -1
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """The client that a spool file belongs to, and the sequence of its first record."""

    client_id: str
    stamp: bytes
    first_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far the spool is replayed and synced; see the module's diagram."""

    number: int
    replayed: int
    accepted: int


class Found(NamedTuple):
    """An intact record: [offset, end) in the scanned bytes, and its payload."""

    sequence: int
    offset: int
    end: int
    payload: bytes


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
    )
    return _with_crc(fields).ljust(FILE_HEADER_BYTES, b"\0")


def decode_file_header(page: bytes) -> FileHeader:
    """Parse a header page.

    Raises:
        VersionError: It has another format version.
        ValueError: It is torn, damaged, or not a header.
    """
    _check("spool file", page, _FILE.size, _FILE_MAGIC)
    _, _, length, first, stamp, client_id = _FILE.unpack_from(page)
    return FileHeader(client_id=client_id[:length].decode(), stamp=stamp, first_sequence=first)


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


def _check(what: str, data: bytes, size: int, magic: bytes) -> None:
    if len(data) < size + 4:
        raise ValueError(f"{what} header has {len(data)} of {size + 4} bytes")
    expected = crc32c(memoryview(data)[:size])
    (found,) = _U32.unpack_from(data, size)
    if found != expected:
        raise ValueError(f"{what} header CRC32C is {found:#010x}, expected {expected:#010x}")
    if data[:8] != magic:
        raise ValueError(f"not a {what}: magic is {data[:8]!r}, expected {magic!r}")
    (version,) = _U32.unpack_from(data, 8)
    if version != FORMAT_VERSION:
        raise VersionError(f"{what} has format version {version}, this one reads {FORMAT_VERSION}")


def record_size(payload_length: int) -> int:
    """Return the size of a record with header and padding, in bytes."""
    return RECORD_HEADER_BYTES + payload_length + (-payload_length % ALIGNMENT_BYTES)


def encode_record(payload: bytes, *, sequence: int, stamp: bytes) -> bytes:
    """Return the padded record of a payload that `encode_message` returned."""
    fields = _RECORD.pack(stamp, sequence, len(payload), crc32c(payload))
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
    found_stamp, sequence, length, crc = _RECORD.unpack_from(header)
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
    return Found(sequence, offset, offset + record_size(length), payload)


def scan(
    data: bytes, *, stamp: bytes, first: int, limit: int | None = None, start: int = 0
) -> Scan:
    """Find every intact record in *data* from *start* on, where a record should begin.

    Args:
        data: Records, followed by zeros or by a torn or old write.
        stamp: The spool's.
        first: The sequence that the first record should have.
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
        if found.offset != result.end or found.sequence != expected:
            lost = found.sequence - 1
            reason = result.fault or f"messages before {found.sequence} are missing"
            result.gaps.append(Gap(result.end, found.offset, expected, lost, reason))
            result.fault = ""
        result.records.append(found)
        result.end, expected = found.end, found.sequence + 1
    if not data[result.end :].strip(b"\0"):
        result.fault = ""
    return result


def _expected(data: bytes, offset: int, stamp: bytes, first: int, limit: int | None) -> Found:
    """Return the record at *offset*; raise ValueError unless its sequence is in [first, limit)."""
    found = decode_record(data, offset, stamp=stamp)
    if found.sequence < first or (limit is not None and found.sequence >= limit):
        raise ValueError(f"a record of message {found.sequence} is not expected here")
    return found


def _next_record(
    data: bytes, start: int, stamp: bytes, first: int, limit: int | None
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


def encode_message(message: Message) -> bytes:
    """Return the payload of a message.

    Raises:
        InvalidArgument: A string is not valid Unicode, or there are too many keys or properties.
    """
    record = message.record
    pairs = [text for item in record.properties.items() for text in item]
    texts = (message.topic, record.message_id, record.tag, message.reason, *record.keys, *pairs)
    try:
        strings = [text.encode() for text in texts]
        fixed = _PAYLOAD.pack(
            record.born_at_ms, message.queue_id, len(record.keys), len(record.properties)
        )
    except (UnicodeEncodeError, struct.error) as error:
        raise InvalidArgument(f"message {record.message_id!r} cannot be spooled: {error}") from None
    lengths = struct.pack(f"<{len(strings)}I", *map(len, strings))
    return b"".join((fixed, lengths, *strings, record.body))


def topic_of(payload: bytes) -> str:
    """Return the topic of an intact record's message without decoding the rest of it.

    Raises:
        ValueError: `encode_message` does not return such a payload.
    """
    try:
        _, _, keys, pairs = _PAYLOAD.unpack_from(payload)
        (length,) = _U32.unpack_from(payload, _PAYLOAD.size)
    except struct.error as error:
        raise ValueError(f"the payload is not a message: {error}") from None
    start = _PAYLOAD.size + 4 * (_FIXED_STRINGS + keys + 2 * pairs)
    return payload[start : start + length].decode()


def decode_message(payload: bytes) -> Message:
    """Return the message of an intact record.

    Raises:
        ValueError: `encode_message` does not return such a payload.
    """
    try:
        born_at_ms, queue_id, keys, pairs = _PAYLOAD.unpack_from(payload)
        count = _FIXED_STRINGS + keys + 2 * pairs
        lengths = struct.unpack_from(f"<{count}I", payload, _PAYLOAD.size)
    except struct.error as error:
        raise ValueError(f"the payload is not a message: {error}") from None
    position = _PAYLOAD.size + 4 * count
    if position + sum(lengths) > len(payload):
        raise ValueError("the payload is not a message: its strings are longer than it is")
    texts: list[str] = []
    for length in lengths:
        texts.append(payload[position : position + length].decode())
        position += length
    topic, message_id, tag, reason = texts[:_FIXED_STRINGS]
    rest = texts[_FIXED_STRINGS + keys :]
    return Message(
        topic=topic,
        queue_id=queue_id,
        reason=reason,
        record=Record(
            body=payload[position:],
            message_id=message_id,
            tag=tag,
            keys=tuple(texts[_FIXED_STRINGS : _FIXED_STRINGS + keys]),
            properties=dict(zip(rest[::2], rest[1::2], strict=True)),
            born_at_ms=born_at_ms,
        ),
    )
