"""The bytes of a snapshot file.

::

    0          8         12        20        28        32        40        48        52        56
    +----------+---------+---------+---------+---------+---------+---------+---------+---------+
    | magic    | format  | applied | applied | applied | base    | base    | base    | length  |
    | DLGRSNP0 | version | index   | term    | chain   | index   | term    | chain   | of who  |
    |          | u32     |         |         | u32     |         |         | u32     | u32     |
    +----------+---------+---------+---------+---------+---------+---------+---------+---------+
    followed by
    +---------------------+---------------------------------------+---------------+---------------+
    | who: UTF-8 JSON     | body: the state, as `BrokerState`     | bytes in all  | CRC32C of all |
    |                     | encodes it                            | u64           | before it     |
    +---------------------+---------------------------------------+---------------+---------------+

Integers are little endian, 64 bits unless stated otherwise. *who* is
``{"group": id, "memberships": [[index, the entry's data], ...]}``, oldest first. Length and CRC
come last, so that the state can be written while it is being encoded. Every format has the magic,
the version and the CRC in these places, so that damage can be told from a newer version.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from dledger.common.features import FEATURES
from dledger.errors import NewerFormat
from dledger.store.format import Base
from dledger.types import EntryKind, Membership

FORMAT_VERSION: Final = 2
_MAGIC: Final = b"DLGRSNP0"
_PREFIX: Final = struct.Struct("<8sI")
_FIELDS: Final = struct.Struct("<QQIQQII")
_SIZE: Final = struct.Struct("<Q")
_CRC: Final = struct.Struct("<I")
_PIECE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The broker's state at one entry, and how much of the log it needs.

    Attributes:
        group_id: The group whose state it is.
        applied: The last entry that the state covers.
        base: The entry before the oldest one whose messages the state still refers to. A node needs
            only this state and a log that begins after *base*.
        memberships: All memberships up to *applied*, as (index, membership), oldest first.
        body: The encoded state; empty if it is still to be encoded.
    """

    group_id: str
    applied: Base
    base: Base
    memberships: tuple[tuple[int, Membership], ...]
    body: bytes | memoryview


def encode_snapshot(snapshot: Snapshot, body: Iterable[bytes] | None = None) -> Iterator[bytes]:
    """Yield the file's bytes; equal snapshots give equal bytes.

    Args:
        snapshot: The snapshot.
        body: The pieces of its state, if they are encoded on the way instead of held in it.
    """
    applied, base = snapshot.applied, snapshot.base
    rows = [[index, one.encode().decode()] for index, one in snapshot.memberships]
    fields = {"group": snapshot.group_id, "memberships": rows}
    who = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    places = (applied.index, applied.term, applied.chain, base.index, base.term, base.chain)
    head = _PREFIX.pack(_MAGIC, FORMAT_VERSION) + _FIELDS.pack(*places, len(who)) + who
    size, crc = len(head), crc32c(head)
    yield head
    for piece in _pieces(snapshot.body) if body is None else body:
        size, crc = size + len(piece), crc32c(piece, crc)
        yield piece
    end = _SIZE.pack(size + _SIZE.size + _CRC.size)
    yield end + _CRC.pack(crc32c(end, crc))


def _pieces(body: bytes | memoryview) -> Iterator[bytes]:
    for start in range(0, len(body), _PIECE_BYTES):
        yield bytes(body[start : start + _PIECE_BYTES])


def decode_snapshot(data: bytes) -> Snapshot:
    """Parse a file's contents; the body is a view of them: its CRC is checked, not its content.

    Raises:
        ValueError: The contents are damaged, or not a snapshot.
        NewerFormat: A newer version wrote them.
    """
    first, last = _PREFIX.size + _FIELDS.size, len(data) - _SIZE.size - _CRC.size
    if last < first:
        raise ValueError(f"{len(data)} bytes are too few")
    magic, version = _PREFIX.unpack_from(data)
    view = memoryview(data)
    if magic != _MAGIC or _CRC.pack(crc32c(view[: -_CRC.size])) != view[-_CRC.size :]:
        raise ValueError(f"magic {magic!r} version {version}: the CRC32C does not fit")
    if version > FORMAT_VERSION:
        raise NewerFormat.number("the snapshot", found=version, known=FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise ValueError(f"version {version}, this node reads {FORMAT_VERSION}")
    *places, length = _FIELDS.unpack_from(data, _PREFIX.size)
    (size,) = _SIZE.unpack_from(data, last)
    body = first + length
    if size != len(data) or body > last:
        raise ValueError(f"{len(data)} bytes, the end says {size}, of which {body} come first")
    group_id, memberships = _who(data[first:body])
    return Snapshot(
        group_id=group_id,
        applied=Base(index=places[0], term=places[1], chain=places[2]),
        base=Base(index=places[3], term=places[4], chain=places[5]),
        memberships=memberships,
        body=view[body:last],
    )


def _who(data: bytes) -> tuple[str, tuple[tuple[int, Membership], ...]]:
    try:
        fields = json.loads(data)
        rows = [(int(at), _membership(int(at), text)) for at, text in fields["memberships"]]
        return str(fields["group"]), tuple(rows)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a group's memberships: {data[:80]!r}") from error


def _membership(index: int, text: str) -> Membership:
    data = text.encode()
    FEATURES.check_stored(EntryKind.MEMBERSHIP, index, data)
    return Membership.decode(data)
