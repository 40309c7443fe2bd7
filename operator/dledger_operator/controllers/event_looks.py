"""What Events say of an object: read while it matters, and the less often the longer.

No watch of Events is kept: they are many, and of others. But each reading is one of all Events of a
namespace to the API server, so that what has been so for days is not read every five seconds. Used
by `absences` for pods, and by `job_troubles` for Jobs and theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

from dledger_operator.cluster.api import ApiError

log: Final = logging.getLogger(__name__)

LOOKED_S: Final = 5.0
"""How often, of one object, at first."""
CALM_S: Final = 60.0
"""How often in the end, which is so after a few minutes."""
_PART: Final = 4
"""Of the time for which something has been looked at: as long it is let alone before the next."""
_KEPT_S: Final = 600.0
"""What nobody asked about for so long is over: each backup has a Job, with pods."""


@dataclass(slots=True)
class _Look:
    first_s: float
    at_s: float
    asked_s: float
    said: str = ""

    def is_due(self, now_s: float) -> bool:
        """Whether it is to be read again."""
        pause_s = (self.at_s - self.first_s) / _PART
        return now_s - self.at_s >= min(CALM_S, max(LOOKED_S, pause_s))


class EventLooks:
    """Reads Events on objects; what it remembers only saves reading them again.

    Args:
        monotonic_s: The clock.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._looks: dict[str, _Look] = {}

    def recall(self, uid: str) -> str | None:
        """Return what was said of an object; None if nothing was read of it lately."""
        found = self._looks.get(uid)
        if found is None:
            return None
        found.asked_s = self._monotonic_s()
        return found.said

    def forget(self, uid: str) -> None:
        """Drop what was said: if it hangs once more, it may be for another reason."""
        self._looks.pop(uid, None)

    def keep(self, uids: Collection[str]) -> None:
        """Drop what was said of all others."""
        self._looks = {uid: found for uid, found in self._looks.items() if uid in uids}

    async def read(self, uid: str, look: Callable[[], Awaitable[str]]) -> str:
        """Return what Events say of an object, by *look* if that is due; what fails is logged."""
        now_s = self._monotonic_s()
        if self.recall(uid) is None:
            self._looks = {k: v for k, v in self._looks.items() if now_s - v.asked_s < _KEPT_S}
            self._looks[uid] = _Look(first_s=now_s, at_s=float("-inf"), asked_s=now_s)
        found = self._looks[uid]
        if found.at_s < found.first_s or found.is_due(now_s):
            found.at_s = now_s
            try:
                found.said = await look()
            except ApiError as error:
                log.warning("Events on %s: %s", uid, error)
        return found.said
