"""Decides whether leadership should move to the node that clients use.

An SDK uses one node of its route, and does not know which one leads. If that node is a follower,
each request costs a second RPC. So a leader counts the nodes through which requests arrive, and if
nearly all come through one follower for long enough, it transfers leadership there. See
docs/adr/0005. Pure: the pipelines count; `server.client_tasks` asks at the end of each window, and
acts.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from dledger.types import NodeId

WINDOW_S: Final = 5.0
_MIN_REQUESTS: Final = 100
"""Least requests in a window; with fewer, the second RPCs cost less than a transfer."""
_SHARE: Final = 0.75
_WINDOWS: Final = 2
"""Windows in a row in which requests came through the same follower."""
_MAX_WINDOWS: Final = 64
_CALM_WINDOWS: Final = 120
"""Windows without a transfer after which the threshold returns to `_WINDOWS`."""


class LeaderLocality:
    """Counts through which nodes one leader's requests arrive."""

    def __init__(self, node_id: NodeId) -> None:
        self._node_id = node_id
        self._requests: Counter[NodeId] = Counter()
        self._favourite: NodeId | None = None
        self._windows = self._calm_windows = 0
        self._needed_windows = _WINDOWS

    def note(self, through: NodeId | None, count: int = 1) -> None:
        """Count requests that follower *through* forwarded; None: they came directly."""
        self._requests[through or self._node_id] += count

    def forget(self) -> None:
        """End a window in which this node did not lead."""
        self._requests.clear()
        self._favourite, self._windows = None, 0
        self._calm()

    def end_window(self) -> NodeId | None:
        """Return the follower that should lead; None to leave leadership here.

        If leadership returns for any reason, the next transfer needs twice as many windows.
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
