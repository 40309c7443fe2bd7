"""Whether leadership should go to the node that clients use.

An SDK keeps to one node of its route, and it does not know who leads. When that node is a follower,
each of its requests costs a second RPC. So a leader counts through which nodes requests come, and
when nearly all come through one follower, for long enough, hands over to it. See docs/adr/0005.
Pure: the gateway counts, asks at the end of each window, and acts.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from dledger.types import NodeId

WINDOW_S: Final = 5.0
_MIN_REQUESTS: Final = 100
"""In one window; below, a second RPC a request costs less than a hand-over."""
_SHARE: Final = 0.75
_WINDOWS: Final = 2
"""In a row, through the same follower."""
_MAX_WINDOWS: Final = 64
_CALM_WINDOWS: Final = 120
"""Without a hand-over by this node, and it is as ready for one as at first."""


class LeaderLocality:
    """What one leader knows of where its requests come from."""

    def __init__(self, node_id: NodeId) -> None:
        self._node_id = node_id
        self._requests: Counter[NodeId] = Counter()
        self._favourite: NodeId | None = None
        self._windows = self._calm_windows = 0
        self._needed_windows = _WINDOWS

    def note(self, through: NodeId | None) -> None:
        """Count one request that follower *through* sent here; None: it came by itself."""
        self._requests[through or self._node_id] += 1

    def forget(self) -> None:
        """End a window in which this node did not lead."""
        self._requests.clear()
        self._favourite, self._windows = None, 0
        self._calm()

    def end_window(self) -> NodeId | None:
        """Return the follower that should lead; None: all is well as it is.

        If leadership comes back, whatever the reason, it takes twice as long the next time.
        """
        favourite = self._favoured()
        self._windows = self._windows + 1 if favourite == self._favourite else 1
        self._favourite = favourite
        self._requests.clear()
        if favourite is None or self._windows < self._needed_windows:
            self._calm()
            return None
        self._calm_windows = 0
        self._needed_windows = min(2 * self._needed_windows, _MAX_WINDOWS)
        return favourite

    def _calm(self) -> None:
        self._calm_windows += 1
        if self._calm_windows >= _CALM_WINDOWS:
            self._needed_windows = _WINDOWS

    def _favoured(self) -> NodeId | None:
        total = self._requests.total()
        if total < _MIN_REQUESTS:
            return None
        node, requests = self._requests.most_common(1)[0]
        return node if node != self._node_id and requests >= _SHARE * total else None
