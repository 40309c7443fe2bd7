"""The one recorded act that founds a group: what Bootstrap wrote down before it acted.

Written before the identity names the group, so that a founding that was cut short is finished at
the next start. The founding entry is the same bytes whoever writes it: the members sorted by name,
no clock. It is the first entry of an empty log; behind a restored one it is the next entry, in the
next term.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from dledger.common.words import check_group_id, check_member
from dledger.errors import CorruptFile, InvalidArgument
from dledger.files.atomic import load_file, replace_file
from dledger.files.files import Files
from dledger.types import Entry, EntryKind, Member, Membership, NodeId

FILE_NAME: Final = "founding.json"
MAX_MEMBERS: Final = 9


@dataclass(frozen=True, slots=True)
class BootstrapRecord:
    """A group id and its first members."""

    group_id: str
    membership: Membership

    def entry(self, *, last_index: int = 0, last_term: int = 0) -> Entry:
        """Return the group's founding entry, behind what was restored (nothing, as a rule)."""
        data = self.membership.encode()
        return Entry(
            term=last_term + 1,
            index=last_index + 1,
            kind=EntryKind.MEMBERSHIP,
            timestamp_ms=0,
            crc32c=crc32c(data),
            data=data,
        )

    def encode(self) -> bytes:
        """Return the file's bytes."""
        members = json.loads(self.membership.encode())
        return json.dumps({"groupId": self.group_id, "members": members}).encode()

    @classmethod
    def decode(cls, data: bytes) -> BootstrapRecord:
        """Parse the file's bytes. Raises CorruptFile."""
        try:
            fields = json.loads(data)
            membership = Membership.decode(json.dumps(fields["members"]).encode())
            if not isinstance(group_id := fields["groupId"], str):
                raise TypeError(f"groupId is {group_id!r:.80}")
            return cls(group_id, membership)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptFile(FILE_NAME, str(error)) from error


def check_bootstrap(
    group_id: str, members: tuple[Member, ...], *, own_id: NodeId
) -> BootstrapRecord:
    """Check a Bootstrap request against the node that was asked.

    Raises:
        InvalidArgument: The group id or a member is malformed, or the members are not an odd number
            of distinct nodes that include this one.
    """
    check_group_id(group_id)
    if not members or len(members) % 2 == 0 or len(members) > MAX_MEMBERS:
        raise InvalidArgument(f"members must be odd, 1 to {MAX_MEMBERS}, not {len(members)}")
    for what, values in (
        ("ids", [m.id for m in members]),
        ("names", [m.name for m in members]),
        ("addresses", [m.address for m in members]),
    ):
        if len(set(values)) != len(values) or not all(values):
            raise InvalidArgument(f"members' {what} must be distinct and not empty: {values}")
    for member in members:
        check_member(member)
    if own_id not in {m.id for m in members}:
        raise InvalidArgument(f"this node, {own_id}, is not among the members")
    return BootstrapRecord(group_id, Membership.of(members, group_id))


class BootstrapFile:
    """``founding.json`` in the data directory: what Bootstrap is about to do, or did."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / FILE_NAME

    def load(self) -> BootstrapRecord | None:
        """Return the recorded founding, if this node ever was asked for one. Raises CorruptFile."""
        data = load_file(self._files, self._path)
        return BootstrapRecord.decode(data) if data is not None else None

    def save(self, founding: BootstrapRecord) -> None:
        """Record a founding durably. Raises DiskFull, StorageError."""
        replace_file(self._files, self._path, founding.encode())
