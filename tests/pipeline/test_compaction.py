"""Compaction: the newest message for each key stays, as a dict would have it; the rest is left."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dledger_pipeline.archive.compaction import (
    NEWEST_SCHEMA,
    SLIM_COLUMNS,
    Winners,
    merged,
    newest,
    winners,
)
from dledger_pipeline.log.messages import MESSAGE_SCHEMA

_TOPICS = ("compacted", "also", "other")
_ASKED = frozenset(_TOPICS[:2])
_MESSAGE = st.tuples(
    st.sampled_from(_TOPICS),
    st.integers(0, 1),
    st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=3),
)
_BATCHES = st.lists(st.lists(_MESSAGE, max_size=8), max_size=4)


def _messages(batches: list[list[tuple[str, int, list[str]]]]) -> list[pa.RecordBatch]:
    """Give each message the next offset of its queue and the next index, as a broker does."""
    ends: dict[tuple[str, int], int] = {}
    index, found = 0, []
    for batch in batches:
        rows = []
        for topic, queue_id, keys in batch:
            index, offset = index + 1, ends.get((topic, queue_id), 0)
            ends[topic, queue_id] = offset + 1
            rows.append(_row(topic, queue_id, offset, keys, index))
        found.append(pa.RecordBatch.from_pylist(rows, schema=MESSAGE_SCHEMA))
    return found


def _row(topic: str, queue_id: int, offset: int, keys: list[str], index: int) -> dict[str, Any]:
    empty = dict.fromkeys(("message_id", "tag", "client_id", "born_host", "trace_context"), "")
    zero = dict.fromkeys(("born_at_ms", "stored_at_ms", "term"), 0)
    place = {"topic": topic, "queue_id": queue_id, "queue_offset": offset, "index": index}
    return empty | zero | place | {"keys": keys, "properties": [], "body": b"x", "encoding": 1}


def _by_dict(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compact slowly and obviously: the last one to write a dict's entry is the newest."""
    last: dict[tuple[str, int, str], int] = {}
    for row in rows:
        for key in row["keys"]:
            last[row["topic"], row["queue_id"], key] = row["index"]
    stays = set(last.values())
    return [
        row
        for row in rows
        if row["topic"] not in _ASKED or not row["keys"] or row["index"] in stays
    ]


@given(_BATCHES)
def test_what_stays_is_what_a_dict_says(
    batches: list[list[tuple[str, int, list[str]]]],
) -> None:
    """The newest of each key, messages without keys and other topics stay, and indexes ascend."""
    messages = _messages(batches)
    slim = [batch.select(SLIM_COLUMNS) for batch in messages]

    stay = Winners(winners(merged(newest([batch], _ASKED) for batch in slim)), _ASKED)
    found = [row for batch in messages for row in stay.filter(batch).to_pylist()]

    assert found == _by_dict([row for batch in messages for row in batch.to_pylist()])
    assert [row["index"] for row in found] == sorted(row["index"] for row in found)


@given(_BATCHES)
def test_the_newest_of_parts_are_the_newest_of_the_whole(
    batches: list[list[tuple[str, int, list[str]]]],
) -> None:
    """Ranges can be looked at apart, in any number of tasks, and their answers merged."""
    messages = _messages(batches)

    apart = merged(newest([batch], _ASKED) for batch in reversed(messages))

    whole = newest(messages, _ASKED)
    order = [("topic", "ascending"), ("queue_id", "ascending"), ("key", "ascending")]
    assert apart.sort_by(order).equals(whole.sort_by(order))


def test_what_stays_takes_eight_bytes_a_message_whatever_its_keys_are() -> None:
    """As docs/pipeline.md promises of the driver: what it is sent, and what it sends to tasks."""
    count = 100_000
    columns = {
        "topic": ["a topic with a long name"] * count,
        "queue_id": [n % 3 for n in range(count)],
        "key": ["a key that is longer than the message it is of " + str(n) for n in range(count)],
        "queue_offset": range(count),
    }
    places = winners(pa.table(columns, schema=NEWEST_SCHEMA))

    stay = Winners(places, ["a topic with a long name"])

    assert 8 * count <= places.nbytes < 8 * count + 1000
    assert 8 * count <= len(pickle.dumps(stay)) < 8 * count + 1000
    assert winners(pa.table(columns, schema=NEWEST_SCHEMA).slice(0, 0)).num_rows == 0


def test_winners_that_come_in_parts_are_the_same_winners() -> None:
    """In any order, and some of them twice: a message may be the newest of keys in two parts."""
    rows = [("t", 0, "a", 5), ("t", 0, "b", 1), ("t", 1, "a", 5), ("t", 0, "c", 5)]
    table = pa.Table.from_pylist(
        [dict(zip(NEWEST_SCHEMA.names, row, strict=True)) for row in rows], NEWEST_SCHEMA
    )
    parts = pa.concat_tables([winners(table.slice(2, 2)), winners(table.slice(0, 2))])
    offsets = [(0, 0), (0, 1), (0, 4), (0, 5), (0, 6), (1, 1), (1, 5), (2, 5)]
    messages = pa.RecordBatch.from_pylist(
        [_row("t", queue_id, offset, ["k"], offset) for queue_id, offset in offsets],
        schema=MESSAGE_SCHEMA,
    )

    kept = Winners(parts, ["t"]).filter(messages)

    assert list(zip(*(kept.column(n).to_pylist() for n in SLIM_COLUMNS[1:3]), strict=True)) == [
        (0, 1),
        (0, 5),
        (1, 5),
    ]
