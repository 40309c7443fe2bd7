"""Raft messages as bytes, little-endian, one frame per message.

::

    frame      := type u8 | term u64 | fields of the type
    AppendReq  := previous_index u64 | previous_term u64 | previous_chain u32 | last_chain u32
                | commit_index u64 | count u32 | entry*
    Install    := last_index u64 | last_term u64 | last_chain u32 | size_bytes u64 | crc32c u32
                | offset u64 | data
    Report      := round u64 | JSON, `common.reports`
    entry      := term u64 | index u64 | timestamp_ms i64 | crc32c u32 | kind u8 | length u32 | data

Terms, indexes and other counts are below 2^62 (`types.MAX_NUMBER`): no working member sends a
larger one, and a number above it could overflow its field once incremented.

Types 14 and 15 are no messages of Raft: the members' reports, which travel beside it.

A type's layout never changes. A newer version adds a new type, which an older one drops as if it
were lost in transit: Raft tolerates the loss of any message. Entries are different: an entry kind
that this version's consensus does not know stops the node (`features`).

Sender and recipient are not in the frame: the stream's handshake names them once. Entry data is
passed through as it was proposed; its CRC is checked once, here, on receipt.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import is_
from typing import Final

from crc32c import crc32c

from dledger.common.features import FEATURES
from dledger.common.reports import Report
from dledger.errors import InvalidArgument
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    DiscardRequest,
    DiscardResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.replica.reports import ReportRequest, ReportResponse
from dledger.types import MAX_NUMBER, Entry, EntryKind, NodeId, SnapshotInfo

_HEAD: Final = struct.Struct("<BQ")
_APPEND: Final = struct.Struct("<QQIIQI")
_COUNT: Final = struct.Struct("<I")
_ENTRY: Final = struct.Struct("<QQqIBI")

_FIELDS: Final[dict[type[Message], tuple[int, struct.Struct, tuple[str, ...]]]] = {
    PreVoteRequest: (1, struct.Struct("<QQI"), ("last_index", "last_term", "last_chain")),
    PreVoteResponse: (2, struct.Struct("<?"), ("granted",)),
    VoteRequest: (
        3,
        struct.Struct("<QQI?"),
        ("last_index", "last_term", "last_chain", "transfer"),
    ),
    VoteResponse: (4, struct.Struct("<?"), ("granted",)),
    AppendResponse: (
        6,
        struct.Struct("<?QIQQ"),
        ("success", "match_index", "match_chain", "conflict_term", "conflict_index"),
    ),
    HeartbeatRequest: (7, struct.Struct("<QIQ"), ("commit_index", "commit_chain", "round")),
    HeartbeatResponse: (8, struct.Struct("<Q"), ("round",)),
    TimeoutNow: (9, struct.Struct("<"), ()),
    InstallSnapshotResponse: (
        11,
        struct.Struct("<Q?Q"),
        ("last_index", "accepted", "offset"),
    ),
    DiscardRequest: (12, struct.Struct("<QQ?"), ("index", "entry_term", "firm")),
    DiscardResponse: (13, struct.Struct("<QQ??"), ("index", "entry_term", "firm", "lacks")),
}
_APPEND_TYPE: Final = 5
_INSTALL_TYPE: Final = 10
_INSTALL: Final = struct.Struct("<QQIQIQ")
_REPORTS: Final[dict[int, type[ReportRequest] | type[ReportResponse]]] = {
    14: ReportRequest,
    15: ReportResponse,
}
_REPORT_TYPE: Final = {cls: number for number, cls in _REPORTS.items()}
_ROUND: Final = struct.Struct("<Q")
_BY_TYPE: Final = {number: (cls, form, names) for cls, (number, form, names) in _FIELDS.items()}


class BadFrame(ValueError):
    """A peer sent bytes that are not a Raft message; the stream is closed."""


class UnknownMessage(ValueError):
    """A peer of a newer version sent a message of an unknown type; it is dropped.

    Attributes:
        number: Its type.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"a message of type {number}, which this version does not know")
        self.number = number


def encode(message: Message) -> bytes:
    """Return one frame."""
    if isinstance(message, AppendRequest):
        return _encode_append(message)
    if isinstance(message, InstallSnapshotRequest):
        return _encode_install(message)
    if isinstance(message, ReportRequest | ReportResponse):
        head = _HEAD.pack(_REPORT_TYPE[type(message)], message.term)
        return head + _ROUND.pack(message.round) + message.report.encode()
    number, form, names = _FIELDS[type(message)]
    values = map(getattr, repeat(message), names)
    return _HEAD.pack(number, message.term) + form.pack(*values)


class Encoder:
    """Encodes messages; an append for several followers is encoded once.

    It keeps the newest frame with entries in memory.
    """

    def __init__(self) -> None:
        self._last: AppendRequest | None = None
        self._frame = b""

    def encode(self, message: Message) -> bytes:
        """Return one frame."""
        if not isinstance(message, AppendRequest) or not message.entries:
            return encode(message)
        if self._last is None or not _says_the_same(message, self._last):
            self._last, self._frame = message, encode(message)
        return self._frame


def _says_the_same(one: AppendRequest, other: AppendRequest) -> bool:
    """Whether two appends differ in nothing but the recipient."""
    return (
        one.previous_index == other.previous_index
        and one.term == other.term
        and one.previous_term == other.previous_term
        and (one.previous_chain, one.last_chain) == (other.previous_chain, other.last_chain)
        and one.commit_index == other.commit_index
        and len(one.entries) == len(other.entries)
        and all(map(is_, one.entries, other.entries))
    )


def decode(frame: bytes | memoryview, *, sender: NodeId, recipient: NodeId) -> Message:
    """Parse one frame; the message keeps no reference to it.

    Raises:
        BadFrame: It is truncated, a number is out of range, or an entry fails its CRC.
        UnknownMessage: The type is that of a newer version.
        NewerCommand: An entry's kind is unknown to this version's consensus; this node must stop.
    """
    try:
        number, term = _HEAD.unpack_from(frame)
        if number == _APPEND_TYPE:
            return _decode_append(frame, term, sender, recipient)
        if number == _INSTALL_TYPE:
            return _decode_install(frame, term, sender, recipient)
        if number in _REPORTS:
            return _decode_report(_REPORTS[number], frame, term, sender, recipient)
        if number not in _BY_TYPE:
            raise UnknownMessage(number)
        cls, form, names = _BY_TYPE[number]
        if len(frame) != _HEAD.size + form.size:
            raise BadFrame(f"{cls.__name__} has the wrong size: {len(frame)} bytes")
        found = form.unpack_from(frame, _HEAD.size)
        _check_range(term, *found)
        values = dict(zip(names, found, strict=True))
    except struct.error as error:
        raise BadFrame(f"not a Raft message: {frame[:16].hex()}") from error
    build: Callable[..., Message] = cls
    return build(sender=sender, recipient=recipient, term=term, **values)


def _encode_append(message: AppendRequest) -> bytes:
    parts = [
        _HEAD.pack(_APPEND_TYPE, message.term),
        _APPEND.pack(
            message.previous_index,
            message.previous_term,
            message.previous_chain,
            message.last_chain,
            message.commit_index,
            len(message.entries),
        ),
    ]
    for entry in message.entries:
        parts.append(_entry_header(entry))
        parts.append(entry.data)
    return b"".join(parts)


def _encode_install(message: InstallSnapshotRequest) -> bytes:
    info = message.info
    fields = _INSTALL.pack(
        info.last_index,
        info.last_term,
        info.last_chain,
        info.size_bytes,
        info.crc32c,
        message.offset,
    )
    return _HEAD.pack(_INSTALL_TYPE, message.term) + fields + message.data


def _decode_install(
    frame: bytes | memoryview, term: int, sender: NodeId, recipient: NodeId
) -> InstallSnapshotRequest:
    """Parse a snapshot chunk; the whole snapshot is checked by its CRC before installation."""
    index, last_term, chain, size_bytes, crc, offset = _INSTALL.unpack_from(frame, _HEAD.size)
    _check_range(term, index, last_term, size_bytes, offset)
    return InstallSnapshotRequest(
        sender=sender,
        recipient=recipient,
        term=term,
        info=SnapshotInfo(
            last_index=index,
            last_term=last_term,
            last_chain=chain,
            size_bytes=size_bytes,
            crc32c=crc,
        ),
        offset=offset,
        data=bytes(frame[_HEAD.size + _INSTALL.size :]),
    )


def _decode_report(
    cls: type[ReportRequest] | type[ReportResponse],
    frame: bytes | memoryview,
    term: int,
    sender: NodeId,
    recipient: NodeId,
) -> ReportRequest | ReportResponse:
    (number,) = _ROUND.unpack_from(frame, _HEAD.size)
    _check_range(term, number)
    try:
        report = Report.decode(bytes(frame[_HEAD.size + _ROUND.size :]))
    except InvalidArgument as error:
        raise BadFrame(str(error)) from error
    return cls(sender=sender, recipient=recipient, term=term, round=number, report=report)


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Return entries alone: ``count u32 | entry*``."""
    parts = [_COUNT.pack(len(entries))]
    for entry in entries:
        parts += (_entry_header(entry), entry.data)
    return b"".join(parts)


def decode_entries(frame: bytes) -> tuple[Entry, ...]:
    """Parse the result of `encode_entries`, checking each entry's CRC.

    Raises:
        BadFrame: It is truncated or damaged.
        NewerCommand: An entry's kind is unknown to this version's consensus.
    """
    try:
        (count,) = _COUNT.unpack_from(frame)
        return _decode_entries(frame, _COUNT.size, count)
    except struct.error as error:
        raise BadFrame(f"entries are truncated: {error}") from error


def _entry_header(entry: Entry) -> bytes:
    return _ENTRY.pack(
        entry.term,
        entry.index,
        entry.timestamp_ms,
        entry.crc32c,
        entry.kind,
        len(entry.data),
    )


def _decode_append(
    frame: bytes | memoryview, term: int, sender: NodeId, recipient: NodeId
) -> AppendRequest:
    fields = _APPEND.unpack_from(frame, _HEAD.size)
    previous_index, previous_term, previous_chain, last_chain, commit_index, count = fields
    _check_range(term, previous_index, previous_term, commit_index)
    entries = _decode_entries(frame, _HEAD.size + _APPEND.size, count)
    _check_sequence(entries, previous_index)
    return AppendRequest(
        sender=sender,
        recipient=recipient,
        term=term,
        previous_index=previous_index,
        previous_term=previous_term,
        previous_chain=previous_chain,
        last_chain=last_chain,
        commit_index=commit_index,
        entries=entries,
    )


def _decode_entries(frame: bytes | memoryview, start: int, count: int) -> tuple[Entry, ...]:
    view, entries = memoryview(frame), list[Entry]()
    for _ in range(count):
        term, index, timestamp_ms, crc, kind, length = _ENTRY.unpack_from(frame, start)
        _check_range(term, index, timestamp_ms)
        start += _ENTRY.size
        data = bytes(view[start : start + length])
        start += length
        if len(data) != length or crc32c(data) != crc:
            raise BadFrame(f"entry {index} (term {term}) fails its CRC32C")
        FEATURES.check_entry(kind, index, data)
        entries.append(
            Entry(
                term=term,
                index=index,
                kind=EntryKind(kind),
                timestamp_ms=timestamp_ms,
                crc32c=crc,
                data=data,
            )
        )
    if start != len(frame):
        raise BadFrame(f"{len(frame) - start} trailing bytes after the last entry")
    return tuple(entries)


def _check_range(*numbers: int) -> None:
    if max(numbers, default=0) >= MAX_NUMBER:
        raise BadFrame(f"the number {max(numbers)} is out of range")


def _check_sequence(entries: tuple[Entry, ...], previous_index: int) -> None:
    for position, entry in enumerate(entries, start=previous_index + 1):
        if entry.index != position:
            raise BadFrame(f"expected entry {position}, got entry {entry.index}")
