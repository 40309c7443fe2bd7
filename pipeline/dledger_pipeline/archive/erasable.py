"""Which messages of a key an ERASE has still to name. Pure; used by the job `erase`.

Each was found in an archive or in the log behind it, with the entry that stored it. One that an
ERASE has named since then is erased wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dledger.broker.erase import MAX_OFFSETS
from dledger_pipeline.archive.erased import Erased, OfQueue
from dledger_pipeline.log.records import values

_Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Erasable:
    """Messages of a queue that are to be named together.

    Attributes:
        generation: Which topic of the group.
        offsets: Queue offsets, ascending, as many as a command takes at most.
        first_entry: The lowest entry that stored one of them.
    """

    generation: int
    queue_id: int
    offsets: tuple[int, ...]
    first_entry: int


def distinct(hits: pa.Table, last_index: int) -> npt.NDArray[np.int64]:
    """Return (generation, queue id, queue offset, entry) of each message once, ascending.

    Args:
        hits: Of `key_hits.HIT_SCHEMA`, all placed; a message may be among them many times.
        last_index: What was stored behind this entry is left out.
    """
    names = ("generation", "queue_id", "queue_offset", "stored_in")
    columns = [values(hits.column(n).combine_chunks()).astype(np.int64) for n in names]
    rows = np.column_stack(columns)
    return np.unique(rows[rows[:, 3] <= last_index], axis=0)


def without_erased(messages: _Ints, erased: Erased) -> _Ints:
    """Return those of *messages*, as `distinct` returns them, that no ERASE names."""
    left = [
        rows[~_is_erased(rows, erased.queues.get((int(rows[0, 0]), int(rows[0, 1]))))]
        for rows in _by_queue(messages)
    ]
    return np.concatenate(left) if left else messages


def _is_erased(rows: _Ints, of_queue: OfQueue | None) -> npt.NDArray[np.bool_]:
    if of_queue is None:
        return np.zeros(len(rows), np.bool_)
    offset, stored_in = rows[:, 2], rows[:, 3]
    at = np.minimum(np.searchsorted(of_queue.offsets, offset), len(of_queue.offsets) - 1)
    is_named = of_queue.offsets[at] == offset
    found: npt.NDArray[np.bool_] = (
        is_named & (stored_in < of_queue.entries[at]) & (of_queue.firsts[at] <= stored_in)
    )
    return found


def commands(messages: _Ints) -> Iterator[Erasable]:
    """Yield *messages*, as `distinct` returns them, as commands take them."""
    for rows in _by_queue(messages):
        for at in range(0, len(rows), MAX_OFFSETS):
            part = rows[at : at + MAX_OFFSETS]
            yield Erasable(
                generation=int(part[0, 0]),
                queue_id=int(part[0, 1]),
                offsets=tuple(part[:, 2].tolist()),
                first_entry=int(part[:, 3].min()),
            )


def _by_queue(messages: _Ints) -> list[_Ints]:
    """Return the rows of each queue; none of a queue without any."""
    changes = np.flatnonzero((np.diff(messages[:, :2], axis=0) != 0).any(axis=1)) + 1
    return [part for part in np.split(messages, changes) if len(part)]
