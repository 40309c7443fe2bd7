"""No livelock: a leader within 3 s whenever some node can talk both ways with a majority.

Such a node is a *hub*. It can be elected only if a majority that it talks with has no more than it
has in the log (Raft 5.4.1), so that belongs to it. Watched while clients write, under partitions
that leave a hub: one-way cuts, bridges, stars, rings.
"""

from __future__ import annotations

from typing import Final

from dledger_sim.checkers import ViolationError
from dledger_sim.cluster import MS, Cluster, S
from dledger_sim.links import draw_partition
from dledger_sim.process import Process

LEADER_US: Final = 3 * S
PROGRESS_US: Final = 5 * S
_LOOK_US: Final = 50 * MS


class LeaderWatch:
    """Looks every 50 ms whether there is the leader that there could be."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._without_us = 0
        self.longest_us = 0

    def watch(self, duration_us: int) -> None:
        """Let time pass.

        Raises:
            ViolationError: There could be a leader, or progress, for too long without one.
        """
        clock = self._cluster.clock
        end_us = clock.now_us + duration_us
        self._cluster.last_commit_us = max(self._cluster.last_commit_us, clock.now_us)
        while clock.now_us < end_us:
            clock.run_until(clock.now_us + _LOOK_US)
            self._look()

    def _look(self) -> None:
        members = self._cluster.members()
        if not any(self._is_electable(one) for one in members):
            self._without_us = 0
            self._cluster.last_commit_us = self._cluster.clock.now_us
            return
        led = any(one.driver.is_serving_leader() for one in members if self._is_hub(one))
        self._without_us = 0 if led else self._without_us + _LOOK_US
        self.longest_us = max(self.longest_us, self._without_us)
        if self._without_us > LEADER_US:
            raise ViolationError(f"no leader for {self._without_us / S} s though there is a hub")
        silent_us = self._cluster.clock.now_us - self._cluster.last_commit_us
        if silent_us > PROGRESS_US:
            raise ViolationError(
                f"nothing is committed for {silent_us / S} s though there is a hub"
            )

    def _is_hub(self, process: Process) -> bool:
        return process.is_up and self._cluster.is_quorum(self._heard(process))

    def _is_electable(self, process: Process) -> bool:
        if not process.is_up or not process.driver.core.may_campaign:
            return False
        own = _log_end(process)
        voters = [one for one in self._heard(process) if _log_end(one) <= own]
        return self._cluster.is_quorum(voters)

    def _heard(self, process: Process) -> list[Process]:
        """Return whom it can talk with both ways, itself included."""
        links = self._cluster.links
        return [
            one
            for one in self._cluster.members()
            if one.is_up and (one is process or links.talks(process.id, one.id))
        ]

    def has_hub(self) -> bool:
        """Whether some node can talk both ways with a majority."""
        return any(self._is_hub(one) for one in self._cluster.members())


def _log_end(process: Process) -> tuple[int, int]:
    core = process.driver.core
    return core.last_term, core.last_index


def partition_with_hub(cluster: Cluster, watch: LeaderWatch) -> str:
    """Cut a healed group so that there is still a hub; returns how."""
    nodes = [one.id for one in cluster.members()]
    rng = cluster.random(f"hub {cluster.clock.now_us}")
    while True:
        shape, paths = draw_partition(nodes, rng)
        cluster.links.heal()
        cluster.links.cut(paths)
        if watch.has_hub():
            return shape
