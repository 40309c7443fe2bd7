"""Backups with places, of logs in memory: what a node with a state would tell, without the node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from dledger.broker.state import BrokerState
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.export_places import Part, parts, serialized
from dledger.types import Entry
from dledger_pipeline.archive.archive import ManifestRow, read_range
from dledger_pipeline.archive.erasures_objects import write_entries
from dledger_pipeline.archive.manifest import Manifest, RestorePoint, first_manifest
from dledger_pipeline.archive.places_objects import with_places
from dledger_pipeline.archive.topics import SeenTopics
from dledger_pipeline.log.places import places_of
from dledger_pipeline.object_store.store import Store
from tests.pipeline.logs import GROUP_ID, batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One backup of a log that grows.

    Attributes:
        last_index: Where it ends.
        applied: The entry that the asked node has applied by then.
        kept_from: The oldest entry whose messages the node keeps.
        merged: How many of the last objects it writes again.
    """

    last_index: int
    applied: int
    kept_from: int = 1
    merged: int = 0


def state_at(entries: Sequence[Entry], applied: int, kept_from: int = 1) -> BrokerState:
    """Return a node's state after some of *entries*."""
    state = BrokerState()
    for entry in entries[:applied]:
        state.apply(entry)
    state.forget_before(kept_from)
    return state


def told(state: BrokerState, first: int, last: int) -> pa.RecordBatch:
    """Return the places that a node with this state tells, over the wire's own messages."""

    async def found() -> list[Part]:
        return [each async for some in parts(state.topics, first, last) for each in some]

    raw = serialized(asyncio.run(found()))
    chunks = [pb.ExportPlacesChunk.FromString(each) for each in raw]
    return places_of([queue for chunk in chunks for queue in chunk.queues])


def seen(state: BrokerState, applied: int) -> SeenTopics:
    """Return the topics that a node with this state tells."""
    names = {topic.generation: topic.name for topic in state.topics.all()}
    return SeenTopics(applied_index=applied, made=state.topics.made, names=names)


def placed_backup(
    store: Store, entries: Sequence[Entry], runs: Sequence[Run], *, size: int
) -> Manifest:
    """Return an unpublished manifest of backups one after the other, in objects of *size*."""
    made: Manifest | None = None
    chains = [0, *batches(entries)[0].column("chain_crc32c").to_pylist()]
    for run in runs:
        state = state_at(entries, run.applied, run.kept_from)
        merged = min(run.merged, len(made.files) if made else 0)
        tail = made.files[len(made.files) - merged :] if made else ()
        first = made.last_index + 1 if made else 1
        rows: list[ManifestRow] = []
        for at in range(first, run.last_index + 1, size):
            last = min(at + size - 1, run.last_index)
            older = () if rows else tail
            places = None if run.kept_from > at else told(state, at, last)
            rows.append(written(store, entries[at - 1 : last], chains[at - 1], older, places))
        if made is None:
            made = first_manifest("orders", GROUP_ID, rows)
        elif rows:
            made = made.followed_by(rows, replacing=merged)
        made = replace(made, topics=made.topics.seen(seen(state, run.applied)))
    assert made is not None
    point = RestorePoint(last_index=made.last_index, kept_from=1, as_of_ms=made.last_timestamp_ms)
    return made.seen(point)


def written(
    store: Store,
    entries: Sequence[Entry],
    chain: int,
    tail: Sequence[ManifestRow],
    places: pa.RecordBatch | None,
) -> ManifestRow:
    """Write one object and its places, as a backup's task does."""
    old = [batch for row in tail for batch in read_range(store, GROUP_ID, row).to_batches()]
    start = tail[0].first_chain if tail else chain
    new = batches(entries, chain=chain)
    row = write_entries(store, GROUP_ID, [*old, *new], previous_chain=start)
    return row if places is None else with_places(store, GROUP_ID, row, tail, places)
