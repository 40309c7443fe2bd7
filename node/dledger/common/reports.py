"""What a member says of itself once a second: its clock, its room, and what it knows of others.

Values and their bytes. A report travels beside Raft (`replica.reports`): no vote, ack or commit
rests on one by itself, and a lost one is followed by the next. It is the word of one member: who
uses it asks what a minority that lies, by a wrong clock or a wrong disk, could do by it.

The body of a frame is a JSON object, bounded in size. Fields that this version does not know are
read over; a field that is missing, or is not what it should be, makes the whole report malformed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from dledger.common.words import MAX_ID_BYTES, check_word
from dledger.errors import InvalidArgument
from dledger.types import MAX_NUMBER, NodeId

MAX_REPORT_BYTES: Final = 16 << 10
"""Of an encoded report; one with `MAX_MARKS` marks of the longest ids has less."""
MAX_MARKS: Final = 64
"""Members of which one report tells; more than any group has."""
MAX_UNIX_MS: Final = 1 << 53
"""A clock that is later is no clock; every number up to here is exact in any reader of JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The newest that a member is known to have had.

    Attributes:
        last_term, last_index: The end of its log, in Raft's order: by term, then by index.
        term: The highest term that its hard state is known to have held.
    """

    last_term: int
    last_index: int
    term: int

    def merged(self, other: Mark) -> Mark:
        """Return what is known by both: the later end of the log, the higher term."""
        mine, theirs = (self.last_term, self.last_index), (other.last_term, other.last_index)
        last_term, last_index = max(mine, theirs)
        return Mark(last_term=last_term, last_index=last_index, term=max(self.term, other.term))


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a member's disk has.

    Attributes:
        total_bytes, free_bytes: Of the file system, whoever uses it.
        own_bytes: What this member's own files take.
        budget_bytes: What its group asked for; 0: it was not told.
        first_index: The oldest entry whose messages it keeps.
        going_bytes: Those of its own bytes that are only older ones' and go with its next snapshot.
    """

    total_bytes: int
    free_bytes: int
    own_bytes: int
    budget_bytes: int
    first_index: int = 0
    going_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one member says.

    Attributes:
        incarnation: Which start of its process says so: another one after each start.
        unix_ms: Its wall clock when it wrote this, Unix milliseconds.
        room: Its disk; None before it was measured.
        marks: What it knows of the newest that members have had, itself included.
    """

    incarnation: str
    unix_ms: int
    room: Room | None = None
    marks: Mapping[NodeId, Mark] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the JSON object."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Report:
        """Parse a report.

        Raises:
            InvalidArgument: It is too long, or is no report.
        """
        try:
            if len(data) > MAX_REPORT_BYTES:
                raise InvalidArgument(f"{len(data)} bytes are too many")
            return _checked(json.loads(data))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _malformed(data, error) from error
        except InvalidArgument as error:
            raise _malformed(data, error) from error


def _malformed(data: bytes, error: Exception) -> InvalidArgument:
    return InvalidArgument(
        f"not a member's report ({type(error).__name__}: {error!s:.200}): {data[:60]!r}"
    )


def _checked(said: Mapping[str, Any]) -> Report:
    marks, room = said["marks"], said["room"]
    if len(marks) > MAX_MARKS:
        raise InvalidArgument(f"{len(marks)} marks are too many")
    return Report(
        incarnation=check_word("incarnation", said["incarnation"], most=MAX_ID_BYTES),
        unix_ms=_number(said, "unix_ms", below=MAX_UNIX_MS),
        room=None if room is None else Room(**_numbers(room, Room.__slots__)),
        marks={
            NodeId(check_word("a marked member", node_id, most=MAX_ID_BYTES)): Mark(
                **_numbers(mark, Mark.__slots__)
            )
            for node_id, mark in marks.items()
        },
    )


def _numbers(said: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, int]:
    return {name: _number(said, name) for name in names}


def _number(said: Mapping[str, Any], name: str, *, below: int = MAX_NUMBER) -> int:
    value = said[name]
    if type(value) is not int or not 0 <= value < below:
        raise InvalidArgument(f"invalid {name} {value!r:.120}")
    return value
