"""Where the messages of some entries are, out of the broker's consume queues, for archivers.

The event loop only finds which pieces of which queues lie in the entries, in short steps; threads
decompress and serialize them. Used by `export`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from dledger.broker.queue_part import PlaceColumns, QueuePart
from dledger.broker.topic_store import TopicStore
from dledger.common.byte_order import little_endian
from dledger.rpc.pb import dledger_pb2 as pb

_QUEUES_A_STEP: Final = 256
"""Queues that are looked at before others may run: about half a millisecond."""
_PIECES: Final = 16
"""Pieces that a thread serializes at once: some 3 ms."""
_CHUNK_BYTES: Final = 1 << 20
_QUEUE_BYTES: Final = 64
"""What a queue takes in a chunk besides its columns, rounded up."""


@dataclass(frozen=True, slots=True)
class Part:
    """A queue's part of some entries: queue *queue_id* of the topic of this generation."""

    generation: int
    queue_id: int
    runs: QueuePart


async def parts(topics: TopicStore, first_index: int, last_index: int) -> AsyncIterator[list[Part]]:
    """Yield the parts of all queues in entries [*first_index*, *last_index*], some at a time.

    Entries that are applied meanwhile, behind these, change nothing. A topic that is deleted
    meanwhile may be left out.
    """
    found: list[Part] = []
    seen = pieces = 0
    for topic in topics.all():
        queues = topics.queues(topic.name) if topics.is_there(topic) else ()
        for queue_id, queue in enumerate(queues):
            runs = queue.part(first_index, last_index)
            if runs is not None:
                found.append(Part(topic.generation, queue_id, runs))
                pieces += runs.pieces
            seen += 1
            if seen % _QUEUES_A_STEP == 0:
                await asyncio.sleep(0)
            if pieces >= _PIECES:
                yield found
                found, pieces = [], 0
    if found:
        yield found


def serialized(found: Sequence[Part]) -> list[bytes]:
    """Return *found* as serialized chunks of about a megabyte; called in a thread."""
    chunks: list[bytes] = []
    chunk, size_bytes = pb.ExportPlacesChunk(), 0
    for part in found:
        for columns in part.runs.columns():
            chunk.queues.append(_queue(part, columns))
            size_bytes += _QUEUE_BYTES + 28 * len(columns.firsts)
            if size_bytes >= _CHUNK_BYTES:
                chunks.append(chunk.SerializeToString())
                chunk, size_bytes = pb.ExportPlacesChunk(), 0
    if size_bytes:
        chunks.append(chunk.SerializeToString())
    return chunks


def _queue(part: Part, columns: PlaceColumns) -> pb.QueuePlaces:
    return pb.QueuePlaces(
        generation=part.generation,
        queue_id=part.queue_id,
        end_offset=columns.end,
        first_offsets=little_endian(columns.firsts),
        indexes=little_endian(columns.indexes),
        starts=little_endian(columns.starts),
        ends=little_endian(columns.ends),
        rows=little_endian(columns.rows),
    )
