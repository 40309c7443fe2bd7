"""Whether the group takes writes, as of the latest attempt by any client or the replay."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class Reach:
    """What all of the sidecar knows of the group.

    Attributes:
        away: Whether the latest attempt failed.
    """

    def __init__(self) -> None:
        self.away = False

    def note_answer(self) -> None:
        """Note that the group has taken something."""
        if self.away:
            self.away = False
            logger.info("the group takes writes again")

    def note_failure(self, why: str) -> None:
        """Note that it has not."""
        if not self.away:
            self.away = True
            logger.warning("the group takes no writes, sends are spooled: %s", why)
