"""``removed.json``: this disk's node was removed from its group, and never speaks again.

Written durably when a node learns that its removal is committed; found by every later start. A
removed node may not vote as if it still counted, nor come back (thesis 4.2.2 lets it disturb the
group otherwise). Formatting the disk takes it away together with everything it refers to.
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
    """That a node was removed.

    Attributes:
        group_id: From which group.
        node_id: Which node; the disk's own.
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
        CorruptFile: There is one, but it is damaged: the node was removed all the same.
        NewerFormat: A newer version of the node wrote it; so too then.
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
    """Write it durably; repeating it is harmless. Raises DiskFull, StorageError."""
    data = checked_json.encode(FORMAT_VERSION, asdict(tombstone))
    replace_file(files, directory / NAME, data)
