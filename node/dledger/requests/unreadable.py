"""Messages in the log that cannot be told: no door lets one in, but an older log may have some.

Who delivers or reads leaves such a message out and goes on with its neighbours; here it is counted
each time, and logged once with its place.
"""

from __future__ import annotations

import logging
from typing import Final

from prometheus_client import Counter

logger = logging.getLogger(__name__)

_REMEMBERED: Final = 1_024
"""Places that were logged; beyond that all are forgotten, and may be logged again."""


class UnreadableMessages:
    """Counts them; *group* is the broker group's name, for the log."""

    def __init__(self, group: str, counter: Counter) -> None:
        self._group, self._counter = group, counter
        self._logged: set[tuple[str, int, int]] = set()

    def note(self, topic: str, queue_id: int, offset: int, reason: Exception) -> None:
        """Count a message that is left out, for *reason*."""
        self._counter.inc()
        place = (topic, queue_id, offset)
        if place in self._logged:
            return
        if len(self._logged) == _REMEMBERED:
            self._logged.clear()
        self._logged.add(place)
        logger.warning(
            "group %s: the message at offset %d of queue %d of topic %s is left out: %s",
            self._group,
            offset,
            queue_id,
            topic,
            reason,
        )
