"""Whether memory grows, from looks at the nodes' processes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What one process took, from its start to its end or the run's.

    Attributes:
        node: The node's name.
        rss_mb: (seconds since its first look, memory) at each look, in order.
    """

    node: str
    rss_mb: Sequence[tuple[float, float]]

    @property
    def peak_mb(self) -> float:
        """The most it took at any look."""
        return max(mb for _, mb in self.rss_mb)

    def growth(self, *, warm_up_s: float, least_s: float) -> float | None:
        """Return by which part memory grew: median of the last quarter over that of the first.

        Args:
            warm_up_s: What does not count: caches fill, and what was missed is fetched.
            least_s: What has to be left; None is returned for a shorter life.
        """
        counted = [(at_s, mb) for at_s, mb in self.rss_mb if at_s >= warm_up_s]
        if not counted or counted[-1][0] - counted[0][0] < least_s:
            return None
        values = [mb for _, mb in counted]
        quarter = max(1, len(values) // 4)
        return median(values[-quarter:]) / median(values[:quarter]) - 1
