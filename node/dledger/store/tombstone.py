"""``removed.json``: this disk's node was removed from its group and must never take part again.

Written durably when a node learns that its removal is committed, and checked by every later start.
A removed node must not vote as if it were still a member, nor start elections: it would disturb the
group (Raft thesis 4.2.3; ADR 12). To reuse the disk, format it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dledger.errors import CorruptFile
from dledger.files import checked_json
from dledger.files.atomic import load_file, replace_file
from dledger.files.files import Files
from dledger.types import NodeId

NAME: Final = "removed.json"
FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """The record of a node's removal.

    Attributes:
        group_id: The group that it was removed from.
        node_id: The removed node, the owner of the disk.
        index: The committed entry with the first membership without it.
        learned_at_ms: When the node learned of it, Unix milliseconds.
    """

    group_id: str
    node_id: NodeId
    index: int
    learned_at_ms: int


def load_tombstone(files: Files, directory: Path) -> Tombstone | None:
    """Return the tombstone of a data directory; None if its node was not removed.

    Raises:
        CorruptFile: The tombstone is damaged; the node counts as removed all the same.
        NewerFormat: A newer version wrote it; the node counts as removed all the same.
    """
    path = directory / NAME
    data = load_file(files, path)
    if data is None:
        return None
    fields = checked_json.decode_own(FORMAT_VERSION, data, path)
    try:
        return Tombstone(
            group_id=checked_json.text(fields, "group_id"),
            node_id=NodeId(checked_json.text(fields, "node_id")),
            index=checked_json.number(fields, "index"),
            learned_at_ms=checked_json.number(fields, "learned_at_ms"),
        )
    except (KeyError, TypeError) as error:
        raise CorruptFile(str(path), repr(error)) from error


def save_tombstone(files: Files, directory: Path, tombstone: Tombstone) -> None:
    """Write *tombstone* durably; repeating it is harmless. Raises DiskFull or StorageError."""
    data = checked_json.encode(FORMAT_VERSION, asdict(tombstone))
    replace_file(files, directory / NAME, data)
