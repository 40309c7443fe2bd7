"""Idle time by the log's timestamps: each gap counts up to a maximum, and never backwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dledger.broker.active_time import ActiveTime

_STEPS = st.lists(st.integers(-5_000, 5_000), min_size=1, max_size=20)


@given(_STEPS, st.integers(1, 1_000))
def test_each_gap_counts_up_to_the_maximum(steps: list[int], max_step_ms: int) -> None:
    """Timestamps that go back count nothing, and what was counted stays."""
    time, log_ms = ActiveTime(max_step_ms), 10_000
    time.advance(log_ms)
    for step in steps:
        before_ms, newest_ms = time.ms, time.log_ms
        log_ms += step
        time.advance(log_ms)

        gap_ms = max(log_ms - newest_ms, 0)
        assert time.ms - before_ms == min(gap_ms, max_step_ms)
        assert time.log_ms == newest_ms + gap_ms


@given(_STEPS, st.integers(1, 1_000))
def test_what_would_be_is_what_comes_to_be(steps: list[int], max_step_ms: int) -> None:
    """A leader asks before it writes the entry; every node advances when it applies it."""
    time, log_ms = ActiveTime(max_step_ms), 10_000
    for step in steps:
        log_ms += step
        expected_ms = time.at(log_ms)
        time.advance(log_ms)

        assert time.ms == expected_ms
