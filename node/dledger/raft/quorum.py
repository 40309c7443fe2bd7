"""Majorities: how many make one, which index one has stored, how a vote stands.

Pure functions over plain mappings; called by the core and by its leader's part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from dledger.types import NodeId


class VoteResult(Enum):
    """How an election stands."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(voter_count: int) -> int:
    """Return how many of *voter_count* voters make a quorum."""
    return voter_count // 2 + 1


def committed(match_index: Mapping[NodeId, int], voters: Collection[NodeId]) -> int:
    """Return the highest index stored by a majority of *voters*; 0 if none.

    Missing voters count as 0, others not at all. The caller checks the entry's term.
    Source: Raft 5.3, 5.4.2.
    """
    if not voters:
        return 0
    stored = sorted((match_index.get(voter, 0) for voter in voters), reverse=True)
    return stored[majority(len(voters)) - 1]


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
