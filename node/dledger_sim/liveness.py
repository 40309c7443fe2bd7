"""No livelock: a leader within 3 s whenever some node can talk both ways with a majority.

Such a node is a *hub*. It can be elected only if a majority that it talks with has no more than it
has in the log (Raft 5.4.1), so that belongs to it; and it campaigns only while its log is whole: an
entry that rotted is fetched from others first. Watched while clients write, under partitions that
leave a hub: one-way cuts, bridges, stars, rings.
"""

from __future__ import annotations

from typing import Final

from dledger.raft.quorum import Electorate
from dledger.types import NodeId
from dledger_sim.checkers import StuckError
from dledger_sim.cluster import MS, Cluster, S
from dledger_sim.links import draw_partition
from dledger_sim.process import Process

LEADER_US: Final = 3 * S
PROGRESS_US: Final = 5 * S
_SETTLED_US: Final = S
"""Whoever does not hear the leader has campaigned by then, and in vain."""
_LONGEST_US: Final = PROGRESS_US + S
_LOOK_US: Final = 50 * MS
CHANGE_US: Final = 10 * S
_MAX_DRAWS: Final = 1000
"""Every other partition, about, leaves a hub."""


class LeaderWatch:
    """Looks every 50 ms whether there is the leader that there could be."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._leader: tuple[NodeId, int] | None = None
        self._since_us = 0

    def watch(self) -> None:
        """Let time pass until a leader is settled, or for 6 s if none could be elected.

        It is once it has served for 1 s, undisturbed, and something was committed in that time.

        Raises:
            StuckError: There could be a leader, or progress, for too long without one.
        """
        clock = self._cluster.clock
        end_us = clock.now_us + _LONGEST_US
        self._leader, self._since_us = None, clock.now_us
        self._cluster.last_commit_us = clock.now_us
        while clock.now_us < end_us and not self._is_settled():
            clock.run_until(clock.now_us + _LOOK_US)
            self._look()

    def _is_settled(self) -> bool:
        served_us = self._cluster.clock.now_us - self._since_us
        committed = self._cluster.last_commit_us > self._since_us
        return self._leader is not None and served_us >= _SETTLED_US and committed

    def _look(self) -> None:
        now_us = self._cluster.clock.now_us
        if not any(self._is_electable(one) for one in self._cluster.known_members()):
            self._leader, self._since_us = None, now_us
            self._cluster.last_commit_us = now_us
            return
        leader = self._serving_hub()
        if leader != self._leader:
            self._leader, self._since_us = leader, now_us
        if leader is None and now_us - self._since_us > LEADER_US:
            raise StuckError(f"no leader for {LEADER_US / S} s though there is a hub")
        if now_us - self._cluster.last_commit_us > PROGRESS_US:
            raise StuckError(f"nothing is committed for {PROGRESS_US / S} s though there is a hub")

    def _serving_hub(self) -> tuple[NodeId, int] | None:
        """Return a leader, and its term, that serves clients and talks with a majority.

        By its own membership: of one that it overrules, the rest may be cut off and not know.
        """
        leaders = (one for one in self._cluster.serving() if self._talks_with_own_quorum(one))
        return next(((one.id, one.driver.core.term) for one in leaders), None)

    def _talks_with_own_quorum(self, leader: Process) -> bool:
        own = leader.driver.core.membership
        heard = {one.id for one in self._heard(leader)}
        return Electorate(own.voter_ids, own.outgoing_ids).is_quorum(heard)

    def _is_hub(self, process: Process) -> bool:
        return process.is_up and self._cluster.is_quorum(self._heard(process))

    def _is_electable(self, process: Process) -> bool:
        if not (process.is_up and process.driver.core.may_campaign and process.log.is_whole):
            return False
        own = _log_end(process)
        voters = [one for one in self._heard(process) if _log_end(one) <= own]
        return self._cluster.is_quorum(voters)

    def _heard(self, process: Process) -> list[Process]:
        """Return whom it can talk with both ways, itself included."""
        links = self._cluster.links
        return [
            one
            for one in self._cluster.known_members()
            if one.is_up and (one is process or links.talks(process.id, one.id))
        ]

    def has_hub(self) -> bool:
        """Whether some node can talk both ways with a majority."""
        return any(self._is_hub(one) for one in self._cluster.known_members())


def _log_end(process: Process) -> tuple[int, int]:
    core = process.driver.core
    return core.last_term, core.last_index


def partition_with_hub(cluster: Cluster, watch: LeaderWatch) -> str:
    """Cut a healed group so that there is still a hub; returns how.

    A change of members that is under way ends first, as it does under any leader: whom it takes
    away is cut off from nobody else, and who counts would change under our eyes.

    Raises:
        StuckError: The change does not end; or there is no hub, wherever the group is cut.
    """
    cluster.links.heal()
    end_us = cluster.clock.now_us + CHANGE_US
    if not (cluster.is_settled() or cluster.clock.run_until(end_us, cluster.is_settled)):
        raise StuckError(f"a change of members does not end within {CHANGE_US / S} s")
    nodes = [one.id for one in cluster.members()]
    rng = cluster.random(f"hub {cluster.clock.now_us}")
    for _ in range(_MAX_DRAWS):
        shape, paths = draw_partition(nodes, rng)
        cluster.links.heal()
        cluster.links.cut(paths)
        if watch.has_hub():
            return shape
    raise StuckError(f"{_MAX_DRAWS} partitions of {', '.join(nodes)} leave no hub")
