"""Majorities: how many make one, which index one has stored, how a vote stands.

Pure functions over plain mappings, and `Electorate`, which joins two majorities while the
membership changes; called by the core and by its leader's part. Sources: Raft 5.2, 5.3, 6.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from itertools import repeat

from dledger.types import NodeId


class VoteResult(Enum):
    """How an election stands."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(voter_count: int) -> int:
    """Return how many of *voter_count* voters make a quorum."""
    return voter_count // 2 + 1


def is_majority(present: Collection[NodeId], voters: Set[NodeId]) -> bool:
    """Whether *present* holds a majority of *voters*; never, if there are none."""
    return len(voters & set(present)) > len(voters) // 2


def committed(match_index: Mapping[NodeId, int], voters: Collection[NodeId]) -> int:
    """Return the highest index stored by a majority of *voters*; 0 if none.

    Missing voters count as 0, others not at all. The caller checks the entry's term.
    Source: Raft 5.3, 5.4.2.
    """
    if not voters:
        return 0
    stored = sorted(map(match_index.get, voters, repeat(0)), reverse=True)
    return stored[len(voters) // 2]


def vote_result(votes: Mapping[NodeId, bool], voters: Collection[NodeId]) -> VoteResult:
    """Return how an election stands; votes of nodes that are not *voters* do not count.

    LOST means that too many refused for a majority to remain possible. Source: Raft 5.2.
    """
    needed = majority(len(voters))
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    refused = sum(1 for voter in voters if votes.get(voter) is False)
    if voters and granted >= needed:
        return VoteResult.WON
    return VoteResult.LOST if len(voters) - refused < needed else VoteResult.PENDING


@dataclass(frozen=True, slots=True)
class Electorate:
    """Who decides: the voters, and in a joint membership also a majority of those before (Raft 6).

    Attributes:
        voters: The voters of the membership, or of the new one while it changes.
        outgoing: The voters before the change; empty when none is under way.
        everyone: All whose vote counts in one half or both.
    """

    voters: frozenset[NodeId] = frozenset()
    outgoing: frozenset[NodeId] = frozenset()
    everyone: frozenset[NodeId] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # A leader asks at every tick and every answer; an electorate lasts for months.
        object.__setattr__(self, "everyone", self.voters | self.outgoing)

    def is_quorum(self, present: Collection[NodeId]) -> bool:
        """Whether *present* could decide."""
        decided = is_majority(present, self.voters)
        return decided and (not self.outgoing or is_majority(present, self.outgoing))

    def committed(self, match_index: Mapping[NodeId, int]) -> int:
        """Return the highest index that each half has stored by majority; 0 if none."""
        stored = committed(match_index, self.voters)
        return min(stored, committed(match_index, self.outgoing)) if self.outgoing else stored

    def vote_result(self, votes: Mapping[NodeId, bool]) -> VoteResult:
        """Return how an election stands: WON by both halves, LOST by either."""
        halves = (self.voters, self.outgoing) if self.outgoing else (self.voters,)
        results = {vote_result(votes, half) for half in halves}
        if VoteResult.LOST in results:
            return VoteResult.LOST
        return VoteResult.PENDING if VoteResult.PENDING in results else VoteResult.WON
