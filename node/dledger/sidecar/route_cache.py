"""The routes that the group has told, by topic, on disk: an application may start in an outage.

Owned by `passing`; what is written is a convenience, so that a disk which fails costs a warning.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from dledger.broker.topics import MAX_TOPICS
from dledger.errors import DledgerError
from dledger.files import checked_json
from dledger.files.atomic import load_file, replace_file
from dledger.files.files import Files

NAME: Final = "routes.json"
_VERSION: Final = 1
logger = logging.getLogger(__name__)

Run = Callable[[Callable[[], None]], Awaitable[None]]


class RouteCache:
    """The answers to QueryRoute as the group gave them.

    Args:
        files: The file system.
        directory: The spool's directory.
        run: Runs a call on the thread of the disk.
    """

    def __init__(self, files: Files, directory: Path, run: Run) -> None:
        self._files, self._path, self._run = files, directory / NAME, run
        self._routes: dict[str, bytes] = {}
        self._writing: asyncio.Task[None] | None = None
        self._is_stale = False

    def load(self) -> None:
        """Read what is there; damage costs the cache alone."""
        try:
            data = load_file(self._files, self._path)
            fields = checked_json.decode(_VERSION, data) if data is not None else {}
            routes = {topic: base64.b64decode(text) for topic, text in fields.items()}
        except (DledgerError, ValueError, TypeError, binascii.Error) as error:
            logger.warning("%s is made anew: %s", self._path, error)
            return
        self._routes = {**routes, **self._routes}

    def get(self, topic: str) -> bytes | None:
        """Return a topic's route as the group gave it; None: it never did."""
        return self._routes.get(topic)

    def put(self, topic: str, answer: bytes) -> None:
        """Keep a route; if it is another than before, on disk, too."""
        known = self._routes.get(topic)
        if known == answer or (known is None and len(self._routes) >= MAX_TOPICS):
            return
        self._routes[topic] = answer
        self._save()

    def forget(self, topic: str) -> None:
        """Forget a topic that the group does not have any longer."""
        if self._routes.pop(topic, None) is not None:
            self._save()

    def _save(self) -> None:
        self._is_stale = True
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._is_stale:
                self._is_stale = False
                fields = {name: base64.b64encode(a).decode() for name, a in self._routes.items()}
                data = checked_json.encode(_VERSION, fields)
                await self._run(partial(replace_file, self._files, self._path, data))
        except (DledgerError, OSError) as error:
            logger.warning("routes are not kept on disk: %s", error)
        finally:
            self._writing = None
