"""The group of a machine of rules: who votes and carries what, and what its nodes answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dledger.common.status import MemberStatus, NodeStatus
from tests.operator.samples import GROUP_ID, member, node


class _Claim(Protocol):
    """A disk, as far as its node tells of it."""

    @property
    def node_id(self) -> str: ...
    @property
    def is_joined(self) -> bool: ...


class Answering:
    """The part of a machine that is the group; the machine keeps the facts, and says who runs."""

    claims: Mapping[str, _Claim]
    members: dict[str, tuple[str, bool]]
    cut_off: set[str]
    leader: str
    term: int
    made: int

    def _runs(self, name: str) -> bool:
        raise NotImplementedError

    def _in_sync(self) -> list[str]:
        raise NotImplementedError

    def _new(self, what: str) -> str:
        self.made += 1
        return f"{what}-{self.made}"

    def _carries(self, node_id: str, name: str) -> bool:
        """Whether a pod runs with this member's disk."""
        claim = self.claims.get(name)
        is_its = claim is not None and claim.node_id == node_id and claim.is_joined
        return is_its and self._runs(name)

    def _voters(self) -> list[str]:
        return [name for name, voter in self.members.values() if voter]

    def _has_majority(self) -> bool:
        return 2 * len(self._in_sync()) > len(self._voters())

    def _promote(self) -> None:
        if not self._has_majority():
            return
        for node_id, (name, _) in list(self.members.items()):
            if name not in self.cut_off and self._carries(node_id, name):
                self.members[node_id] = name, True

    def _answer(self, name: str) -> NodeStatus:
        claim = self.claims[name]
        if not claim.is_joined:
            return node(claim.node_id, name=name, told_group_id=GROUP_ID)
        follows = self.leader and name not in self.cut_off
        return node(
            claim.node_id,
            name=name,
            group_id=GROUP_ID,
            term=self.term,
            role="leader" if name == self.leader else "follower",
            leader_id=self.claims[self.leader].node_id if follows else "",
            ready=True,
            members=tuple(self._row(*each) for each in self.members.items()),
        )

    def _row(self, node_id: str, who: tuple[str, bool]) -> MemberStatus:
        name, voter = who
        there = name not in self.cut_off and self._carries(node_id, name)
        return member(node_id, name, voter=voter, connected=there, lag=0 if there else 5000)
