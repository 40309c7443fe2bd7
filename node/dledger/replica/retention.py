"""Decides when old messages are dropped: pure functions, whole segments, oldest first.

The leader proposes the decision as a RETAIN command; each node drops its segments once a snapshot
of its own no longer needs them. Called by `maintenance`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from dledger.store.log_index import SealedSegment

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """How long messages and consumer groups are kept.

    Attributes:
        hours: Lived hours after which messages are dropped; 0: never.
        group_hours: How long an unused consumer group is kept; 0: for ever.
    """

    hours: int
    group_hours: int = 0

    def unused_before_ms(self, active_ms: int) -> int:
        """Return the time (Unix ms) before which a group's last use expires it; 0: none expires."""
        return max(0, active_ms - self.group_hours * HOUR_MS) if self.group_hours else 0


def keep_from(
    segments: Sequence[SealedSegment],
    policy: RetentionPolicy,
    *,
    applied_index: int,
    excess_bytes: int,
    lived_ms: int,
    newest_ms: Callable[[SealedSegment], int],
) -> int:
    """Return the oldest index whose messages are kept; 0 if there is nothing to drop.

    Args:
        segments: The sealed segments, oldest first; the active one is never dropped.
        policy: How long messages are kept.
        applied_index: Everything up to it is committed; nothing above it is dropped.
        excess_bytes: Bytes to free whatever their age; segments dropped by age count towards them.
        lived_ms: The log's present time, as lived (`broker.lived_time`): never by a wall clock.
        newest_ms: Returns the lived time of the newest message in a segment; 0 if it has none.
            Called only where the result matters, since it may read the disk.
    """
    index = 0
    for segment in segments:
        if segment.last_index >= applied_index:
            break
        if excess_bytes <= 0 and not _is_old(newest_ms, segment, policy, lived_ms):
            break
        index = segment.last_index + 1
        excess_bytes -= segment.size_bytes
    return index


def _is_old(
    newest_ms: Callable[[SealedSegment], int],
    segment: SealedSegment,
    policy: RetentionPolicy,
    lived_ms: int,
) -> bool:
    return policy.hours > 0 and lived_ms - newest_ms(segment) >= policy.hours * HOUR_MS


def count_without(segments: Sequence[SealedSegment], index: int) -> int:
    """Return how many of the *segments*, oldest first, have only entries below *index*."""
    return bisect_left(segments, index, key=attrgetter("last_index"))


def size_bytes_of(segments: Sequence[SealedSegment]) -> int:
    """Return what *segments* take on the disk."""
    return sum(map(attrgetter("size_bytes"), segments))


def first_index_without(segments: Sequence[SealedSegment], index: int) -> int:
    """Return the log's first index if all *segments* entirely below *index* were dropped.

    0 if there is no such segment.
    """
    gone = count_without(segments, index)
    return segments[gone - 1].last_index + 1 if gone else 0
