"""The time that a leader writes into its entries: it goes on, and never back."""

from __future__ import annotations

from dledger.replica.log_clock import LogClock


class SetClock:
    """Clocks that stand where a test puts them."""

    def __init__(self, *, s: float, ms: int) -> None:
        self.s, self.ms = s, ms

    def monotonic_s(self) -> float:
        return self.s

    def unix_ms(self) -> int:
        return self.ms


def test_the_wall_clock_is_read_when_leadership_starts() -> None:
    """From then on monotonic time is added, whatever the wall clock does."""
    clock = SetClock(s=1.0, ms=50_000)
    log_clock = LogClock(clock)
    clock.ms = 90_000
    log_clock.lead()

    clock.s, clock.ms = 3.5, 10_000

    assert log_clock.now_ms() == 92_500


def test_time_goes_on_from_the_newest_entry_where_the_wall_clock_is_behind_it() -> None:
    """It does not stand still until the wall clock has caught up: what is due comes in time."""
    clock = SetClock(s=1.0, ms=90_000)
    log_clock = LogClock(clock)
    log_clock.applied(90_000)
    clock.ms = 10_000
    log_clock.lead()

    clock.s = 3.5

    assert log_clock.now_ms() == 92_500


def test_time_is_never_behind_an_applied_entry() -> None:
    """Also one that another leader wrote after this one had begun to lead, once."""
    log_clock = LogClock(SetClock(s=1.0, ms=10_000))
    log_clock.lead()

    log_clock.applied(90_000)
    log_clock.applied(20_000)

    assert log_clock.now_ms() == 90_000
