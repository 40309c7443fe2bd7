"""What a message may cost in calls of our own: deterministic counts, so a test may hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dledger
from dledger.rocketmq.sending import Sender
from dledger_sim.paths import AT_MOST, Paths


def measured() -> dict[str, float]:
    """Return each figure."""
    return {line.what: line.entries for line in Paths().lines()}


def passed() -> set[str]:
    """Return the figures that are more than they may be."""
    return {line.what for line in Paths().lines() if line.is_passed}


def test_a_message_takes_no_more_calls_than_it_did() -> None:
    """And each figure is there, the same in each run."""
    first = measured()

    assert {what: figure for what, figure in first.items() if not 0 < figure <= AT_MOST[what]} == {}
    assert first.keys() == AT_MOST.keys()
    assert measured() == first


def test_one_call_more_passes_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a function among ours, on the way of a message alone and of many."""
    next_one = Sender.begin

    def begin(*arguments: Any) -> Any:
        return next_one(*arguments)

    among_ours = str(Path(dledger.__file__).with_name("planted.py"))
    begin.__code__ = begin.__code__.replace(co_filename=among_ours)
    monkeypatch.setattr(Sender, "begin", begin)

    assert passed() == {"SendMessage alone, at the leader", "32 at once, a message"}
