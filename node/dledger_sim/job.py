"""What a round of compaction reads of a simulated group, and decides: by the job's own functions.

The job's steps, in its order (`archive.kept_log`): a node's newest committed entry; where messages
are, of a state that includes it; the entries up to where that state was; the chain. Between them
time passes, and each may be asked of another node. What the job does beyond that (Spark, a store,
gRPC) has tests of its own. `rounds` tells leaders what comes out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from dledger.errors import DledgerError
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.export_places import Part, serialized
from dledger.types import Entry
from dledger_pipeline.archive.compaction import (
    Queue,
    QueueDecision,
    by_queue,
    decide_keys,
)
from dledger_pipeline.log.keys import KEY_SCHEMA, key_rows
from dledger_pipeline.log.places import no_places, places_of
from dledger_pipeline.log.records import ENTRY_SCHEMA
from dledger_sim.process import Process

_READ: Final = pa.schema(
    [ENTRY_SCHEMA.field(name) for name in ("index", "term", "type", "timestamp_ms", "body")]
)
_ALL_BYTES: Final = 1 << 40


class RoundOver(Exception):
    """A node cannot give what is asked of it now; the job ends, or begins again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What may go, as of an entry.

    Attributes:
        topics: The names of the topics that were looked at, by generation.
    """

    as_of_index: int
    as_of_chain: int
    topics: Mapping[int, str]
    queues: Mapping[Queue, QueueDecision]


async def decide(any_node: Callable[[], Process], pause: Callable[[], Awaitable[None]]) -> Decided:
    """Read what the group keeps of its compacted topics, and decide.

    Args:
        any_node: Draws a node to ask, which is up.
        pause: Lets time pass.

    Raises:
        RoundOver: A node does not have what is asked, or cannot read it.
    """
    first, last, topics = _plan(any_node())
    await pause()
    places, applied_index = _places(any_node(), first, last)
    await pause()
    node = any_node()
    read = _rows(_entries(node, first, last), places, topics)
    copied = _rows(_entries(node, last + 1, applied_index), no_places(), topics)
    chain = _chain(any_node(), last)
    rows = pa.Table.from_batches([read, copied], KEY_SCHEMA)
    return Decided(
        as_of_index=last,
        as_of_chain=chain,
        topics=topics,
        queues=by_queue([decide_keys(rows)]),
    )


_Topics: TypeAlias = Mapping[int, str]
"""Names of compacted topics by generation."""


def _plan(node: Process) -> tuple[int, int, _Topics]:
    """Return the first and the last entry to read, and of which topics."""
    state = node.state.broker
    last = min(node.driver.core.commit_index, node.log.synced_index)
    first = max(state.first_index, node.log.first_index)
    topics = {each.generation: each.name for each in state.topics.all() if each.compaction}
    if last < first or not topics:
        raise RoundOver(f"{node.id} has nothing to read")
    return first, last, topics


def _places(node: Process, first: int, last: int) -> tuple[pa.RecordBatch, int]:
    """Return where messages of these entries are, and in which state."""
    state = node.state.broker
    if state.applied_index < last:
        raise RoundOver(f"{node.id} has not applied {last}")
    parts = [
        Part(topic.generation, queue_id, part)
        for topic in state.topics.all()
        for queue_id, queue in enumerate(state.topics.queues(topic.name))
        if (part := queue.part(first, last)) is not None
    ]
    chunks = map(pb.ExportPlacesChunk.FromString, serialized(parts))
    return places_of([each for chunk in chunks for each in chunk.queues]), state.applied_index


def _entries(node: Process, first: int, last: int) -> list[Entry]:
    log, found = node.log, list[Entry]()
    if last > min(node.driver.core.commit_index, log.synced_index):
        raise RoundOver(f"{node.id} has not committed {last}")
    while first <= last:
        try:
            some = log.read(first, last, _ALL_BYTES)
        except (DledgerError, OSError) as error:
            raise RoundOver(f"{node.id} cannot read {first}: {error}") from error
        if not some:
            raise RoundOver(f"{node.id} cannot read {first}")
        found += some
        first = some[-1].index + 1
    return found


def _rows(entries: Sequence[Entry], places: pa.RecordBatch, topics: _Topics) -> pa.RecordBatch:
    columns = {
        "index": [each.index for each in entries],
        "term": [each.term for each in entries],
        "type": [each.kind.value for each in entries],
        "timestamp_ms": [each.timestamp_ms for each in entries],
        "body": [each.data for each in entries],
    }
    return key_rows(pa.RecordBatch.from_pydict(columns, _READ), places, topics)


def _chain(node: Process, index: int) -> int:
    try:
        return node.log.chain(index)
    except (DledgerError, OSError) as error:
        raise RoundOver(f"{node.id} does not have {index}: {error}") from error
