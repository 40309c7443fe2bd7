"""A member's report as bytes: it comes out as it went in, and nothing else comes out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.common.reports import MAX_MARKS, MAX_REPORT_BYTES, MAX_UNIX_MS, Mark, Report, Room
from dledger.errors import InvalidArgument
from dledger.types import MAX_NUMBER, NodeId

NUMBER = st.integers(min_value=0, max_value=MAX_NUMBER - 1)
ROOM = st.builds(Room, total_bytes=NUMBER, free_bytes=NUMBER, own_bytes=NUMBER, budget_bytes=NUMBER)
MARK = st.builds(Mark, last_term=NUMBER, last_index=NUMBER, term=NUMBER)
SAID: dict[str, Any] = {"incarnation": "a", "unix_ms": 1, "room": None, "marks": {}}


@given(
    st.integers(min_value=0, max_value=MAX_UNIX_MS - 1),
    st.none() | ROOM,
    st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), MARK),
)
def test_a_report_comes_out_as_it_went_in(
    unix_ms: int, room: Room | None, marks: dict[str, Mark]
) -> None:
    """For all values of all fields."""
    known = {NodeId(name): mark for name, mark in marks.items()}
    report = Report(incarnation="b1946ac9", unix_ms=unix_ms, room=room, marks=known)

    assert Report.decode(report.encode()) == report


def test_the_largest_report_fits() -> None:
    """Or a group with as many members as may be told of would never hear of each other."""
    most = MAX_NUMBER - 1
    mark = Mark(last_term=most, last_index=most, term=most)
    marks = {NodeId(f"{number:064}"): mark for number in range(MAX_MARKS)}
    room = Room(total_bytes=most, free_bytes=most, own_bytes=most, budget_bytes=most)
    report = Report(incarnation="i" * 64, unix_ms=MAX_UNIX_MS - 1, room=room, marks=marks)

    assert len(report.encode()) <= MAX_REPORT_BYTES
    assert Report.decode(report.encode()) == report


def test_a_field_of_a_newer_version_is_read_over() -> None:
    """A report is no entry: what it says besides is not needed to go on."""
    said = SAID | {"colour": "blue"}

    assert Report.decode(json.dumps(said).encode()) == Report(incarnation="a", unix_ms=1)


@pytest.mark.parametrize(
    "said",
    [
        {},
        [],
        None,
        SAID | {"unix_ms": -1},
        SAID | {"unix_ms": MAX_UNIX_MS},
        SAID | {"unix_ms": 1.5},
        SAID | {"unix_ms": True},
        SAID | {"incarnation": ""},
        SAID | {"incarnation": "two\nlines"},
        SAID | {"room": {"total_bytes": 1}},
        SAID | {"room": 7},
        SAID | {"marks": {"n1": {"last_term": 1, "last_index": MAX_NUMBER, "term": 1}}},
        SAID | {"marks": {"": {"last_term": 1, "last_index": 1, "term": 1}}},
        SAID | {"marks": [1]},
        SAID | {"marks": {str(n): None for n in range(MAX_MARKS + 1)}},
    ],
)
def test_what_is_no_report_is_refused(said: object) -> None:
    """No bytes of a peer become a clock, a disk or a log that nobody has."""
    with pytest.raises(InvalidArgument, match="not a member's report"):
        Report.decode(json.dumps(said).encode())


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    """By one error, whatever they are."""
    with pytest.raises(InvalidArgument):
        Report.decode(data)


def test_a_report_that_is_too_long_is_not_parsed() -> None:
    """Nested or huge, it costs nothing."""
    with pytest.raises(InvalidArgument, match="bytes are too many"):
        Report.decode(b"[" * (MAX_REPORT_BYTES + 1))
