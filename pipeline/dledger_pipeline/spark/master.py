"""What Spark's master URL and settings say, for those who need no Spark to read them.

Used by `session` and by the jobs, which may do without Spark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

LOCAL: Final = "local[*]"
_LOCAL: Final = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?")


def is_local(master: str) -> bool:
    """Return whether tasks run on this machine, in processes of the driver's."""
    return _LOCAL.fullmatch(master) is not None


def tasks_at_once(master: str, conf: Mapping[str, str]) -> int | None:
    """Return how many tasks Spark runs at once; None if only the cluster knows."""
    local = _LOCAL.fullmatch(master)
    if local is not None:
        cores = local[1] or "1"
        return len(os.sched_getaffinity(0)) if cores == "*" else max(1, int(cores))
    executors = conf.get("spark.executor.instances", "")
    cores = conf.get("spark.executor.cores", "1")
    if not executors.isdecimal() or not cores.isdecimal():
        return None
    return max(1, int(executors)) * max(1, int(cores))
