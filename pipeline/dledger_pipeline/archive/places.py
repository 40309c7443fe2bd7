"""What a manifest says of the places of an object's messages: so queries open few objects. Pure.

The places themselves are an object of their own (`places_objects`), beside that of the entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dledger_pipeline.archive.selection import Selection
from dledger_pipeline.log.places import numbers

_Ints: TypeAlias = npt.NDArray[np.int64]

MAX_SPANS: Final = 256
"""An object with messages of more queues has a span for each topic; of more topics, none."""


class QueueSpan(NamedTuple):
    """Messages of queues [first_queue, last_queue] of a topic, at [first_offset, end_offset).

    There may be others of other objects between them.
    """

    generation: int
    first_queue: int
    last_queue: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesRow:
    """The places of an object's messages.

    Attributes:
        name: The object: ``places/<first>-<last>-<sha256>.parquet``.
        rows: How many places.
        spans: What queues they are of, ascending; None: too many to say.
    """

    name: str
    object_bytes: int
    sha256: str
    rows: int
    spans: tuple[QueueSpan, ...] | None

    def generations(self, topics: Collection[int]) -> frozenset[int]:
        """Return which of *topics* it may have messages of."""
        if self.spans is None:
            return frozenset(topics)
        return frozenset(span.generation for span in self.spans).intersection(topics)

    def may_hold(self, selection: Selection, topics: Collection[int]) -> bool:
        """Whether it may have messages of *topics* that are asked for, but for times."""
        return bool(self.rows) if self.spans is None else hold(self.spans, selection, topics)


def hold(spans: Iterable[QueueSpan], selection: Selection, topics: Collection[int]) -> bool:
    """Whether *spans* have messages of *topics* that are asked for, but for times."""
    queue_id = selection.queue_id
    return any(
        span.generation in topics
        and (queue_id is None or span.first_queue <= queue_id <= span.last_queue)
        and span.first_offset <= selection.last_offset
        and selection.first_offset < span.end_offset
        for span in spans
    )


def places_name(first_index: int, last_index: int, sha256: str) -> str:
    """Return the name, within the group's folder, of the object with these places."""
    return f"places/{first_index:020}-{last_index:020}-{sha256}.parquet"


def spans_of(places: pa.RecordBatch | pa.Table) -> tuple[QueueSpan, ...] | None:
    """Return the spans of *places* (`messages.QUEUE_SLICE_SCHEMA`), at most `MAX_SPANS`."""
    offset = numbers(places.column("first_offset"))
    return _spans(places, offset, offset + numbers(places.column("rows")))


def spans_of_blocks(blocks: pa.RecordBatch) -> tuple[QueueSpan, ...] | None:
    """Return the spans of *blocks* (`kept_messages.BLOCK_SCHEMA`), at most `MAX_SPANS`."""
    return _spans(blocks, *(numbers(blocks.column(n)) for n in ("first_offset", "end_offset")))


def _spans(
    places: pa.RecordBatch | pa.Table, offset: _Ints, end: _Ints
) -> tuple[QueueSpan, ...] | None:
    generation, queue = (numbers(places.column(name)) for name in ("generation", "queue_id"))
    if not len(offset):
        return ()
    order = np.lexsort((queue, generation))
    generation, queue = generation[order], queue[order]
    offset, end = offset[order], end[order]
    new_topic = np.append(True, np.diff(generation) != 0)
    begins = np.flatnonzero(new_topic | np.append(True, np.diff(queue) != 0))
    if len(begins) > MAX_SPANS:
        begins = np.flatnonzero(new_topic)
    if len(begins) > MAX_SPANS:
        return None
    columns = (
        generation[begins],
        np.minimum.reduceat(queue, begins),
        np.maximum.reduceat(queue, begins),
        np.minimum.reduceat(offset, begins),
        np.maximum.reduceat(end, begins),
    )
    return tuple(QueueSpan(*map(int, each)) for each in zip(*columns, strict=True))
