"""Changes who belongs to the group while it runs: new nodes, removed ones, wiped disks.

A change is asked for as an administrator does it (`replica.member_change`), of whoever leads, and
its outcome does not matter. A wiped disk comes back as another node under its old name; that is
asked for again until it is done, and one at a time, so that a quorum of the disks is always there.
"""

from __future__ import annotations

from dledger.errors import DledgerError
from dledger.replica.member_change import MemberChange, carry_out
from dledger.types import Member, NodeId
from dledger_sim.cluster import MS, Cluster
from dledger_sim.process import Process

_TIMEOUT_S = 2.0
_AGAIN_US = 300 * MS
_SPARES = 2
_LEAST_FOR_WIPES = 3


class Members:
    """Asks for changes of the membership."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.random("members")
        self._most = len(cluster.processes) + _SPARES

    def change(self) -> None:
        """Ask whoever leads for a new learner, or to remove some members; perhaps the leader.

        Not while a wiped one is being replaced: with another gone there may be no quorum left.
        """
        if self._cluster.replacing:
            return
        for leader in self._cluster.leaders():
            self._ask(leader, self._draw(leader))

    def _draw(self, leader: Process) -> MemberChange:
        now = leader.driver.core.membership
        if len(now.members) < self._most and self._rng.random() < 0.6:
            return MemberChange(add=(self._cluster.add_node().member,))
        most = max(1, len(now.members) - 1)
        gone = self._rng.sample(now.members, self._rng.randint(1, min(2, most)))
        return MemberChange(remove=tuple(one.id for one in gone))

    def _ask(self, leader: Process, change: MemberChange) -> None:
        self._cluster.note(f"{leader.id} is asked for {_sentence(change)}")

        async def ask() -> None:
            try:
                await carry_out(leader.driver, change, timeout_s=_TIMEOUT_S)
            except DledgerError as error:
                self._cluster.note(f"{leader.id} answers: {error}")

        leader.loop.run(lambda: leader.loop.create_task(ask()))

    def wipe(self) -> None:
        """Wipe a voter's disk, if the others can spare it, and have it replaced."""
        cluster = self._cluster
        voters = cluster.memberships()[0].voter_ids
        if not cluster.is_settled() or len(voters) < _LEAST_FOR_WIPES or cluster.replacing:
            return  # of a group that shrinks, the old half may be two, which cannot spare one
        lost = cluster.processes.get(self._rng.choice(sorted(voters)))
        if lost is None or lost.retired:
            return
        cluster.note(f"{lost.id} loses its disk")
        cluster.discard(lost)
        fresh = cluster.add_node(lost.member.name)
        cluster.replacing.add(lost.id)
        self._replace(lost.id, fresh.member)

    def _replace(self, old: NodeId, new: Member) -> None:
        """Ask for a replacement again and again, until no node counts on the old one."""
        cluster = self._cluster
        if all(old not in {one.id for one in known.members} for known in cluster.memberships()):
            cluster.replacing.discard(old)
            return
        for leader in cluster.leaders():
            self._ask(leader, MemberChange(add=(new,), remove=(old,)))
        cluster.clock.after(_AGAIN_US, lambda: self._replace(old, new))


def _sentence(change: MemberChange) -> str:
    come = "".join(f" +{one.id}" for one in change.add)
    return f"members{come}{''.join(f' -{one}' for one in change.remove)}"
