"""A log with everything that messages can go through, and what consumers would see of it."""

from __future__ import annotations

from typing import Any

from crc32c import crc32c

from dledger.broker.commands import CreateTopic
from dledger.broker.message import Message
from dledger.broker.produce import ProduceFrame
from dledger.types import Entry, EntryKind
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.archive.planning import archived_messages
from dledger_pipeline.archive.selection import Selection
from dledger_pipeline.object_store.store import Store
from tests.broker.log import Log
from tests.pipeline.entry_batches import message_row, produced


def message_log(batches: int = 40) -> Log:
    """Return a log of two topics: batches, repeats, refused ones, keys that come again."""
    log = Log()
    log.append(kind=EntryKind.NOOP)
    for name in ("orders", "prices"):
        log.append(CreateTopic(name=name, type="NORMAL", queues=2).encode())
    for n in range(batches):
        log.now_ms += 1000
        command = _batch(n, "orders" if n % 2 else "prices")
        log.append(command, *([command] if n % 5 == 0 else []))
        if n % 7 == 0:
            log.append(_batch(n, "unknown"))
    return log


def _batch(n: int, topic: str) -> bytes:
    messages = [
        Message(
            message_id=f"id-{n}-{row}",
            body=f"body {n} {row} ".encode() * 20,
            tag=("", "red")[row % 2],
            keys=(f"key-{(n + row) % 6}",) if row != 2 else (),
            properties={"n": str(n)} if n % 3 else {},
            born_at_ms=n,
        )
        for row in range(4)
    ]
    return produced(*messages, topic=topic, queue_id=-1, client="é", host="h")


def checked_entries(log: Log) -> list[Entry]:
    """Return the log's entries with the CRCs that a proposer computes."""
    return [
        Entry(
            term=entry.term,
            index=entry.index,
            kind=entry.kind,
            timestamp_ms=entry.timestamp_ms,
            crc32c=crc32c(entry.data),
            data=entry.data,
        )
        for entry in log.entries
    ]


def consumed(log: Log) -> list[dict[str, Any]]:
    """Read every queue of the broker's state, message after message, as rows in the log's order."""
    rows = [
        _row(log, topic.name, queue_id, offset)
        for topic in log.state.topics.all()
        for queue_id, queue in enumerate(log.state.topics.queues(topic.name))
        for offset in range(queue.end)
    ]
    return sorted(rows, key=place)


def place(row: dict[str, Any]) -> tuple[int, str, int, int]:
    """Return what rows of messages are sorted by."""
    return row["index"], row["topic"], row["queue_id"], row["queue_offset"]


def rows(
    store: Store, manifest: Manifest, selection: Selection | None = None
) -> list[dict[str, Any]]:
    """Return the messages of a backup that are asked for, sorted by their places."""
    found = [
        row
        for each in archived_messages(store, manifest, selection or Selection())
        for batch in each.read()
        for row in batch.to_pylist()
    ]
    return sorted(({**row, "properties": dict(row["properties"])} for row in found), key=place)


def _row(log: Log, topic: str, queue_id: int, offset: int) -> dict[str, Any]:
    position = log.state.topics.queue(topic, queue_id).locate(offset)
    payload = position.payload
    entry = log.entries[payload.index - 1]
    batch = ProduceFrame(entry.data, payload.start, payload.end)
    return message_row(batch, position.row, entry, queue_id=queue_id, queue_offset=offset)
