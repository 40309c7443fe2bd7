"""What each feature level brings to the log, and what a group of mixed versions may be given.

A *feature level* is a number that every node tells its peers. Whatever lies in the log for good,
and so is read by nodes of other versions, came with a level: types of commands and their fields,
kinds of entries, fields of a membership, formats of a snapshot. `FEATURES` is the table of this
version; who adds to the log adds a row, and raises `FEATURE_LEVEL` if the level that is there was
released (`docs/internals/message-format.md` says how). Three rules rest on it:

- A leader proposes nothing that a member does not know (`MemberLevels.admit`).
- A node that meets what it does not know stops by name; it never skips (ADR 19).
- What a level refuses as malformed, or when it is applied, every later level refuses in the same
  way: a row is added, never widened.

Pure values; nothing here does I/O.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from dledger.errors import FeatureNotReady, NewerCommand, NewerFormat
from dledger.types import EntryKind, Membership, NodeId

FEATURE_LEVEL: Final = 1
"""The level of this version."""
LOWEST_LEVEL: Final = 1
"""What a member counts as that has not told its level."""
PRODUCE: Final = 1
"""The type of the one command that is no JSON; its optional columns are flags."""
_TYPE_AT: Final = 4
_PAYLOAD_AT: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandForm:
    """One type of command.

    Attributes:
        name: As the documents have it.
        level: The one that brought it.
        fields: The level that brought each field of its JSON.
        flags: For PRODUCE: the level that brought each bit.
        names: The fields, to be compared with.
        highest: The highest level of all of it.
    """

    name: str
    level: int
    fields: Mapping[str, int] = field(default_factory=dict)
    flags: Mapping[int, int] = field(default_factory=dict)
    names: frozenset[str] = field(init=False)
    highest: int = field(init=False)

    def __post_init__(self) -> None:
        """Draw from the rows what is asked for each command."""
        object.__setattr__(self, "names", frozenset(self.fields))
        highest = max((self.level, *self.fields.values(), *self.flags.values()))
        object.__setattr__(self, "highest", highest)

    def unknown(self, fields: Collection[str]) -> list[str]:
        """Return those of *fields* that the command does not have, sorted."""
        return sorted(set(fields) - self.names)


def since(level: int, names: str) -> dict[str, int]:
    """Return the fields in *names*, divided by blanks, as brought by *level*."""
    return dict.fromkeys(names.split(), level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What one version knows.

    Attributes:
        level: What it tells its peers.
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
        """Return which level a node must have to know a framed command that this one wrote.

        Nothing is decoded unless its type was added to since the lowest level.
        """
        form = self.commands[command[_TYPE_AT]]
        if form.highest <= LOWEST_LEVEL:
            return form.highest
        if form.flags:
            set_flags = command[_PAYLOAD_AT + 1]
            return max((form.level, *(form.flags[f] for f in form.flags if f & set_flags)))
        fields = json.loads(command[_PAYLOAD_AT:])
        return max((form.level, *(form.fields[name] for name in fields)))

    def check_entry(self, kind: int, index: int, data: bytes) -> None:
        """Check what consensus itself has to know of an entry, before it is kept or counted.

        Of a membership, which is in force as soon as it is in the log, all; of others the kind.

        Raises:
            NewerCommand: A newer version wrote it.
        """
        if kind not in self.entry_kinds:
            raise NewerCommand(index, what=f"an entry of type {kind}", level=self.level)
        if kind == EntryKind.MEMBERSHIP and (unknown := self._unknown_of_membership(data)):
            what = f"a membership with {', '.join(map(repr, unknown))}"
            raise NewerCommand(index, what=what, level=self.level)

    def check_stored(self, kind: int, index: int, data: bytes) -> None:
        """Check the same of an entry on the disk, or in a snapshot. Raises NewerFormat."""
        try:
            self.check_entry(kind, index, data)
        except NewerCommand as error:
            known = f"feature level {self.level}"
            raise NewerFormat(f"entry {index}", found=error.what, known=known) from error

    def _unknown_of_membership(self, data: bytes) -> list[str]:
        """Return the names of its fields, and of its members', that this version does not have.

        What is no JSON of that shape is malformed in all versions, and none of this one's business.
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
        PRODUCE: CommandForm(name="PRODUCE", level=1, flags={1: 1, 2: 1, 4: 1, 8: 1, 16: 1}),
        2: CommandForm(name="CREATE_TOPIC", level=1, fields=since(1, "name type queues")),
        3: CommandForm(name="CREATE_GROUP", level=1, fields=since(1, "name")),
        4: CommandForm(
            name="RECEIVE",
            level=1,
            fields=since(1, "group topic queue any limit invisible tags attempt client"),
        ),
        5: CommandForm(name="ACK", level=1, fields=since(1, "group topic leases")),
        6: CommandForm(
            name="CHANGE_INVISIBLE", level=1, fields=since(1, "group topic leases invisible")
        ),
        7: CommandForm(name="RENEW", level=1, fields=since(1, "group topic leases invisible")),
        8: CommandForm(name="RELEASE", level=1, fields=since(1, "group client")),
        9: CommandForm(name="RETAIN", level=1, fields=since(1, "before")),
        10: CommandForm(name="EXPIRE_GROUPS", level=1, fields=since(1, "before_ms")),
        11: CommandForm(name="DELETE_TOPIC", level=1, fields=since(1, "name generation")),
        12: CommandForm(name="DELETE_GROUP", level=1, fields=since(1, "name")),
        13: CommandForm(name="SET_SECRET", level=1, fields=since(1, "secret")),
    },
    entry_kinds={0: 1, 1: 1, 2: 1},
    membership=since(1, "group voters outgoing learners"),
    member=since(1, "id name address"),
    snapshots={5: 1},
)
"""All that this version knows of the log."""


class OpenCommand(Protocol):
    """A command whose bytes are not made yet."""

    @property
    def kind(self) -> int:
        """The type byte of its frame."""


class MemberLevels:
    """What the members of a group say that they know, as this node has heard it.

    A member that was not heard from counts as `LOWEST_LEVEL`, whatever it was before this process
    began; one that went away as what it told last, since it tells anew before it gets an entry.

    Attributes:
        own: This node's level.
    """

    def __init__(self, own_id: NodeId, features: Features) -> None:
        self._features = features
        self.own = features.level
        self._told: dict[NodeId, int] = {own_id: features.level}

    def told(self, node_id: NodeId, level: int) -> None:
        """Take what a node says of itself."""
        self._told[node_id] = level

    def get(self, node_id: NodeId) -> int | None:
        """Return a node's level; None if it was not heard from."""
        return self._told.get(node_id)

    def admit(self, command: bytes | OpenCommand, membership: Membership) -> None:
        """Let a command into the log, or not.

        Of one whose bytes are not made yet the highest level counts that its type may need.

        Raises:
            FeatureNotReady: A member, voter or learner, would not know it.
        """
        if isinstance(command, bytes):
            kind, needed = command[_TYPE_AT], self._features.level_of(command)
        else:
            kind = command.kind
            needed = self._features.commands[kind].highest
        if needed > LOWEST_LEVEL:
            self._check_members(self._features.commands[kind].name, needed, membership)

    def _check_members(self, name: str, needed: int, membership: Membership) -> None:
        for member in membership.members:
            told = self._told.get(member.id)
            if (LOWEST_LEVEL if told is None else told) < needed:
                raise FeatureNotReady.held_back(name, needed=needed, member=member.name, told=told)
