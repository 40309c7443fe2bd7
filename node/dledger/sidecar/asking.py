"""What `dledger spool requeue` does: rejected messages go back, by whoever has the directory.

Called by `cli.spool_command`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger.errors import DirectoryLocked, InvalidArgument
from dledger.files.files import Files
from dledger.sidecar.showing import Choice
from dledger.spool.looking import Look
from dledger.spool.opening import limits_of, open_spool
from dledger.spool.rejected import Rejected
from dledger.spool.requeue import ask, is_asked, take_up
from dledger.spool.spool import Limits

_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """What became of it.

    Attributes:
        went_back: How many messages wait again.
        left: How many are still in ``rejected/``.
        asking: The file that goes on asking, if nobody has taken it up in time.
    """

    went_back: int
    left: int
    asking: Path | None = None


def chosen_of(
    look: Look, ids: Collection[str], choice: Choice, *, all_of_them: bool
) -> list[Rejected]:
    """Return which rejected messages are meant.

    Raises:
        InvalidArgument: Neither ids nor all of them, or both; or an id that is not there.
    """
    if bool(ids) is all_of_them:
        raise InvalidArgument("name messages by their ids, or say --all: one of the two")
    found = [one for one in look.refusals() if choice.has(one.message)]
    if all_of_them:
        return found
    missing = set(ids) - {one.message.record.message_id for one in found}
    if missing:
        raise InvalidArgument(
            f"{', '.join(sorted(missing))}: not in rejected/, or not of that topic and client; "
            "dledger spool show --rejected has the ids"
        )
    return [one for one in found if one.message.record.message_id in ids]


def requeue(
    files: Files,
    directory: Path,
    chosen: Sequence[Rejected],
    *,
    max_bytes: int,
    timeout_s: float,
) -> Requeued:
    """Have messages go back to the end of their lanes.

    Raises:
        InvalidArgument: *max_bytes* is too small.
        DledgerError: The directory cannot be used.
    """
    limits, places = limits_of(max_bytes), {one.place for one in chosen}
    if not places:
        return Requeued(went_back=0, left=0)
    asking = ask(files, directory, places)
    of_lanes = any(one.message.client_id for one in chosen)
    until_s = time.monotonic() + timeout_s
    is_done = _take_up_here(files, directory, limits, of_lanes)
    while not is_done and is_asked(files, asking) and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    if not is_done and is_asked(files, asking):  # perhaps the one that had it has ended
        is_done = _take_up_here(files, directory, limits, of_lanes)
    is_open = not is_done and is_asked(files, asking)
    left = sum(one.place in places for one in Look(files, directory).refusals())
    return Requeued(went_back=len(places) - left, left=left, asking=asking if is_open else None)


def _take_up_here(files: Files, directory: Path, limits: Limits, of_lanes: bool) -> bool:
    """Do it in this process; return False if another one has the directory, and so does it."""
    try:
        spool = open_spool(files, directory, limits=limits)
    except DirectoryLocked:
        return False
    try:
        take_up(spool, of_lanes=of_lanes)
    finally:
        spool.close()
    return True
