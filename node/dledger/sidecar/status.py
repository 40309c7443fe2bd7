"""What waits in a spool's directory, read beside the process that uses it: nothing is written.

Called by `cli.spool_command`.
"""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dledger.broker.deduplication import SILENCE_MS
from dledger.files.files import Files
from dledger.spool.lanes import age_s
from dledger.spool.looking import Look

_LANES_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatus:
    """A lane, and how many of its messages wait."""

    client_id: str
    topic: str
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStatus:
    """What a directory has.

    Attributes:
        depth: Messages that wait.
        bytes: Their records.
        oldest_ms: When the oldest came, Unix milliseconds; 0: none waits.
        unknown_outcomes: How many of them the group may have already.
        known_until_ms: Until then at least, in the time that the group has lived through, it knows
            these by their ids; 0: there are none. A replay that has begun before is known for 30
            days more, by lane and sequence.
        rejected: Messages set aside because the group refuses them.
        lost: Messages lost to damage.
        lanes: Those with messages waiting, the longest first.
    """

    depth: int
    bytes: int
    oldest_ms: int
    unknown_outcomes: int
    known_until_ms: int
    rejected: int
    lost: int
    lanes: tuple[LaneStatus, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


def status_of(files: Files, directory: Path) -> SpoolStatus:
    """Return what waits in a directory.

    Raises:
        CorruptFile: It is no spool, or its identity or state is damaged.
        Unsupported: A later version wrote it.
        StorageError: The disk failed.
    """
    survey = Look(files, directory).survey()
    found, rejected = survey.found, survey.rejected
    lanes = [
        LaneStatus(client_id=client_id, topic=topic, depth=lane.depth)
        for client_id, topic, lane in found.lanes
    ]
    return SpoolStatus(
        depth=found.depth.total(),
        bytes=found.size_bytes,
        oldest_ms=found.ages.oldest_ms,
        unknown_outcomes=found.tried,
        known_until_ms=found.tried_since_ms + SILENCE_MS if found.tried else 0,
        rejected=len(rejected),
        lost=sum(one.messages for one in found.damage),
        lanes=tuple(sorted(lanes, key=lambda lane: -lane.depth)),
    )


def lines_of(status: SpoolStatus) -> list[str]:
    """Return what is shown to people."""
    age = f"{age_s(status.oldest_ms):.0f} s"
    lines = [f"{status.depth} messages wait, {status.bytes} bytes, the oldest for {age}"]
    if status.unknown_outcomes:
        until = datetime.datetime.fromtimestamp(status.known_until_ms / 1000, datetime.UTC)
        lines.append(
            f"{status.unknown_outcomes} of unknown outcome, known until {until:%Y-%m-%d %H:%M:%S} "
            "UTC at least: the group may have them, and stores none twice that it knows"
        )
    if status.rejected:
        lines.append(f"{status.rejected} set aside in rejected/, with the group's reasons")
    if status.lost:
        lines.append(f"{status.lost} lost to damage of the disk")
    lines += [
        f"  {lane.depth:10} {lane.topic} of {lane.client_id}"
        for lane in status.lanes[:_LANES_SHOWN]
    ]
    left = len(status.lanes) - _LANES_SHOWN
    return [*lines, f"  and {left} lanes more"] if left > 0 else lines
