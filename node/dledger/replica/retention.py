"""When old messages go: decided here by pure functions, by whole segments, oldest first.

The leader proposes what is decided as a RETAIN command; each node drops its segments once a
snapshot of its own makes them dispensable. Called by `maintenance`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dledger.store.log_index import SealedSegment

_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """How long messages are kept, and consumer groups.

    Attributes:
        hours: Age at which messages go; 0: never.
        disk_watermark_percent: How full the disk may be before they go early; 0: no such limit.
        group_hours: How long a group is kept that nobody uses; 0: for ever.
    """

    hours: int
    disk_watermark_percent: int
    group_hours: int = 0

    def unused_before_ms(self, active_ms: int) -> int:
        """Return when a group that goes was used last at the latest; 0: none goes."""
        return max(0, active_ms - self.group_hours * _HOUR_MS) if self.group_hours else 0

    def excess_bytes(self, *, used_bytes: int, total_bytes: int) -> int:
        """Return by how much the disk is fuller than it may be; 0 if it is not."""
        if not self.disk_watermark_percent:
            return 0
        return max(0, used_bytes - total_bytes * self.disk_watermark_percent // 100)


def keep_from(
    segments: Sequence[SealedSegment],
    policy: RetentionPolicy,
    *,
    applied_index: int,
    excess_bytes: int,
    now_ms: int,
    newest_ms: Callable[[SealedSegment], int],
) -> int:
    """Return the oldest index whose messages are to be kept; 0: there is nothing to drop.

    Args:
        segments: The sealed ones, oldest first; the one that is written never goes.
        policy: How long messages are kept.
        applied_index: Everything up to it is committed; nothing above it goes.
        excess_bytes: What should be freed whatever its age; segments that are to go count.
        now_ms: The log's time, Unix milliseconds.
        newest_ms: Returns the time of the newest message in a segment; 0 if it has none. Asked
            only where it matters.
    """
    index = 0
    for segment in segments:
        if segment.last_index >= applied_index:
            break
        if excess_bytes <= 0 and not _is_old(newest_ms, segment, policy, now_ms):
            break
        index = segment.last_index + 1
        excess_bytes -= segment.size_bytes
    return index


def _is_old(
    newest_ms: Callable[[SealedSegment], int],
    segment: SealedSegment,
    policy: RetentionPolicy,
    now_ms: int,
) -> bool:
    return policy.hours > 0 and now_ms - newest_ms(segment) >= policy.hours * _HOUR_MS


def first_index_without(segments: Sequence[SealedSegment], index: int) -> int:
    """Return the first index of the log if all whole *segments* below *index* were gone.

    0 if none is.
    """
    gone = bisect_right(segments, index - 1, key=lambda segment: segment.last_index)
    return segments[gone - 1].last_index + 1 if gone else 0
