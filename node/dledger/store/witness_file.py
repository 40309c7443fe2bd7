"""``witness.json``: what this node knows of the newest that other members had (`raft.witness`).

Replaced atomically about once a second while that changes, so a start knows nearly all that its
process before knew. It is the members' memory of each other, not a promise of this node: if it is
missing, or damaged, the node starts without it, and so with less to tell.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dledger.common.reports import MAX_MARKS, Mark
from dledger.errors import CorruptFile
from dledger.files import checked_json
from dledger.files.atomic import load_file, replace_file
from dledger.files.files import Files
from dledger.types import MAX_NUMBER, NodeId

logger = logging.getLogger(__name__)

NAME: Final = "witness.json"
FORMAT_VERSION: Final = 1


class WitnessFile:
    """The file of the data directory *directory*. Calls must not overlap."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files, self._path = files, directory / NAME

    def load(self) -> dict[NodeId, Mark]:
        """Return what was saved last; nothing if there is none, or it is damaged.

        Raises:
            NewerFormat: A newer version wrote it.
            StorageError: The directory cannot be synced.
        """
        try:
            data = load_file(self._files, self._path)
            return {} if data is None else _decode(data, self._path)
        except CorruptFile as error:
            logger.error("%s: this node starts without knowing what other members had", error)
            return {}

    def save(self, marks: Mapping[NodeId, Mark]) -> None:
        """Replace the file durably. Raises DiskFull, StorageError."""
        replace_file(self._files, self._path, _encode(marks))


def _encode(marks: Mapping[NodeId, Mark]) -> bytes:
    rows = {
        node_id: [mark.last_term, mark.last_index, mark.term] for node_id, mark in marks.items()
    }
    return checked_json.encode(FORMAT_VERSION, {"marks": rows})


def _decode(data: bytes, path: Path) -> dict[NodeId, Mark]:
    fields = checked_json.decode_own(FORMAT_VERSION, data, path)
    try:
        rows = fields["marks"]
        if len(rows) > MAX_MARKS:
            raise ValueError(f"{len(rows)} members are too many")
        return {NodeId(node_id): _mark(row) for node_id, row in rows.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptFile(str(path), repr(error)) from error


def _mark(row: Any) -> Mark:
    last_term, last_index, term = row
    for number in (last_term, last_index, term):
        if type(number) is not int or not 0 <= number < MAX_NUMBER:
            raise ValueError(f"{number!r:.80} is no term or index")
    return Mark(last_term=last_term, last_index=last_index, term=term)
