"""Which membership is in force: the newest one in the log, committed or not (Raft 6).

Owned by one Raft. Older ones are kept, so that truncating the log brings them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dledger.types import Entry, EntryKind, Membership, NodeId

_NONE = Membership()


class MembershipStack:
    """The memberships of the log, oldest first, each with its entry's index."""

    def __init__(self, memberships: Sequence[tuple[int, Membership]]) -> None:
        self._stack = list(memberships)
        self._refresh()

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
        self._stack.extend(memberships)
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
