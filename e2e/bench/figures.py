"""From raw measurements to figures: latencies, and the time without an acknowledgement. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

QUANTILES: Final = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that *share* of all values do not exceed (nearest rank).

    Args:
        ordered: At least one value, ascending.
        share: In (0, 1].
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def latency_figures(latencies_us: Sequence[float]) -> dict[str, float]:
    """Return p50, p99, p99.9 and the maximum in milliseconds; nothing for no latencies."""
    if not latencies_us:
        return {}
    ordered = sorted(latencies_us)
    figures = {name: quantile(ordered, share) / 1000 for name, share in QUANTILES.items()}
    return figures | {"max_ms": ordered[-1] / 1000}


def send_times(rate: float, seconds: float) -> Iterator[float]:
    """Yield when each request of an open loop is due, in seconds from the start.

    Due times depend on nothing that happens: a request that goes out late because others are slow
    counts its waiting (no coordinated omission).
    """
    number = 0
    while (due_s := number / rate) < seconds:
        yield due_s
        number += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The longest silence that ended after a fault.

    Attributes:
        from_s: The last acknowledgement before it.
        to_s: The first one after it, or the end of the watch.
        is_over: Whether an acknowledgement ended it.
    """

    from_s: float
    to_s: float
    is_over: bool

    @property
    def seconds(self) -> float:
        """Its length; at least so long if it is not over."""
        return self.to_s - self.from_s


def longest_gap(acks_s: Sequence[float], *, fault_s: float, end_s: float, recent_s: float) -> Gap:
    """Return the longest time without an acknowledgement between *fault_s* and *end_s*.

    Not every fault shows at once: a node that is told to stop serves on for a moment. So it is
    the longest silence, not the first interval, and it counts from the last acknowledgement
    before, which may be older than the fault.

    Args:
        acks_s: When each acknowledgement came, ascending; one at least at or before the fault.
        fault_s: When the fault was made.
        end_s: When watching ended, after the fault.
        recent_s: How long the last one may be ago at the end where they flow: that is no gap.
    """
    edges = [at_s for at_s in acks_s if at_s <= end_s]
    over = [(a, b) for a, b in pairwise(edges) if b > fault_s]
    gaps = [Gap(from_s=a, to_s=b, is_over=True) for a, b in over]
    if not gaps or end_s - edges[-1] > recent_s:
        gaps.append(Gap(from_s=edges[-1], to_s=end_s, is_over=False))
    return max(gaps, key=lambda gap: gap.seconds)


def has_resumed(acks_s: Sequence[float], *, now_s: float, recent_s: float, steady_s: float) -> bool:
    """Whether acknowledgements flow: the newest is recent, and so were all for a while.

    Args:
        acks_s: Ascending.
        now_s: The present.
        recent_s: No two of them, nor the newest and now, are further apart than this.
        steady_s: For how long up to now.
    """
    edges = [at_s for at_s in acks_s if at_s >= now_s - steady_s]
    if not edges or edges[0] - (now_s - steady_s) > recent_s:
        return False
    return all(b - a <= recent_s for a, b in pairwise([*edges, now_s]))
