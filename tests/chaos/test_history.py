"""A history is written down whole: an event a line, with what its type says."""

from __future__ import annotations

import io
import json
from dataclasses import asdict

import pytest

from e2e.chaos.history import Event, Kind, Outcome, Probe, Recorder, encode
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
def test_every_event_is_a_line_with_all_its_fields(event: Event) -> None:
    """Enums by their values; what has no end has none there."""
    line = encode(event)

    told = json.loads(line)
    assert "\n" not in line
    assert told.pop("event") == type(event).__name__.lower()
    outcome, kind, ended_s = told.get("outcome"), told.get("kind"), told.get("ended_s", 0)
    told |= {"outcome": Outcome(outcome)} if outcome else {}
    told |= {"kind": Kind(kind)} if kind else {}
    told |= {"ended_s": float("inf")} if ended_s is None else {}
    assert told == asdict(event)


def test_a_recorder_keeps_what_it_writes() -> None:
    """The checkers of the run and who reads the file later see the same."""
    out = io.StringIO()
    recorder = Recorder(out)
    for event in EVENTS:
        recorder.add(event)

    assert recorder.events == EVENTS
    assert out.getvalue().splitlines() == list(map(encode, EVENTS))
