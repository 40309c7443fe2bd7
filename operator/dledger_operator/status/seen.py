"""When a status is written only to say that somebody still looks: `status.seenAt`. Pure.

Who reads a table of groups has to know whether it is of now: an operator that is away leaves its
last one standing. Each write goes to etcd and to everyone who watches, so all groups of an operator
share one a second, however many they are.
"""

from __future__ import annotations

import zlib
from typing import Final

from dledger_operator.observed.job_status import seconds_between

LEAST_S: Final = 60.0
"""No group is written more often for it alone: a round at rest is done once a minute."""
WRITES_A_SECOND: Final = 1.0
"""Of all groups together. One costs the operator some 5 ms, and the API server as much."""
_SPREAD: Final = 0.5
"""Groups that were written together, as after an upgrade, drift apart by it."""


def seen_every_s(groups: int, uid: str) -> float:
    """Return after how many seconds a group's status is written anew, with so many *groups*."""
    part = zlib.crc32(uid.encode()) / (1 << 32)
    return max(LEAST_S, groups / WRITES_A_SECOND) * (1 + _SPREAD * (part - 0.5))


def is_due(before: str, now: str, *, every_s: float) -> bool:
    """Whether what was seen at *before*, RFC 3339 or empty, is too old; a clock may go back."""
    return not before or not 0 <= seconds_between(before, now) < every_s
