"""The garbage collector of a process whose picture of the cluster is large and lives long.

A full collection walks every object that is kept. With 500 groups that takes half a second and
more, in which no group is looked after.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import Any, Final

from dledger.common.memory import give_back

SLOW_S: Final = 0.05
"""What a full collection has walked for longer than this is left out of the next ones."""
ALL_AGAIN_S: Final = 300.0
"""After so long everything is walked once more, since a cycle that died meanwhile is still in
memory, and the system gets what is free. Nothing is left out before: of what comes and goes while
groups are founded, much would be."""


class Freezing:
    """Leaves old objects out of collections; to be put into `gc.callbacks`.

    They are still freed when their last reference goes, as nearly all are.
    """

    def __init__(self, *, slow_s: float = SLOW_S, all_again_s: float = ALL_AGAIN_S) -> None:
        self._slow_s, self._all_again_s = slow_s, all_again_s
        self._began_s = self._all_s = time.monotonic()
        self._is_young, self._gives_back = True, False

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        """Note that a collection begins, or look how long it took; see `gc.callbacks`."""
        if info["generation"] < _OLDEST:
            return
        now_s = time.monotonic()
        if phase == "stop":
            if now_s - self._began_s >= self._slow_s and not self._is_young:
                gc.freeze()
            if self._gives_back:
                self._gives_back = False
                give_back()
            return
        self._began_s = now_s
        if now_s - self._all_s >= self._all_again_s:
            self._all_s, self._is_young, self._gives_back = now_s, False, True
            gc.unfreeze()


_OLDEST: Final = len(gc.get_threshold()) - 1
