"""Which settings a running node takes over from its file, and when: no restart for a retention.

A ConfigMap that is mounted as a directory is replaced as a whole by Kubernetes, some time after it
changed; so the file is read again every few seconds. A file that cannot be read, or is wrong, is
told once and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dledger.server.config import ConfigError, Settings

logger = logging.getLogger(__name__)

LOOK_S: Final = 5.0
LIVE: Final = (
    "auto_create_topics",
    "storage_bytes",
    "retention_hours",
    "disk_watermark_percent",
    "group_retention_hours",
)
"""The settings that are read where they are used; any other is what the node was started with."""


def taken_over(running: Settings, said: Settings) -> Settings:
    """Return what a node runs with, once it took over what it can of what the file says now."""
    return replace(running, **{key: getattr(said, key) for key in LIVE})


class SettingsFollower:
    """Looks whether the settings of a node changed in its file.

    Args:
        running: What the node runs with.
        read: Reads its settings as at its start; blocking. Raises ConfigError.
    """

    def __init__(self, running: Settings, read: Callable[[], Settings]) -> None:
        self._running, self._read = running, read
        self._told = ""

    def look(self) -> Settings | None:
        """Return what to run with from now on; None if nothing changed. Blocking."""
        try:
            said = self._read()
        except ConfigError as error:
            self._tell(str(error))
            return None
        self._told = ""
        found = taken_over(self._running, said)
        if found == self._running:
            return None
        for key in LIVE:
            before, after = getattr(self._running, key), getattr(found, key)
            if before != after:
                logger.info("%s is %s from now on, and was %s", key, after, before)
        self._running = found
        return found

    async def run(self, take_over: Callable[[Settings], None]) -> None:
        """Look again and again, for ever; *take_over* gets each change."""
        while True:
            await asyncio.sleep(LOOK_S)
            if (found := await asyncio.to_thread(self.look)) is not None:
                take_over(found)

    def _tell(self, error: str) -> None:
        if error != self._told:
            logger.warning("the settings stay as they are: %s", error)
        self._told = error
