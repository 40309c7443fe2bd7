"""RETAIN: messages below an entry go, on all nodes at the same place in the log."""

from __future__ import annotations

import pytest

from dledger.broker.commands import Retain
from dledger.broker.results import Retained
from dledger.errors import InvalidArgument, OffsetOutOfRange
from tests.broker.log import Log, offsets


def _retain(log: Log, before_index: int) -> object:
    (result,) = log.append(Retain(before_index=before_index).encode())
    return result


def test_messages_below_the_index_are_gone() -> None:
    """The queue says which offsets it has."""
    log = Log()
    log.create()
    log.produce("a", "b")
    kept = log.produce("c")

    result = _retain(log, kept.index)

    assert result == Retained(first_index=kept.index, dropped=2)
    with pytest.raises(OffsetOutOfRange, match=r"offset 1 is outside \[2, 2\]"):
        log.state.topics.queue("t", 0).locate(1)
    assert log.state.topics.queue("t", 0).locate(2).payload.index == kept.index
    assert log.state.topics.messages("t") == 1


def test_a_group_goes_on_at_the_first_message_that_is_kept() -> None:
    """Leases below it end; the handle of a dropped message may still be acked, to no effect."""
    log = Log()
    log.create()
    log.produce("a", "b")
    held = log.receive(1)
    kept = log.produce("c")

    _retain(log, kept.index)

    assert log.ack(held) == (True,)
    assert offsets(log.receive()) == [2]


def test_a_group_that_comes_later_starts_at_the_first_message_that_is_kept() -> None:
    """That is the oldest message."""
    log = Log()
    log.create()
    log.produce("a")
    kept = log.produce("b")
    _retain(log, kept.index)

    assert log.state.groups.available("g", "t", [0], log.now_ms, enough=9) == 1
    assert log.state.groups.committed("g", "t", 0) == 1
    assert offsets(log.receive()) == [1]


def test_offsets_go_on_when_nothing_is_kept() -> None:
    """An empty queue remembers where it was."""
    log = Log()
    log.create()
    log.produce("a", "b")
    _retain(log, len(log.entries) + 1)

    assert log.state.topics.messages("t") == 0
    assert list(log.produce("c").offsets) == [2]


def test_what_is_not_committed_yet_cannot_be_dropped() -> None:
    """The command itself is the last entry it may name."""
    log = Log()
    log.create()

    assert isinstance(_retain(log, len(log.entries) + 2), InvalidArgument)
    assert log.state.first_index == 1


def test_a_lower_index_brings_nothing_back() -> None:
    """A command of a leader that was late changes nothing."""
    log = Log()
    log.create()
    log.produce("a")
    kept = log.produce("b")
    _retain(log, kept.index)

    assert _retain(log, 1) == Retained(first_index=kept.index, dropped=0)


def test_a_retry_of_a_dropped_message_is_still_recognised() -> None:
    """It is answered with its offset, without an entry."""
    log = Log()
    log.create()
    first = log.produce("a", ids=("1",))
    kept = log.produce("b", ids=("2",))
    _retain(log, kept.index)

    again = log.produce("a", ids=("1",))

    assert (list(again.offsets), again.stored, again.index) == (list(first.offsets), 0, 0)
