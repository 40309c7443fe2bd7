"""Which membership is in force: the newest one of this group in the log, committed or not (Raft 6).

Owned by one Raft. Older ones are kept, so that truncating the log brings them back. Memberships of
another group are history that was restored from a backup, and have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable

from dledger.types import Entry, EntryKind, Membership, NodeId

_NONE = Membership()


class MembershipStack:
    """The memberships of group *group_id* in the log, oldest first, each with its entry's index."""

    def __init__(self, memberships: Iterable[tuple[int, Membership]], group_id: str) -> None:
        self._group_id = group_id
        self._stack: list[tuple[int, Membership]] = []
        self.append(memberships)

    @property
    def current(self) -> Membership:
        """The membership in force; empty before the founding entry."""
        return self._current

    @property
    def voters(self) -> frozenset[NodeId]:
        """The ids that count towards a quorum."""
        return self._voters

    def append(self, memberships: Iterable[tuple[int, Membership]]) -> None:
        """Take the memberships of entries just appended."""
        self._stack += [item for item in memberships if item[1].group_id == self._group_id]
        self._refresh()

    def truncate(self, first: int) -> None:
        """Forget the memberships at index *first* and above."""
        while self._stack and self._stack[-1][0] >= first:
            self._stack.pop()
        self._refresh()

    def _refresh(self) -> None:
        self._current = self._stack[-1][1] if self._stack else _NONE
        self._voters = self._current.voter_ids


def memberships_in(entries: Iterable[Entry]) -> list[tuple[int, Membership]]:
    """Return (index, membership) of the membership entries among *entries*.

    Raises:
        ValueError: An entry's data is not a membership.
    """
    return [
        (entry.index, Membership.decode(entry.data))
        for entry in entries
        if entry.kind == EntryKind.MEMBERSHIP
    ]
