"""From raw measurements to figures. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
