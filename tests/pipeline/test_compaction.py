"""Compaction: what a dict says has been beaten may go, by whom is told, and nothing else."""

from __future__ import annotations

import pickle
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_pipeline.archive import compaction
from dledger_pipeline.archive.compaction import Part, QueueDecision, by_queue, decide_keys
from dledger_pipeline.log.keys import KEY_SCHEMA

_ROW = st.tuples(
    st.sampled_from([1, 2, 7]),
    st.integers(0, 2),
    st.sampled_from(["", "a", "b", "ü", "c" * 40]),
    st.booleans(),
)
_Row = tuple[int, int, str, bool]
_Numbered = tuple[int, int, str, int, bool]


def _numbered(rows: list[_Row]) -> list[_Numbered]:
    """Give each message the next offset of its queue, with gaps, as a broker does."""
    ends: dict[tuple[int, int], int] = {}
    found = []
    for number, (generation, queue_id, key, tombstone) in enumerate(rows):
        offset = ends.get((generation, queue_id), 0) + number % 3
        ends[generation, queue_id] = offset + 1
        found.append((generation, queue_id, key, offset, tombstone))
    return found


def _table(rows: list[_Numbered]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(KEY_SCHEMA.names, row, strict=True)) for row in rows], KEY_SCHEMA
    )


def _by_dict(rows: list[_Numbered]) -> dict[tuple[int, int], dict[int, int]]:
    """Decide slowly and obviously: by which offset each of a queue's messages is beaten."""
    of_key: dict[tuple[int, int, str], dict[int, bool]] = {}
    for generation, queue_id, key, offset, tombstone in rows:
        same = of_key.setdefault((generation, queue_id, key), {})
        same[offset] = tombstone
    found: dict[tuple[int, int], dict[int, int]] = {}
    for (generation, queue_id, _), same in of_key.items():
        goes = found.setdefault((generation, queue_id), {})
        winner = max(same)
        goes |= {offset: winner for offset in same if offset != winner}
        if same[winner] and len(same) == 1:
            goes[winner] = winner
    return found


def _told(decisions: dict[tuple[int, int], QueueDecision]) -> dict[tuple[int, int], dict[int, int]]:
    return {
        queue: dict(zip(each.offsets.tolist(), each.by.tolist(), strict=True))
        for queue, each in decisions.items()
    }


@given(st.lists(_ROW, max_size=30), st.data())
def test_what_may_go_is_what_a_dict_says(rows: list[_Row], data: st.DataObject) -> None:
    """Several topics, queues and tombstones, in any order, some twice; keys apart or together."""
    numbered = _numbered(rows)
    again = data.draw(st.lists(st.sampled_from(numbered), max_size=9)) if numbered else []
    mixed = data.draw(st.permutations([*numbered, *again]))

    whole = by_queue([decide_keys(_table(mixed))])
    shares = [[row for row in mixed if len(row[2]) % 3 == share] for share in range(3)]
    apart = by_queue(decide_keys(_table(share)) for share in shares)

    assert _told(whole) == _told(apart) == _by_dict(numbered)
    keys = {row[:3] for row in numbered}
    for found in (whole, apart):
        assert sum(each.keys for each in found.values()) == len(keys)
        assert sum(each.messages for each in found.values()) == len(mixed)


def test_a_tombstone_is_alone_only_where_it_was_all_that_was_read_of_its_key() -> None:
    """With the value it deletes still there, whose turn may come later, the key would be back."""
    alone, deleting = (1, 0, "gone", 4, True), (1, 0, "a", 3, True)
    in_another = (1, 1, "a", 9, True)

    found = by_queue([decide_keys(_table([(1, 0, "a", 1, False), alone, deleting]))])
    others = by_queue([decide_keys(_table([in_another]))])

    assert _told(found) == {(1, 0): {1: 3, 4: 4}}
    assert _told(others) == {(1, 1): {9: 9}}


def _decision(goes: dict[int, int]) -> QueueDecision:
    return QueueDecision(
        generation=1,
        queue_id=0,
        keys=1,
        messages=len(goes),
        offsets=np.array(sorted(goes), np.int64),
        by=np.array([goes[each] for each in sorted(goes)], np.int64),
    )


@given(st.dictionaries(st.integers(0, 60), st.booleans()), st.integers(1, 20))
def test_a_call_names_just_those_that_may_go_within_what_was_read(
    goes: dict[int, bool], range_offsets: int
) -> None:
    """Whatever the bounds of ranges: no offset twice, none beyond, none that nobody read."""
    by = {offset: offset if is_alone else 99 for offset, is_alone in goes.items()}
    decision, named, lone = _decision(by), list[int](), list[int]()

    for part in decision.parts(range_offsets):
        stays, alone = _bits(part, part.stays), _bits(part, part.alone)
        gone = [part.first + at for at in np.flatnonzero(stays == 0).tolist()]
        named += gone
        lone += [part.first + at for at in np.flatnonzero(alone).tolist()]
        assert part.goes == len(gone)
        assert (gone[0], gone[-1]) == (part.first, part.to - 1)
        assert part.to - part.first <= range_offsets

    assert named == sorted(goes)
    assert lone == sorted(offset for offset, is_alone in goes.items() if is_alone)


def _bits(part: Part, packed: bytes) -> npt.NDArray[np.uint8]:
    raw = np.frombuffer(zlib.decompress(packed), np.uint8)
    return np.unpackbits(raw, count=part.to - part.first, bitorder="little")


def test_a_proof_is_the_newest_of_the_key() -> None:
    """Of a tombstone that is alone its own; of what stays there is none."""
    decision = _decision({3: 8, 5: 5, 7: 8})

    assert [decision.beaten_by(offset) for offset in (2, 3, 4, 5, 7, 8)] == [
        *(None, 8, None, 5, 8, None)
    ]


def test_a_decision_takes_sixteen_bytes_a_message_that_may_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As docs/pipeline.md promises of the driver, whatever keys are; in cells that have room."""
    monkeypatch.setattr(compaction, "_CELL_PAIRS", 1000)
    count = 30_000
    columns: dict[str, Any] = {
        "generation": [1] * count,
        "queue_id": [n % 3 for n in range(count)],
        "key": [f"a key that is longer than its message {n % 30}" for n in range(count)],
        "queue_offset": list(range(count)),
        "tombstone": [False] * count,
    }

    table = decide_keys(pa.table(columns, schema=KEY_SCHEMA))

    assert 16 * (count - 30) <= table.nbytes < 16 * count + 2000
    (first, *_) = by_queue([table]).values()
    assert len(pickle.dumps(first)) < 16 * count / 3 + 1000
    assert (first.keys, first.messages, len(first.offsets)) == (10, 10_000, 9_990)
