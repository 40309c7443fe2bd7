"""Entries of a hand-made log as the batches that the pipeline reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from dledger.broker.message import Columns, Encoding, Message
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.common.replay_mark import ReplayMark
from dledger.types import Entry, EntryKind, MovedFrom, Typed
from dledger_pipeline.archive.selection import Bounds, MayHold, anything
from dledger_pipeline.log.records import ENTRY_SCHEMA
from tests.typed_messages import TYPED

TEXT = st.text(max_size=12)
MESSAGES = st.lists(
    st.builds(
        Message,
        message_id=TEXT,
        body=st.binary(max_size=40),
        tag=TEXT,
        keys=st.lists(TEXT, max_size=3).map(tuple),
        properties=st.dictionaries(TEXT, TEXT, max_size=3),
        born_at_ms=st.integers(-(2**63), 2**63 - 1),
        encoding=st.sampled_from(Encoding),
        trace_context=TEXT,
        typed=TYPED,
    ),
    min_size=1,
    max_size=6,
)


def entry_batch(entries: Sequence[Entry]) -> pa.RecordBatch:
    """Return *entries* as rows of `ENTRY_SCHEMA`; the chain is not computed."""
    rows = [
        {
            "index": entry.index,
            "term": entry.term,
            "type": entry.kind.value,
            "timestamp_ms": entry.timestamp_ms,
            "body_crc32c": entry.crc32c,
            "chain_crc32c": 0,
            "body": entry.data,
        }
        for entry in entries
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ENTRY_SCHEMA)


@dataclass(frozen=True)
class Held:
    """A range of entries that is a batch in memory."""

    batch: pa.RecordBatch

    @property
    def first_index(self) -> int:
        return int(self.batch.column("index")[0].as_py())

    @property
    def last_index(self) -> int:
        return int(self.batch.column("index")[-1].as_py())

    @property
    def bounds(self) -> Bounds:
        return {"index": (self.first_index, self.last_index)}

    def read(
        self, may_hold: MayHold = anything, columns: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        yield self.batch


def data_entries(*bodies: bytes, first_index: int = 1) -> list[Entry]:
    """Return DATA entries of term 1, one second apart."""
    return [
        Entry(
            term=1,
            index=index,
            kind=EntryKind.DATA,
            timestamp_ms=1000 * index,
            crc32c=0,
            data=body,
        )
        for index, body in enumerate(bodies, first_index)
    ]


def message_row(
    batch: ProduceFrame, row: int, entry: Entry, *, queue_id: int, queue_offset: int
) -> dict[str, Any]:
    """Return a row of `MESSAGE_SCHEMA` by the broker's own decoder."""
    message = batch.message(row)
    typed = message.typed or Typed()
    return {
        "topic": batch.topic,
        "queue_id": queue_id,
        "queue_offset": queue_offset,
        "message_id": message.message_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "body": message.body,
        "encoding": message.encoding.value,
        "born_at_ms": message.born_at_ms,
        "stored_at_ms": entry.timestamp_ms,
        "client_id": batch.client_id,
        "born_host": batch.born_host,
        "trace_context": message.trace_context,
        "index": entry.index,
        "term": entry.term,
        "message_group": typed.message_group,
        "deliver_at_ms": typed.deliver_at_ms,
        "priority": typed.priority,
        "moved_from": _moved_row(typed.moved_from),
    }


def _moved_row(moved: MovedFrom | None) -> dict[str, Any] | None:
    if moved is None:
        return None
    row = asdict(moved)
    return row | {"queue_offset": row.pop("offset")}


def produced(
    *messages: Message,
    topic: str = "t",
    queue_id: int = 0,
    client: str = "c",
    host: str = "",
    replay: ReplayMark | None = None,
) -> bytes:
    """Return a framed PRODUCE command."""
    return encode_produce(
        Columns.of(messages),
        client_id=client,
        topic=topic,
        queue_id=queue_id,
        born_host=host,
        replay=replay,
    )
