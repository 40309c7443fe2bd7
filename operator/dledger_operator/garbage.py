"""The garbage collector of a process whose picture of the cluster is large and lives long.

A full collection walks every object that is kept. With 500 groups that takes half a second and
more, in which no group is looked after.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import Any, Final

SLOW_S: Final = 0.05
"""What a full collection has walked for longer than this is left out of the next ones."""
ALL_AGAIN_S: Final = 300.0
"""After so long everything is walked once more: a cycle that died meanwhile is still in memory.
Nothing is left out before: while 500 groups are founded, what comes and goes is a tenth of it."""


class Freezing:
    """Leaves old objects out of collections; to be put into `gc.callbacks`.

    They are still freed when their last reference goes, as nearly all are.
    """

    def __init__(self, *, slow_s: float = SLOW_S, all_again_s: float = ALL_AGAIN_S) -> None:
        self._slow_s, self._all_again_s = slow_s, all_again_s
        self._began_s = self._all_s = time.monotonic()
        self._is_young = True

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        """Note that a collection begins, or look how long it took; see `gc.callbacks`."""
        if info["generation"] < _OLDEST:
            return
        now_s = time.monotonic()
        if phase == "stop":
            if now_s - self._began_s >= self._slow_s and not self._is_young:
                gc.freeze()
            return
        self._began_s = now_s
        if now_s - self._all_s >= self._all_again_s:
            self._all_s, self._is_young = now_s, False
            gc.unfreeze()


_OLDEST: Final = len(gc.get_threshold()) - 1
