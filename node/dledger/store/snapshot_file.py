"""The bytes of a snapshot file.

::

    0         8         12       16           24         32        40         44        52        60
    +---------+---------+--------+------------+----------+---------+----------+---------+---------+
    | magic   | format  | CRC of | bytes in   | applied  | applied | applied  | base    | base    |
    | DLGRSNP0| version | others | all        | index    | term    | chain u32| index   | term    |
    +---------+---------+--------+------------+----------+---------+----------+---------+---------+
    60           64            68
    +------------+-------------+--------------+------------------------------------+
    | base chain | length of   | who: UTF-8   | body: the state, as `BrokerState`  |
    | u32        | who u32     | JSON         | encodes it, to the end             |
    +------------+-------------+--------------+------------------------------------+

The CRC is over [0, 12), then [16, ): magic, version and CRC are so in every format, by which damage
and a newer version are told apart. Integers are little endian, 64 bits where nothing else is said.
*who* is ``{"group": id, "memberships": [[index, the entry's data], ...]}``, oldest first.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from dledger.errors import NewerFormat
from dledger.features import FEATURES
from dledger.store.format import Base
from dledger.types import EntryKind, Membership

FORMAT_VERSION: Final = 1
_MAGIC: Final = b"DLGRSNP0"
_PREFIX: Final = struct.Struct("<8sII")
_KIND: Final = struct.Struct("<8sI")
_FIELDS: Final = struct.Struct("<QQQIQQII")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The broker's state at one entry, and how much of the log it needs.

    Attributes:
        group_id: Whose state.
        applied: The last entry that the state covers.
        base: The entry before the oldest one whose messages the state still refers to. A log that
            begins behind it and this state are all that a node needs.
        memberships: All up to *applied*, as (index, membership), oldest first.
        body: The state.
    """

    group_id: str
    applied: Base
    base: Base
    memberships: tuple[tuple[int, Membership], ...]
    body: bytes


def encode_snapshot(snapshot: Snapshot) -> tuple[bytes, bytes]:
    """Return the file's bytes, head and body; equal snapshots give equal bytes."""
    applied, base = snapshot.applied, snapshot.base
    rows = [[index, one.encode().decode()] for index, one in snapshot.memberships]
    fields = {"group": snapshot.group_id, "memberships": rows}
    who = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    size = _PREFIX.size + _FIELDS.size + len(who) + len(snapshot.body)
    places = (applied.index, applied.term, applied.chain, base.index, base.term, base.chain)
    head = _FIELDS.pack(size, *places, len(who)) + who
    crc = crc32c(snapshot.body, crc32c(head, _crc_of_kind(FORMAT_VERSION)))
    return _PREFIX.pack(_MAGIC, FORMAT_VERSION, crc) + head, snapshot.body


def decode_snapshot(data: bytes) -> Snapshot:
    """Parse a file's contents; the body is only known to be what was written.

    Raises:
        ValueError: They are damaged, or not what `encode_snapshot` made.
        NewerFormat: A newer version made them.
    """
    if len(data) < _PREFIX.size + _FIELDS.size:
        raise ValueError(f"{len(data)} bytes are too few")
    magic, version, crc = _PREFIX.unpack_from(data)
    if magic != _MAGIC or crc32c(memoryview(data)[_PREFIX.size :], _crc_of_kind(version)) != crc:
        raise ValueError(f"magic {magic!r} version {version}: the CRC32C does not fit")
    if version > FORMAT_VERSION:
        raise NewerFormat.number("the snapshot", found=version, known=FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise ValueError(f"version {version}, this node reads {FORMAT_VERSION}")
    size, *places, length = _FIELDS.unpack_from(data, _PREFIX.size)
    body = _PREFIX.size + _FIELDS.size + length
    if size != len(data) or body > size:
        raise ValueError(f"{len(data)} bytes, the header says {size}, of which {body} come first")
    group_id, memberships = _who(data[body - length : body])
    return Snapshot(
        group_id=group_id,
        applied=Base(index=places[0], term=places[1], chain=places[2]),
        base=Base(index=places[3], term=places[4], chain=places[5]),
        memberships=memberships,
        body=data[body:],
    )


def _crc_of_kind(version: int) -> int:
    """Return the CRC of what is before the CRC: another version is no flipped bit."""
    return crc32c(_KIND.pack(_MAGIC, version))


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
