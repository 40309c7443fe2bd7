"""``discarded.json``: which parts of this disk's log an operator discarded, and when.

``dledger log discard`` writes it before it discards anything. It is an audit record for people; no
code depends on it. See docs/adr/0017.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dledger.errors import CorruptFile
from dledger.files import checked_json
from dledger.files.atomic import load_file, replace_file
from dledger.files.files import Files

NAME: Final = "discarded.json"
FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """One run of ``dledger log discard``.

    Attributes:
        group_id: The group that the log belongs to.
        damaged: The damaged entries, as [first, last].
        messages_below: All messages in entries below this index were discarded; 0 if none were.
        log_behind: The log was truncated after this entry; 0 if it was not.
        lost: The messages lost, one line for each queue.
        at_ms: The time, in Unix milliseconds.
    """

    group_id: str
    damaged: tuple[tuple[int, int], ...]
    messages_below: int
    log_behind: int
    lost: tuple[str, ...]
    at_ms: int


def load_discards(files: Files, directory: Path) -> list[Discard]:
    """Return all discards made in a data directory, oldest first.

    Raises:
        CorruptFile: The file is damaged.
    """
    path = directory / NAME
    data = load_file(files, path)
    if data is None:
        return []
    try:
        rows = checked_json.decode(FORMAT_VERSION, data)["discards"]
        return [_discard(row) for row in rows]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise CorruptFile(str(path), str(error) or repr(error)) from error


def _discard(row: dict[str, object]) -> Discard:
    damaged, lost = row["damaged"], row["lost"]
    if not isinstance(damaged, list) or not isinstance(lost, list):
        raise ValueError("not a list")
    return Discard(
        group_id=checked_json.text(row, "group_id"),
        damaged=tuple((int(first), int(last)) for first, last in damaged),
        messages_below=checked_json.number(row, "messages_below"),
        log_behind=checked_json.number(row, "log_behind"),
        lost=tuple(map(str, lost)),
        at_ms=checked_json.number(row, "at_ms"),
    )


def save_discards(files: Files, directory: Path, discards: Sequence[Discard]) -> None:
    """Write them durably. Raises DiskFull or StorageError."""
    rows = [asdict(each) for each in discards]
    replace_file(files, directory / NAME, checked_json.encode(FORMAT_VERSION, {"discards": rows}))
