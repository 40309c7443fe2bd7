"""Rejected messages go back into the spool, because somebody asks for it: `dledger spool requeue`.

Whoever has the directory's lock writes it, and nobody else: the one who asks leaves a file in
``requeue/`` that names the messages by sequence and id. The owner takes it up, when it opens the
directory or soon after, and removes it. A file needs no port, no permission but the directory's,
and is still there when the owner has been killed.

A message goes back at the end of its lane, under new sequences in the spool and in the lane: the
group takes what it has passed already for stored. Used by `Spool`, `producer` and the sidecar.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dledger.errors import DledgerError
from dledger.files import checked_json
from dledger.files.atomic import load_file, replace_file
from dledger.files.files import Files
from dledger.spool.payload import Message
from dledger.spool.rejected import Place

if TYPE_CHECKING:
    from dledger.spool.spool import Spool

DIRECTORY: Final = "requeue"
_VERSION: Final = 1
_SUFFIX: Final = ".json"
_log = logging.getLogger(__name__)


def ask(files: Files, directory: Path, places: Iterable[Place]) -> Path:
    """Ask the owner of a spool's directory for messages to go back; return the file that does.

    Raises:
        DiskFull: There is no room for it.
        StorageError: The disk failed.
    """
    asked = directory / DIRECTORY
    files.make_dirs(asked)
    path = asked / f"{secrets.token_hex(8)}{_SUFFIX}"
    fields = {"messages": [list(place) for place in sorted(places)]}
    replace_file(files, path, checked_json.encode(_VERSION, fields))
    return path


def is_asked(files: Files, path: Path) -> bool:
    """Whether a file of `ask` has not been taken up yet. Raises OSError."""
    return path.name in files.list(path.parent)


def sent_anew(message: Message) -> Message:
    """Return a rejected message as it goes into the spool again, which gives it a new place.

    Of one of a lane the time says since when it waits. It stays if the outcome of a try is unknown:
    the group knows the id from then on, and no longer.
    """
    message = replace(message, reason="")
    if not message.client_id or message.tried:
        return message
    record = replace(message.record, born_at_ms=time.time_ns() // 1_000_000)
    return replace(message, record=record)


def take_up(spool: Spool, *, of_lanes: bool) -> None:
    """Do what is asked of a spool that has just been opened, as `Spool.asked_back` has it.

    Raises:
        StorageError: The disk failed.
    """
    spool.forget_finished()
    if spool.is_asked:
        kept = spool.put_back(spool.asked_back(of_lanes=of_lanes))
        _log.info("%d rejected messages went back into the spool, as was asked", kept.messages)


class Requests:
    """What is asked of the owner. Calls must be serialized."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files, self._directory = files, directory / DIRECTORY
        self._read: list[Path] = []

    @property
    def any(self) -> bool:
        """Whether something is asked. Raises OSError."""
        return any(name.endswith(_SUFFIX) for name in self._files.list(self._directory))

    def read(self) -> set[Place]:
        """Return which messages are to go back; `finish` forgets it. Raises OSError."""
        wanted = set[Place]()
        self._read = [
            self._directory / name
            for name in self._files.list(self._directory)
            if name.endswith(_SUFFIX)
        ]
        for path in self._read:
            try:
                data = load_file(self._files, path)
                fields = checked_json.decode(_VERSION, data or b"")
                wanted |= {(int(sequence), str(name)) for sequence, name in fields["messages"]}
            except (DledgerError, ValueError, KeyError, TypeError) as error:
                _log.warning("nothing is done of what %s asks: %s", path, error)
        return wanted

    def finish(self) -> None:
        """Forget what was read. Raises OSError."""
        for path in self._read:
            self._files.remove(path)
        if self._read:
            self._files.fsync_dir(self._directory)
        self._read = []
