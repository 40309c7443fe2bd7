"""The time that a leader writes into its entries: it goes on by time under a leader, never back."""

from __future__ import annotations

import pytest

from dledger.replica.log_clock import LogClock

_BEGIN_MS = 1_700_000_000_000


class SetClock:
    """Monotonic time that stands where a test puts it; a wall clock that nobody may read."""

    def __init__(self) -> None:
        self.s = 1.0

    def monotonic_s(self) -> float:
        return self.s

    def unix_ms(self) -> int:
        raise AssertionError("the log's time went by a wall clock")

    def passes(self, log_clock: LogClock, s: float) -> None:
        """Let time pass with a tick each second."""
        end_s = self.s + s
        while self.s < end_s:
            self.s = min(self.s + 1, end_s)
            log_clock.look()


def _leading() -> tuple[SetClock, LogClock]:
    clock = SetClock()
    log_clock = LogClock(clock)
    log_clock.applied(_BEGIN_MS, 0)
    log_clock.lead()
    return clock, log_clock


def test_a_leader_goes_on_by_monotonic_time_from_the_newest_entry() -> None:
    """What its wall clock says is no date."""
    clock, log_clock = _leading()

    clock.s += 2.5

    assert log_clock.now_ms() == _BEGIN_MS + 2_500


def test_a_new_leader_counts_the_time_since_it_applied_the_newest_entry() -> None:
    """As long as it was led: a quiet hour under the old leader is an hour of the log."""
    clock = SetClock()
    log_clock = LogClock(clock)
    log_clock.follows(led=True)
    clock.passes(log_clock, 100)
    log_clock.applied(_BEGIN_MS, 0)
    clock.passes(log_clock, 3_600)

    log_clock.lead()

    assert log_clock.now_ms() == _BEGIN_MS + 3_600_000


def test_time_without_a_leader_is_not_the_logs() -> None:
    """Two of three were off for a weekend; the third stayed up, and nothing aged."""
    clock = SetClock()
    log_clock = LogClock(clock)
    log_clock.follows(led=True)
    log_clock.applied(_BEGIN_MS, 0)
    clock.passes(log_clock, 10)
    log_clock.follows(led=False)
    clock.passes(log_clock, 60_000)

    log_clock.lead()

    assert log_clock.now_ms() == _BEGIN_MS + 10_000


def test_time_in_which_the_process_was_frozen_is_not_the_logs() -> None:
    """Monotonic time goes on in a paused container; no tick came meanwhile."""
    clock, log_clock = _leading()

    clock.s += 60 * 3_600

    assert log_clock.now_ms() == _BEGIN_MS + 5_000


def test_time_is_never_behind_an_applied_entry() -> None:
    """Also one that another leader wrote, and that is applied once this one leads."""
    _, log_clock = _leading()

    log_clock.applied(_BEGIN_MS + 90_000, 0)
    log_clock.applied(_BEGIN_MS + 20_000, 0)

    assert log_clock.now_ms() == _BEGIN_MS + 90_000


def test_a_log_that_is_ahead_runs_at_seven_eighths() -> None:
    """It does not stand still: a lease of 8 s would end when the date has come, in days."""
    clock, log_clock = _leading()
    clock.passes(log_clock, 8)
    log_clock.is_slow = True
    clock.passes(log_clock, 8)
    log_clock.is_slow = False
    clock.passes(log_clock, 8)

    assert log_clock.now_ms() == _BEGIN_MS + 8_000 + 7_000 + 8_000


def test_a_leap_moves_time_and_no_lived_time() -> None:
    """At once, so that what is proposed behind it is of the later time."""
    clock, log_clock = _leading()
    clock.passes(log_clock, 3)

    assert log_clock.leap(_BEGIN_MS + 100_000) == _BEGIN_MS + 3_000

    assert log_clock.now_ms() == _BEGIN_MS + 100_000
    assert log_clock.lived_ms() == _BEGIN_MS + 3_000
    log_clock.applied(_BEGIN_MS + 100_000, 97_000)
    clock.passes(log_clock, 1)
    assert log_clock.now_ms() == _BEGIN_MS + 101_000
    assert log_clock.lived_ms() == _BEGIN_MS + 4_000


def test_a_leap_that_was_never_applied_counts_for_nothing() -> None:
    """Its leader was deposed; should it lead again, it goes on from what was committed."""
    clock, log_clock = _leading()
    log_clock.leap(_BEGIN_MS + 100_000)
    log_clock.follows(led=True)
    clock.passes(log_clock, 2)

    log_clock.lead()

    assert (log_clock.now_ms(), log_clock.lived_ms()) == (_BEGIN_MS + 2_000, _BEGIN_MS + 2_000)


@pytest.mark.parametrize(("date_ms", "first_ms"), [(_BEGIN_MS, _BEGIN_MS), (0, 31_536_000_000)])
def test_a_new_group_begins_with_the_date(date_ms: int, first_ms: int) -> None:
    """There is no entry to go on from; without a date it is 1971, and a leap follows."""
    log_clock = LogClock(SetClock())
    log_clock.lead()
    before = log_clock.is_dated

    log_clock.begin(date_ms)

    assert (before, log_clock.is_dated) == (False, True)
    assert log_clock.now_ms() == log_clock.lived_ms() == first_ms


def test_a_log_that_has_a_time_does_not_begin_again() -> None:
    """Only a leap may move it."""
    _, log_clock = _leading()

    log_clock.begin(_BEGIN_MS + 1)

    assert log_clock.now_ms() == _BEGIN_MS
