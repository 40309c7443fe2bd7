"""What each feature level adds to the log, and what a leader may propose in a mixed-version group.

A *feature level* is a number that every node reports to its peers. Everything that is stored in the
log or a snapshot, and so may be read by nodes of other versions, was introduced by some level:
command types and their fields, entry kinds, fields of a membership, snapshot formats. `FEATURES` is
the table of this version. To add to the log, add a row; if the current level was already released,
also raise `FEATURE_LEVEL` (see `docs/internals/message-format.md`). Three rules depend on it:

- A leader proposes nothing that a member does not know (`MemberLevels.admit`).
- A node that reads something it does not know stops and names it; it never skips it (ADR 19).
- What one level refuses, as malformed or when applied, every later level refuses in the same way:
  rows are added, never widened.

What nodes say to each other and nobody keeps has no level: Raft's messages have types that an older
node drops (`peers.peer_codec`), and a follower and its leader agree on the format of their link
(`link.offer`).

Pure values; nothing here does I/O. Used by the broker, the store and the node.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from dledger.errors import FeatureNotReady, NewerCommand, NewerFormat
from dledger.types import EntryKind, Membership, NodeId

FEATURE_LEVEL: Final = 1
"""The level of this version."""
LOWEST_LEVEL: Final = 1
"""The assumed level of a member that has not reported one."""
PRODUCE: Final = 1
"""The type of nearly all commands."""
_TYPE_AT: Final = 4
_PAYLOAD_AT: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandForm:
    """One type of command.

    Attributes:
        name: Its name in the documentation.
        level: The level that introduced it.
        fields: For each field of its JSON, the level that introduced it; none: it is not JSON, but
            columns.
        flags: For commands of columns: for each flag bit, the level that introduced it. They are
            the payload's second byte.
        further_at: Where in the payload flags from 256 on are; 0: it has none.
        names: The names of *fields*.
        highest: The highest of all these levels.
    """

    name: str
    level: int
    fields: Mapping[str, int] = field(default_factory=dict)
    flags: Mapping[int, int] = field(default_factory=dict)
    further_at: int = 0
    names: frozenset[str] = field(init=False)
    highest: int = field(init=False)

    def __post_init__(self) -> None:
        """Compute *names* and *highest* once, because they are needed for each command."""
        object.__setattr__(self, "names", frozenset(self.fields))
        highest = max((self.level, *self.fields.values(), *self.flags.values()))
        object.__setattr__(self, "highest", highest)

    def level_of_fields(self, payload: bytes) -> int:
        """Return the level of a command of JSON."""
        try:
            fields = json.loads(payload)
        except (ValueError, RecursionError):
            return self.level
        if not isinstance(fields, dict):
            return self.level
        return max((self.level, *(self.fields.get(name, self.level) for name in fields)))

    def level_of_flags(self, payload: bytes) -> int:
        """Return the level of a command of columns."""
        flags = payload[1] if len(payload) > 1 else 0
        if 0 < self.further_at < len(payload):
            flags |= payload[self.further_at] << 8
        return max((self.level, *(self.flags[flag] for flag in self.flags if flag & flags)))

    def unknown(self, fields: Collection[str]) -> list[str]:
        """Return those of *fields* that the command does not have, sorted."""
        return sorted(set(fields) - self.names)


def since(level: int, names: str) -> dict[str, int]:
    """Map each of *names*, which are separated by spaces, to *level*."""
    return dict.fromkeys(names.split(), level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What one version knows.

    Attributes:
        level: The level that it reports to its peers.
        commands: By the type byte of their frames.
        entry_kinds: The level of each kind of entry, by its number.
        membership: The level of each field of a MEMBERSHIP entry.
        member: The level of each field of a member in it.
        snapshots: The level that first wrote each format of the broker's state.
    """

    level: int
    commands: Mapping[int, CommandForm]
    entry_kinds: Mapping[int, int]
    membership: Mapping[str, int]
    member: Mapping[str, int]
    snapshots: Mapping[int, int]

    def level_of(self, command: bytes) -> int:
        """Return the level that a node needs to understand a framed command of this version.

        The payload is looked at only if its type has additions above the level that brought it.
        """
        return self.level_of_payload(command[_TYPE_AT], command, _PAYLOAD_AT, len(command))

    def level_of_payload(self, kind: int, data: bytes, start: int, end: int) -> int:
        """Return the same of a payload at bytes ``[start, end)``; of a malformed one its type's."""
        form = self.commands[kind]
        if form.highest == form.level:
            return form.level
        if form.fields:
            return form.level_of_fields(data[start:end])
        return form.level_of_flags(data[start:end])

    def check_entry(self, kind: int, index: int, data: bytes) -> None:
        """Check the parts of an entry that consensus itself interprets, before it is stored.

        A membership takes effect as soon as it is in the log, so it is checked completely; for
        other entries the kind is checked.

        Raises:
            NewerCommand: A newer version wrote it.
        """
        if kind not in self.entry_kinds:
            raise NewerCommand(index, what=f"an entry of type {kind}", level=self.level)
        if kind == EntryKind.MEMBERSHIP and (unknown := self._unknown_of_membership(data)):
            what = f"a membership with {', '.join(map(repr, unknown))}"
            raise NewerCommand(index, what=what, level=self.level)

    def check_stored(self, kind: int, index: int, data: bytes) -> None:
        """Check an entry on disk, or in a snapshot, in the same way. Raises NewerFormat."""
        try:
            self.check_entry(kind, index, data)
        except NewerCommand as error:
            known = f"feature level {self.level}"
            raise NewerFormat(f"entry {index}", found=error.what, known=known) from error

    def _unknown_of_membership(self, data: bytes) -> list[str]:
        """Return the names of fields, of it and of its members, that this version does not know.

        Data that is not a JSON object is malformed in every version; others report that.
        """
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError):
            return []
        if not isinstance(fields, dict):
            return []
        lists = [rows for rows in fields.values() if isinstance(rows, list)]
        members = {name for rows in lists for row in rows if isinstance(row, dict) for name in row}
        return sorted(fields.keys() - self.membership.keys() | members - self.member.keys())


FEATURES: Final = Features(
    level=FEATURE_LEVEL,
    commands={
        PRODUCE: CommandForm(
            name="PRODUCE",
            level=1,
            flags=dict.fromkeys((1, 2, 4, 8, 16, 32, 256, 512, 1024, 2048), 1),
            further_at=5,
        ),
        2: CommandForm(
            name="CREATE_TOPIC", level=1, fields=since(1, "name type queues compaction")
        ),
        3: CommandForm(name="CREATE_GROUP", level=1, fields=since(1, "name entry stored")),
        4: CommandForm(
            name="RECEIVE",
            level=1,
            fields=since(1, "group topic queue any limit invisible tags attempt client"),
        ),
        5: CommandForm(name="ACK", level=1, fields=since(1, "group topic leases")),
        6: CommandForm(
            name="CHANGE_INVISIBLE",
            level=1,
            fields=since(1, "group topic leases invisible suspend"),
        ),
        7: CommandForm(
            name="RENEW", level=1, fields=since(1, "group topic leases invisible arrived")
        ),
        8: CommandForm(name="RELEASE", level=1, fields=since(1, "group client")),
        9: CommandForm(name="RETAIN", level=1, fields=since(1, "before")),
        10: CommandForm(name="EXPIRE_GROUPS", level=1, fields=since(1, "before_ms")),
        11: CommandForm(name="DELETE_TOPIC", level=1, fields=since(1, "name generation")),
        12: CommandForm(name="DELETE_GROUP", level=1, fields=since(1, "name")),
        13: CommandForm(name="SET_SECRET", level=1, fields=since(1, "secret")),
        14: CommandForm(name="GROW_TOPIC", level=1, fields=since(1, "name queues")),
        15: CommandForm(name="LEAP", level=1, fields=since(1, "from to")),
        16: CommandForm(name="USE_FILTER", level=1, fields=since(1, "group topic tags sql")),
        17: CommandForm(name="REKEEP", level=1, flags={1: 1, 2: 1}),
        18: CommandForm(name="SET_RETENTION", level=1, fields=since(1, "name hours")),
        19: CommandForm(name="ERASE", level=1),
        20: CommandForm(
            name="SEEK_GROUP", level=1, fields=since(1, "group topic generation offsets")
        ),
        21: CommandForm(
            name="RECEIVE_AT",
            level=1,
            fields=since(
                1,
                "group topic generation queue sql from to take again done invisible attempt client",
            ),
        ),
        22: CommandForm(name="SET_GROUP", level=1, fields=since(1, "name attempts backoff")),
        23: CommandForm(name="DEAD_LETTER", level=1),
        24: CommandForm(name="PRODUCE_HELD", level=1),
        25: CommandForm(name="RELEASE_HELD", level=1),
        26: CommandForm(name="CANCEL_HELD", level=1, fields=since(1, "refs")),
        27: CommandForm(name="PAUSE_HELD", level=1, fields=since(1, "id")),
        28: CommandForm(name="RESUME_HELD", level=1, fields=since(1, "cancels")),
        29: CommandForm(name="CHECK_HELD", level=1, fields=since(1, "refs next")),
    },
    entry_kinds={0: 1, 1: 1, 2: 1},
    membership=since(1, "group voters outgoing learners epoch"),
    member=since(1, "id name address"),
    snapshots={8: 1},
)
"""Everything that this version knows about the log."""


class OpenCommand(Protocol):
    """A command that is not encoded yet."""

    @property
    def kind(self) -> int:
        """The type byte of its frame."""


class MemberLevels:
    """The feature levels that the members of a group have reported to this node.

    A member that has not reported since this process started counts as of the highest level that
    the log has had (`count_on`): whatever it knows, it cannot apply the log without that. A member
    that disconnected keeps its last level: it reports again before it receives an entry.

    Attributes:
        own: This node's level.
    """

    def __init__(self, own_id: NodeId, features: Features) -> None:
        self._features = features
        self.own = features.level
        self._told: dict[NodeId, int] = {own_id: features.level}
        self._applied: Callable[[], int] = lambda: LOWEST_LEVEL

    def told(self, node_id: NodeId, level: int) -> None:
        """Note the level that a node reports."""
        self._told[node_id] = level

    def count_on(self, applied: Callable[[], int]) -> None:
        """Let *applied* say the highest level that the log has had, as this node has applied it."""
        self._applied = applied

    def get(self, node_id: NodeId) -> int | None:
        """Return a node's level; None if it has not reported one."""
        return self._told.get(node_id)

    def admit(self, command: bytes | OpenCommand, membership: Membership) -> None:
        """Check that every member knows a command that is to be proposed.

        For a command that is not encoded yet, the highest level that its type may need counts.

        Raises:
            FeatureNotReady: A member, voter or learner, does not know it.
        """
        if isinstance(command, bytes):
            kind, needed = command[_TYPE_AT], self._features.level_of(command)
        else:
            kind = command.kind
            needed = self._features.commands[kind].highest
        if needed > LOWEST_LEVEL:
            self._check_members(self._features.commands[kind].name, needed, membership)

    def _check_members(self, name: str, needed: int, membership: Membership) -> None:
        floor = self._applied()
        for member in membership.members:
            told = self._told.get(member.id)
            if (floor if told is None else told) < needed:
                raise FeatureNotReady.held_back(name, needed=needed, member=member.name, told=told)
