"""What the nodes of a machine of rules answer the operator, by what is true of them."""

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
    """The part of a machine that answers; it keeps the facts."""

    claims: Mapping[str, _Claim]
    members: dict[str, tuple[str, bool]]
    cut_off: set[str]
    leader: str
    term: int

    def _carries(self, node_id: str, name: str) -> bool:
        raise NotImplementedError

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
