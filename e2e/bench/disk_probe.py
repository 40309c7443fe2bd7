"""A look at the disk from beside the nodes: a small write and sync, over and over.

A leader whose disk hangs gives way, which is what it should do, and an election without a fault of
ours. Whether the disk did hang then is not for the nodes to say.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from e2e.bench.elections import Made
from e2e.bench.faults import SETTLED_S
from e2e.bench.sampler import Background

_BYTES: Final = 4096
_EVERY_S: Final = 0.05
_HANG_S: Final = 0.4
"""A little less than the 0.5 s after which a leader that is behind gives way."""


class DiskProbe(Background):
    """Writes to *path* in a thread of its own, from `start` to `stop`.

    Attributes:
        hangs: Each write and sync that took 0.4 s or more, as what was done to the group: it hits
            the leader as well, since all share the disk.
        longest_s: The longest one of all; None before the first has ended.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.hangs: list[Made] = []
        self.longest_s: float | None = None

    def _watch(self) -> None:
        data = os.urandom(_BYTES)
        fd = os.open(self._path, os.O_CREAT | os.O_RDWR)
        try:
            while not self._over.wait(_EVERY_S):
                begin_s = time.monotonic()
                os.pwrite(fd, data, 0)
                os.fdatasync(fd)
                self.took(begin_s, time.monotonic())
        finally:
            os.close(fd)

    def took(self, begin_s: float, end_s: float) -> None:
        """Note one write and sync, by the monotonic clock."""
        self.longest_s = max(self.longest_s or 0.0, end_s - begin_s)
        if end_s - begin_s >= _HANG_S:
            self.hangs.append(
                Made(
                    name=f"the machine's disk hung for {end_s - begin_s:.1f} s",
                    begin_s=begin_s,
                    end_s=end_s + SETTLED_S,
                    hits_leader=True,
                )
            )
