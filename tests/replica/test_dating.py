"""How a node keeps the log's time by its group's date, and its word about its own clock."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.common.metrics import NodeMetrics
from dledger.common.reports import Report
from dledger.replica.dating import Dating
from dledger.replica.log_clock import LogClock
from dledger.replica.reports import Heard
from dledger.types import Member, Membership, NodeId, Role

_BEGIN_MS = 1_700_000_000_000
_IDS = [NodeId("n1"), NodeId("n2"), NodeId("n3")]


class _Node:
    """One node's dates, with all that it asks in a test's hand."""

    def __init__(self, *, newest_ms: int = _BEGIN_MS) -> None:
        self.s, self.wall_ms = 100.0, _BEGIN_MS
        self.clocks: dict[NodeId, int] = {}
        self.heard_s = 0.0  # how long ago
        self.asked: list[list[NodeId]] = []
        self.leaps: list[int] = []
        self.id, self.term, self.role = NodeId("n1"), 3, Role.LEADER
        members = [Member(id=i, name=i, address=i) for i in _IDS]
        self.memberships: Any = SimpleNamespace(current=Membership.of(members))
        self.log_clock = LogClock(self)
        self.log_clock.applied(newest_ms, 0)
        self.log_clock.lead()
        self.dating = Dating(
            self,
            clock=self,
            log_clock=self.log_clock,
            reports=self,  # type: ignore[arg-type]  # the part that is asked
            metrics=NodeMetrics("t", "n1"),
            leap=self._leap,
        )

    def monotonic_s(self) -> float:
        return self.s

    def unix_ms(self) -> int:
        return self.wall_ms

    def heard(self) -> dict[NodeId, Heard]:
        return {
            node_id: Heard(
                report=Report(incarnation="1", unix_ms=ms),
                heard_s=self.s - self.heard_s,
                waited_s=0.0,
            )
            for node_id, ms in self.clocks.items()
        }

    def ask(self, members: Iterable[NodeId], *, term: int) -> None:
        self.asked.append(list(members))

    def _leap(self, to_ms: int) -> int:
        self.leaps.append(to_ms)
        self.log_clock.leap(to_ms)
        return 10 + len(self.leaps)

    def hears(self, *clocks_ms: int) -> None:
        self.clocks = dict(zip(_IDS[1:], clocks_ms, strict=False))

    def look(self, *, after_s: float = 1.0, serves: bool = True, applied: int = 10) -> None:
        self.s += after_s
        self.dating.look(self.s, serves=serves, applied_index=applied)


def test_a_log_that_is_behind_the_date_leaps_to_it() -> None:
    """Five seconds are enough: an outage, a suspend, or a step of all clocks."""
    node = _Node()
    node.wall_ms = _BEGIN_MS + 60_000
    node.hears(node.wall_ms, node.wall_ms)

    node.look()

    assert node.leaps == [_BEGIN_MS + 60_000]
    assert node.log_clock.now_ms() == _BEGIN_MS + 60_000
    assert node.log_clock.lived_ms() == _BEGIN_MS + 1_000


def test_less_than_five_seconds_are_no_leap() -> None:
    """Clocks differ, and answers take their time."""
    node = _Node()
    node.hears(_BEGIN_MS + 5_900, _BEGIN_MS + 5_900)

    node.look()

    assert node.leaps == []


def test_one_leap_is_on_its_way_at_a_time() -> None:
    """Also when the date jumps on before it is applied."""
    node = _Node()
    node.hears(_BEGIN_MS + 60_000, _BEGIN_MS + 60_000)
    node.look()
    node.hears(_BEGIN_MS + 9_000_000, _BEGIN_MS + 9_000_000)

    node.look()
    assert len(node.leaps) == 1
    node.look(applied=11)
    assert len(node.leaps) == 2


def test_a_leap_that_was_cut_is_not_waited_for() -> None:
    """Its leader was deposed, and leads again in a later term; the entry was never committed."""
    node = _Node()
    node.hears(_BEGIN_MS + 60_000, _BEGIN_MS + 60_000)
    node.look()
    node.log_clock.follows(led=True)
    node.log_clock.lead()
    node.term += 2

    node.look()

    assert len(node.leaps) == 2


@pytest.mark.parametrize("heard", [(), (_BEGIN_MS + 99_000_000,)])
def test_one_clock_that_is_ahead_moves_nothing(heard: tuple[int, ...]) -> None:
    """Neither the leader's own nor another's, whoever else is heard or not."""
    node = _Node()
    node.wall_ms = _BEGIN_MS + 1_000 if heard else _BEGIN_MS + 99_000_000
    node.hears(*heard, *(() if heard else (_BEGIN_MS + 1_000,)))

    node.look()

    assert node.leaps == []
    assert node.log_clock.now_ms() == _BEGIN_MS + 1_000


def test_who_does_not_serve_does_not_leap() -> None:
    """A new leader has not applied all that its log has, perhaps a leap."""
    node = _Node()
    node.hears(_BEGIN_MS + 60_000, _BEGIN_MS + 60_000)

    node.look(serves=False)

    assert node.leaps == []


def test_a_log_that_is_ahead_of_the_date_runs_slower_until_they_meet() -> None:
    """Told as what it is, and not by what its own clock says."""
    node = _Node(newest_ms=_BEGIN_MS + 80_000)
    node.hears(_BEGIN_MS, _BEGIN_MS)

    node.look()
    assert (node.dating.ahead_ms, node.log_clock.is_slow) == (81_000, True)
    node.hears(_BEGIN_MS + 81_000, _BEGIN_MS + 82_000)
    node.look()

    assert node.log_clock.is_slow is False
    assert node.leaps == []


def test_a_clock_that_was_heard_goes_on_since() -> None:
    """By the own monotonic time; what is older than three seconds is not heard any more."""
    node = _Node()
    node.hears(_BEGIN_MS + 4_000, _BEGIN_MS + 4_000)
    node.heard_s = 2.5

    node.look(after_s=1)

    assert node.leaps == [_BEGIN_MS + 6_500]


def test_a_new_group_begins_with_its_date_and_not_with_one_clock() -> None:
    """Its first leader asks at once, and holds its first entry back until a majority answered."""
    node = _Node(newest_ms=0)
    node.wall_ms = _BEGIN_MS + 9_000_000
    node.look(after_s=0.05, serves=False)
    assert (node.asked, node.log_clock.is_dated) == ([_IDS], False)

    node.look(after_s=0.05, serves=False)
    node.look(after_s=0.06, serves=False)
    node.hears(_BEGIN_MS + 20, _BEGIN_MS)
    node.look(after_s=0.0, serves=False)
    before = node.log_clock.is_dated  # its log may have a time that it has not applied yet
    node.look(after_s=0.05)

    assert len(node.asked) == 2
    assert (before, node.log_clock.is_dated) == (False, True)
    assert node.log_clock.now_ms() == _BEGIN_MS + 20
    assert node.leaps == []


def test_a_new_group_that_hears_nobody_begins_all_the_same() -> None:
    """Years behind: a leap follows when a majority is heard. It is not held up for a date."""
    node = _Node(newest_ms=0)
    for _ in range(70):
        node.look(after_s=0.05)
    assert node.log_clock.is_dated
    began_ms = node.log_clock.now_ms()

    node.hears(_BEGIN_MS, _BEGIN_MS)
    node.look()

    assert began_ms < _BEGIN_MS / 10
    assert node.leaps == [_BEGIN_MS]


@pytest.mark.parametrize(
    ("own_s", "apart_ms", "side"), [(7, 6_000, "ahead of"), (-8, -9_000, "behi")]
)
def test_a_node_tells_that_its_clock_is_apart(
    own_s: int, apart_ms: int, side: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, whether it leads or not, and again when it was right meanwhile."""
    node = _Node()
    node.role = Role.FOLLOWER
    node.hears(_BEGIN_MS + 1_000, _BEGIN_MS + 1_000)
    with caplog.at_level(logging.WARNING):
        for wall_s in (own_s, own_s, 1, own_s):
            node.wall_ms = _BEGIN_MS + wall_s * 1_000
            node.look()
            assert node.dating.apart_ms == node.wall_ms - _BEGIN_MS - 1_000

    assert node.dating.apart_ms == apart_ms
    assert len(caplog.messages) == 2
    assert side in caplog.messages[0]


def test_without_a_majority_nobody_is_apart() -> None:
    """It is not known who is wrong; and nothing leaps, and nothing runs slower."""
    node = _Node()
    node.wall_ms = _BEGIN_MS + 9_000_000

    node.look()

    assert (node.dating.apart_ms, node.dating.ahead_ms, node.leaps) == (None, None, [])


def test_the_date_is_told_as_it_is_now() -> None:
    """Not as it was at the last look: what goes by it is asked for many times a second."""
    node = _Node()
    node.hears(_BEGIN_MS, _BEGIN_MS + 40)
    node.look()
    node.s += 0.25
    node.wall_ms += 86_400_000  # its own leaps ahead between two looks

    first = node.dating.date_ms()
    node.heard_s = 0.25
    second = node.dating.date_ms()

    assert (first, second) == (_BEGIN_MS + 40, _BEGIN_MS + 290)


def test_too_few_clocks_are_no_date() -> None:
    """A leader that is cut off knows only its own."""
    node = _Node()

    assert node.dating.date_ms() is None
