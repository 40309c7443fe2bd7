"""Which membership is in force, and which may follow it.

In force is the newest one of this group in the log, committed or not (Raft 6). Older ones are
kept, so that truncating the log brings them back. Memberships of another group are history that
was restored from a backup, and have no effect. The stack is owned by one Raft.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from dledger.errors import InvalidArgument
from dledger.raft.quorum import Electorate
from dledger.types import Entry, EntryKind, Member, Membership, NodeId

_NONE = Membership()
_MOST_INTRODUCED: Final = 64


class MembershipStack:
    """The memberships of group *group_id* in the log, oldest first, each with its entry's index.

    Attributes:
        current: The membership in force; empty before the founding entry.
        index: Its entry's index; 0 before the founding entry.
        electorate: Those that count towards a quorum.
    """

    def __init__(self, memberships: Iterable[tuple[int, Membership]], group_id: str) -> None:
        self._group_id = group_id
        self._introduced: dict[NodeId, None] = {}
        self._stack: list[tuple[int, Membership]] = []
        self._read: set[int] = set()
        self.append(memberships)

    def electorate_before(self, index: int) -> Electorate:
        """Return those that counted when the entry at *index* was added; nobody if unknown."""
        return _electorate_of(self.before(index))

    def has(self, index: int) -> bool:
        """Whether the membership of the entry at *index* is known, of whatever group it is."""
        return index in self._read

    def append(self, memberships: Iterable[tuple[int, Membership]]) -> None:
        """Take the memberships of entries just appended."""
        for index, membership in memberships:
            self._read.add(index)
            if membership.group_id == self._group_id:
                self._stack.append((index, membership))
        self._refresh()

    def insert(self, memberships: Iterable[tuple[int, Membership]]) -> None:
        """Take memberships that are in the log, but could not be read until now."""
        found = [item for item in memberships if not self.has(item[0])]
        if found:
            self.append(found)
            self._stack.sort(key=lambda item: item[0])
            self._refresh()

    def truncate(self, first: int) -> None:
        """Forget the memberships at index *first* and above."""
        self._read = {index for index in self._read if index < first}
        while self._stack and self._stack[-1][0] >= first:
            self._stack.pop()
        self._refresh()

    def replace(self, memberships: Iterable[tuple[int, Membership]]) -> None:
        """Take the memberships of a snapshot in place of those of the log."""
        self._stack.clear()
        self._read.clear()
        self.append(memberships)

    def may_campaign(self, node_id: NodeId, commit_index: int) -> bool:
        """Whether a node may ask for votes.

        Also one that the membership in force leaves out, until that is known to be committed:
        perhaps no other log has it, and without this node's help no leader can come (thesis 4.2.2).
        """
        if self.index > commit_index and len(self._stack) > 1:
            before = self._stack[-2][1]
            if node_id in before.voter_ids | before.outgoing_ids:
                return True
        return node_id in self.electorate.everyone

    def was_member(self, node_id: NodeId) -> bool:
        """Whether a node is or was a member, as far as our log goes back."""
        return any(membership.get(node_id) is not None for _, membership in self._stack)

    def is_removed(self, node_id: NodeId, commit_index: int) -> bool:
        """Whether a node was a member, and a committed change has removed it for good."""
        if node_id in self._ids:
            return False
        removal_index = self.removal_index(node_id)
        return removal_index is not None and removal_index <= commit_index

    def is_fenced(self, node_id: NodeId) -> bool:
        """Whether a node is of an earlier epoch: a forced group left it out (`force`).

        That counts from the entry on, committed or not. The fenced nodes may be a quorum of the
        membership before: once heard, they could have the entry replaced by one of theirs.
        """
        return node_id not in self._ids and self.is_behind(node_id, self.current.epoch)

    def is_behind(self, node_id: NodeId, epoch: int) -> bool:
        """Whether our log names a node, and only in memberships of epochs before *epoch*."""
        named = [one.epoch for _, one in self._stack if one.get(node_id) is not None]
        return bool(named) and max(named) < epoch

    def epoch(self, commit_index: int) -> tuple[int, int]:
        """Return the epoch of the newest committed membership, and its first entry; 0, 0: none."""
        committed = [(one.epoch, at) for at, one in self._stack if at <= commit_index]
        newest = committed[-1][0] if committed else 0
        return next((each for each in committed if newest and each[0] == newest), (0, 0))

    def before(self, index: int) -> Membership:
        """Return the membership that was in force before the entry at *index*; empty if none."""
        return next((one for at, one in reversed(self._stack) if at < index), _NONE)

    def at(self, index: int) -> Membership | None:
        """Return the membership of the entry at *index*; None if it is not known to be one."""
        return next((one for at, one in self._stack if at == index), None)

    def introduce(self, node_id: NodeId) -> None:
        """Hear a node that is a member by an entry which our log does not have yet."""
        self._introduced.pop(node_id, None)
        while len(self._introduced) >= _MOST_INTRODUCED:
            del self._introduced[next(iter(self._introduced))]
        self._introduced[node_id] = None

    def hears(self, node_id: NodeId, commit_index: int) -> bool:
        """Whether what a node asks counts: a member's word, until its removal is committed.

        Of nodes that a forced group left out, only until that is in our log. Also that of one that
        a member introduced; and anyone's, while we know no member.
        """
        if node_id in self._ids or not self._stack:
            return True
        removal_index = self.removal_index(node_id)
        if removal_index is not None:
            return removal_index > commit_index and not self.is_fenced(node_id)
        return node_id in self._introduced

    def known_member(self, node_id: NodeId, commit_index: int) -> Member | None:
        """Return a node as the newest membership has it that names it; None if it has no say."""
        if self.is_removed(node_id, commit_index) or self.is_fenced(node_id):
            return None
        found = (membership.get(node_id) for _, membership in reversed(self._stack))
        return next((member for member in found if member is not None), None)

    def removal_index(self, node_id: NodeId) -> int | None:
        """Return the index of the membership that removed a node, committed or not; None if none.

        A removed node does not return, so there is one at most.
        """
        removed_by = None
        for index, membership in reversed(self._stack):
            if membership.get(node_id) is not None:
                return removed_by
            removed_by = index
        return None

    def _refresh(self) -> None:
        self.index, self.current = self._stack[-1] if self._stack else (0, _NONE)
        self.electorate = _electorate_of(self.current)
        self._ids = frozenset(member.id for member in self.current.members)


def _electorate_of(membership: Membership) -> Electorate:
    return Electorate(membership.voter_ids, membership.outgoing_ids)


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


def begin_change(
    current: Membership, *, voters: Collection[Member], learners: Collection[Member]
) -> Membership:
    """Return what follows *current* on the way to these voters and learners (Raft 6).

    With other voters that is the joint membership, in which both the new and the old voters must
    agree; any two memberships in a row then share a voter in every two quorums. Learners have no
    say, so a change of theirs alone needs no such step.

    Raises:
        InvalidArgument: There would be no voters, or a node would be named twice.
    """
    ids = [member.id for member in (*voters, *learners)]
    if not voters:
        raise InvalidArgument("a group needs at least one voter")
    if len(set(ids)) != len(ids):
        raise InvalidArgument(f"a node is named twice among {', '.join(sorted(ids))}")
    changed = {member.id for member in voters} != current.voter_ids
    return Membership.of(
        voters,
        current.group_id,
        outgoing=current.voters if changed else (),
        learners=learners,
        epoch=current.epoch,
    )


def end_change(joint: Membership) -> Membership:
    """Return what follows a joint membership: the new voters alone."""
    return Membership.of(joint.voters, joint.group_id, learners=joint.learners, epoch=joint.epoch)


def promoted(current: Membership, learners: Collection[NodeId]) -> Membership:
    """Return the joint membership that makes voters of these *learners*."""
    return begin_change(
        current,
        voters=[*current.voters, *(m for m in current.learners if m.id in learners)],
        learners=[m for m in current.learners if m.id not in learners],
    )
