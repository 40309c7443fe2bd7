"""The bytes of a disk's files, as a golden file: whoever changes one says so in its diff.

After the first release a format that is there never changes: a new one gets the next number
(docs/internals/storage-format.md).
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Final

import pytest

from dledger.store.format import (
    Base,
    Mark,
    SegmentHeader,
    SegmentIndex,
    encode_index,
    encode_mark,
    encode_records,
    encode_segment_header,
)
from dledger.store.hard_state import encode_hard_state
from dledger.store.snapshot_file import Snapshot, encode_snapshot
from dledger.types import HardState, Member, Membership, NodeId
from tests.store.harness import entry

_GOLDEN: Final = Path(__file__).parent / "golden/formats.txt"
_BASE: Final = Base(index=3, term=2, chain=9)
_MEMBER: Final = Member(id=NodeId("n1"), name="orders-0", address="a:1")


def test_files_have_these_bytes(request: pytest.FixtureRequest) -> None:
    """A segment with a record, its index, a slot of the watermark, hard state and snapshot."""
    header = SegmentHeader(group_id="g", node_id="n", first_index=4, previous_chain=9)
    records = encode_records([entry(4, data=b"body")], chain=9, position=4096)
    index = SegmentIndex(
        first_index=4,
        previous_chain=9,
        end=4152,
        positions=array("I", records.positions),
        chains=array("I", records.chains),
        runs=((1, 4),),
        memberships=(4,),
    )
    snapshot = Snapshot(
        group_id="g",
        applied=Base(index=5, term=2, chain=8),
        base=_BASE,
        memberships=((1, Membership.of([_MEMBER], "g")),),
        body=b"state",
    )
    found = {
        "segment": encode_segment_header(header).rstrip(b"\0"),
        "record": b"".join(records.buffers),
        "index": encode_index(index),
        "watermark": encode_mark(Mark(sequence=6, base=_BASE, index=4, chain=7)),
        "hard state": encode_hard_state(HardState(term=2, vote=NodeId("n1"))),
        "snapshot": b"".join(encode_snapshot(snapshot)),
    }

    text = "".join(f"{what}: {data.hex()}\n" for what, data in found.items())
    if request.config.getoption("--rewrite", default=False):
        _GOLDEN.write_text(text)
    assert text == _GOLDEN.read_text()
