"""Which messages of a compacted topic may go: those that a newer one of their key has beaten. Pure.

Of each (generation, queue, key) the message with the highest queue offset stays. If that is a
tombstone and was the only message of its key in all that was read, it is *alone*, and the leader is
told so: it lets it go once that has been known for as long as the topic keeps tombstones. Were it
to go together with the value that it deletes, and that value's queue were to be decided later, or
never, the deleted key would be back.

What was not read is never named, so it stays. What was beaten once stays beaten: the decision may
be late, or told twice. Plain batches in, batches out; `jobs.compact` runs `decide_keys` in one
process or in Spark's tasks, each with all rows of its keys.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dledger_pipeline.log.records import schema, values

Queue: TypeAlias = tuple[int, int]
"""A topic's generation, and a queue id."""
_Ints: TypeAlias = npt.NDArray[np.int64]

KEY: Final = ("generation", "queue_id", "key")
"""Within these columns of `keys.KEY_SCHEMA` messages beat each other."""

DECIDED_SCHEMA: Final = schema(
    generation=pa.int64(),
    queue_id=pa.int32(),
    keys=pa.int64(),
    messages=pa.int64(),
    beaten=pa.binary(),
)
"""What was decided about some keys of a queue: how many keys and rows were read; and which messages
may go: queue offset and that of the newer message of its key, 8 bytes each, little endian. A
tombstone that is alone is said to be beaten by itself."""

_PAIR: Final = np.dtype("<i8")
_CELL_PAIRS: Final = 1 << 20


def decide_keys(rows: pa.Table) -> pa.Table:
    """Return what is decided (`DECIDED_SCHEMA`) by *rows*, in any order, and any of them twice.

    They are of `keys.KEY_SCHEMA`: all that there are of each key that is among them.
    """
    if not rows.num_rows:
        return DECIDED_SCHEMA.empty_table()
    generation, queue_id, offset = (
        _numbers(rows, name) for name in ("generation", "queue_id", "queue_offset")
    )
    queue, queues = _number_items(generation << 32 | queue_id)
    key, keys = _number_items(_codes(rows.column("key")) * len(queues) + queue)
    highest = np.full(len(keys), -1, np.int64)
    lowest = np.full(len(keys), np.iinfo(np.int64).max, np.int64)
    np.maximum.at(highest, key, offset)
    np.minimum.at(lowest, key, offset)
    by = highest[key]
    is_tombstone = np.asarray(rows.column("tombstone").to_numpy(), np.bool_)
    only = lowest[key] == by
    goes = (offset < by) | (is_tombstone & only)
    of_queue = np.full(len(keys), 0, np.int64)
    of_queue[key] = queue
    counts = (np.bincount(each, minlength=len(queues)) for each in (of_queue, queue))
    parts = _by_queue(queue[goes], np.column_stack((offset[goes], by[goes])), len(queues))
    return pa.Table.from_pylist(
        [
            {
                "generation": int(each) >> 32,
                "queue_id": int(each) & 0xFFFFFFFF,
                "keys": 0 if at else int(key_count),
                "messages": 0 if at else int(row_count),
                "beaten": pairs[at : at + _CELL_PAIRS].astype(_PAIR).tobytes(),
            }
            for each, key_count, row_count, pairs in zip(queues, *counts, parts, strict=True)
            for at in range(0, max(len(pairs), 1), _CELL_PAIRS)
        ],
        DECIDED_SCHEMA,
    )


def _numbers(rows: pa.Table, name: str) -> _Ints:
    column = rows.column(name).combine_chunks()
    found: _Ints = values(column).astype(np.int64, copy=False)
    return found


def _codes(column: pa.ChunkedArray) -> _Ints:
    """Return a number for each text, the same for the same."""
    whole = pa.concat_arrays([chunk.cast(pa.large_string()) for chunk in column.chunks])
    return values(whole.dictionary_encode().indices).astype(np.int64)


def _number_items(column: _Ints) -> tuple[_Ints, _Ints]:
    """Return each item as a number from 0 on, and the items by these numbers."""
    found = pc.dictionary_encode(pa.array(column))
    return values(found.indices).astype(np.int64), values(found.dictionary)


def _by_queue(queue: _Ints, pairs: _Ints, queues: int) -> list[_Ints]:
    order = np.argsort(queue, kind="stable")
    return np.split(pairs[order], np.cumsum(np.bincount(queue, minlength=queues))[:-1])


@dataclass(frozen=True, slots=True)
class Part:
    """Queue offsets ``[first, to)``: what one call decides.

    Attributes:
        goes: How many of them may go.
        stays: Bitmap of those that stay, lowest bit first, compressed by zlib.
        alone: Likewise, of those of the others that are tombstones and alone.
    """

    first: int
    to: int
    goes: int
    stays: bytes
    alone: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDecision:
    """What was decided about a queue. Takes 16 bytes a message that may go.

    Attributes:
        keys, messages: How many were read; a message that was copied counts each time.
        offsets: Of the messages that may go, ascending.
        by: The offsets that have beaten them; of a tombstone that is alone its own.
    """

    generation: int
    queue_id: int
    keys: int
    messages: int
    offsets: _Ints
    by: _Ints

    def parts(self, range_offsets: int) -> Iterator[Part]:
        """Yield the ranges that have messages that may go, ascending; each has at its ends one.

        None has more than *range_offsets*.

        Offsets that nobody read stay.
        """
        at = 0
        while at < len(self.offsets):
            first = int(self.offsets[at])
            end = int(np.searchsorted(self.offsets, first + range_offsets))
            to = int(self.offsets[end - 1]) + 1
            named, by = self.offsets[at:end] - first, self.by[at:end] - first
            stays, alone = np.ones(to - first, np.bool_), np.zeros(to - first, np.bool_)
            stays[named] = False
            alone[named[named == by]] = True
            yield Part(first, to, end - at, _bitmap(stays), _bitmap(alone))
            at = end

    def beaten_by(self, offset: int) -> int | None:
        """Return the offset of the newer message of its key; None if it stays."""
        at = int(np.searchsorted(self.offsets, offset))
        is_there = at < len(self.offsets) and self.offsets[at] == offset
        return int(self.by[at]) if is_there else None


def _bitmap(bits: npt.NDArray[np.bool_]) -> bytes:
    return zlib.compress(np.packbits(bits, bitorder="little").tobytes())


def by_queue(tables: Iterable[pa.Table]) -> dict[Queue, QueueDecision]:
    """Return what `decide_keys` returned of all keys, in any parts, by queue, ascending."""
    pairs: dict[Queue, list[_Ints]] = {}
    counts: dict[Queue, _Ints] = {}
    for table in tables:
        for batch in table.to_batches():
            for generation, queue_id, keys, messages, beaten in zip(*batch.columns, strict=True):
                queue = generation.as_py(), queue_id.as_py()
                found = np.frombuffer(beaten.as_buffer(), _PAIR).reshape(-1, 2)
                pairs.setdefault(queue, []).append(found)
                so_far = counts.get(queue, np.zeros(2, np.int64))
                counts[queue] = so_far + np.array([keys.as_py(), messages.as_py()])
    return {queue: _decision(queue, counts[queue], pairs[queue]) for queue in sorted(pairs)}


def _decision(queue: Queue, counts: _Ints, pairs: list[_Ints]) -> QueueDecision:
    whole = np.concatenate(pairs)
    offsets, at = np.unique(whole[:, 0], return_index=True)
    return QueueDecision(
        generation=queue[0],
        queue_id=queue[1],
        keys=int(counts[0]),
        messages=int(counts[1]),
        offsets=offsets,
        by=whole[at, 1],
    )
