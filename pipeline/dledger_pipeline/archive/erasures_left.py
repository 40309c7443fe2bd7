"""In which objects of a backup bytes of erased messages still lie, and when the last one goes.

By ranges of entries, which is what can be said for sure: all that a key ever had lies in entries
below the ERASE, also copies, repeats, and what compaction let go before. So it may be in any object
of `data/` up to that of the ERASE itself. Decisions only; used by the job `erasures`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from dledger_pipeline.archive.manifest import Manifest

_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureLeft:
    """What one entry has erased of a topic.

    Attributes:
        entry: The entry of the ERASEs.
        at_ms: Its timestamp, Unix milliseconds.
        topic: The topic's name; "" if the backup does not know it any more.
        messages: How many they name.
        objects: In how many objects of `data/` their bytes may lie: so many of the oldest.
        gone_ms: From when on `gc` deletes the last of these, Unix milliseconds; None: it does not,
            as long as all times are kept, or as nodes keep these entries themselves.
    """

    entry: int
    at_ms: int
    topic: str
    messages: int
    objects: int
    gone_ms: int | None


def tell_erasures_left(
    manifest: Manifest, rows: pa.Table, *, keep_days: float
) -> Iterator[ErasureLeft]:
    """Yield what ERASEs have erased of which bytes may lie in the objects of a backup.

    Args:
        manifest: The newest.
        rows: All ERASEs that it has (`erase_rows.ERASE_SCHEMA`).
        keep_days: What `gc` is run with; 0: it keeps all times.
    """
    names = {row.generation: row.name for row in manifest.topics.rows}
    of_entry = rows.group_by(["index", "timestamp_ms", "generation"], use_threads=False)
    for one in of_entry.aggregate([("offset", "count")]).sort_by("index").to_pylist():
        entry = one["index"]
        yield ErasureLeft(
            entry=entry,
            at_ms=one["timestamp_ms"],
            topic=names.get(one["generation"], ""),
            messages=one["offset_count"],
            objects=len(manifest.files_in(1, entry)),
            gone_ms=_gone_ms(manifest, entry, keep_days),
        )


def _gone_ms(manifest: Manifest, entry: int, keep_days: float) -> int | None:
    """Return from when on `gc` deletes the object of *entry*.

    That is once the first base behind it is old enough that no restore begins earlier, and the
    manifest that still names the object was replaced a day ago.
    """
    last = next(row.last_index for row in manifest.files if row.last_index >= entry)
    behind = (base.as_of_ms for base in manifest.bases if base.first_index > last)
    first_ms = next(behind, None)
    if not keep_days or first_ms is None:
        return None
    return first_ms + int(keep_days * _DAY_MS) + _DAY_MS
