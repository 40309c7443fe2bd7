"""Which segments go: values in, one index out."""

from __future__ import annotations

from dledger.replica.retention import RetentionPolicy, first_index_without, keep_from
from dledger.store.log_index import SealedSegment

_HOUR_MS = 3_600_000
_SEGMENTS = [SealedSegment(n * 10 + 1, n * 10 + 10, 100) for n in range(4)]


def _keep_from(
    *, hours: int = 0, excess_bytes: int = 0, applied_index: int = 1_000, now_h: int = 100
) -> int:
    """Decide for four segments whose newest messages are 0, 1, 2 and 3 hours past the epoch."""
    return keep_from(
        _SEGMENTS,
        RetentionPolicy(hours=hours),
        applied_index=applied_index,
        excess_bytes=excess_bytes,
        lived_ms=now_h * _HOUR_MS,
        newest_ms=lambda segment: segment.first_index // 10 * _HOUR_MS,
    )


def test_whole_segments_of_the_age_go() -> None:
    """A segment goes when its newest message is old enough."""
    assert _keep_from(hours=3, now_h=4) == 21
    assert _keep_from(hours=3, now_h=2) == 0


def test_without_a_limit_nothing_goes() -> None:
    """Zero hours means: kept for ever."""
    assert _keep_from(hours=0) == 0


def test_a_full_disk_lets_as_many_segments_go_as_it_takes() -> None:
    """Whatever their age, oldest first."""
    assert _keep_from(excess_bytes=1) == 11
    assert _keep_from(excess_bytes=250) == 31


def test_what_goes_for_its_age_counts_for_the_disk() -> None:
    """Nothing more is dropped than one of the two asks for."""
    assert _keep_from(hours=3, now_h=4, excess_bytes=200) == 21


def test_nothing_above_what_is_applied_goes() -> None:
    """Not even on a full disk."""
    assert _keep_from(excess_bytes=1_000, applied_index=25) == 21
    assert _keep_from(excess_bytes=1_000, applied_index=29) == 21
    assert _keep_from(excess_bytes=1_000, applied_index=31) == 31


def test_groups_go_by_hours_of_the_log() -> None:
    """Zero hours mean: never; and nothing was used before the epoch."""
    policy = RetentionPolicy(hours=0, group_hours=2)
    off = RetentionPolicy(hours=0)

    assert policy.unused_before_ms(5 * _HOUR_MS) == 3 * _HOUR_MS
    assert policy.unused_before_ms(_HOUR_MS) == 0
    assert off.unused_before_ms(5 * _HOUR_MS) == 0


def test_only_whole_segments_below_an_index_can_be_dropped() -> None:
    """The first index moves to the beginning of a segment."""
    assert first_index_without(_SEGMENTS, 10) == 0
    assert first_index_without(_SEGMENTS, 11) == 11
    assert first_index_without(_SEGMENTS, 35) == 31
