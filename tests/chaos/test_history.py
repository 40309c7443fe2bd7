"""A history written down is the same when it is read again."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from e2e.chaos.history import Event, Probe, Recorder, decode, encode, load
from tests.chaos.messages import WRITES, seen, unknown
from tests.chaos.registers import cas, read, refused, unanswered

EVENTS: list[Event] = [
    *WRITES,
    unknown(6),
    seen(1, 0),
    cas(0, 1, 3, 4),
    refused(cas(0, 1, 3, 4)),
    unanswered(read(0.25, 1, 3)),
    Probe(node="a", invoked_s=1.5, ended_s=2.5),
]


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_survives_its_line(event: Event) -> None:
    """Also what has no end."""
    assert decode(encode(event)) == event


@pytest.mark.parametrize("line", ["", "[]", '{"event": "other"}', '{"event": "probe", "x": 1}'])
def test_a_line_that_is_no_event_is_refused(line: str) -> None:
    """With an error of one type."""
    with pytest.raises(ValueError, match=r"."):
        decode(line)


def test_a_recorder_keeps_what_it_writes(tmp_path: Path) -> None:
    """The checkers of the run and those of a later reader see the same."""
    out = io.StringIO()
    recorder = Recorder(out)
    recorder.extend(EVENTS)
    (tmp_path / "history.jsonl").write_text(out.getvalue(), "utf-8")

    assert recorder.events == EVENTS
    assert list(load(tmp_path / "history.jsonl")) == EVENTS
