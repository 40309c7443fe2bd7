"""What is done to one node while all others are well: its power fails, its disk is put back.

It is done to a node of a whole group, and nothing else goes wrong until that node has again what
the others have: a *truce*. What is promised of one node is not promised of two.

Where a disk is put back, one of the others hears nobody for a while before, so that only the rest
has what was acknowledged last; and as soon as the node takes part, whoever leads is cut off. The
two that are left must not elect one of themselves.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from dledger.types import NodeId
from dledger_sim.cluster import Cluster
from dledger_sim.disk import SimFiles
from dledger_sim.loop import MS, S
from dledger_sim.process import Process

_BOOT_US: Final = (100 * MS, 5 * S)
"""Some are up again before the others have elected another leader."""
_OLDER_US: Final = (200 * MS, 4 * S)
_DOWN_US: Final = (10 * MS, 2 * S)
_LAGGING_US: Final = (200 * MS, 1000 * MS)
_DEPOSED_FOR_US: Final = 3 * S
_WELL_US: Final = 2 * S
"""What peers remember of each other is on their disks within a second."""
_LOOK_US: Final = 50 * MS


class Lone:
    """Does one thing to one node at a time, and watches over the truce."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.random("lone")
        self._hit: Process | None = None
        self._is_struck = False
        self._images = 0
        self._well_since_us = 0
        self._lives = -1

    @property
    def has_truce(self) -> bool:
        """Whether nothing else may go wrong at the moment."""
        return self._hit is not None

    def start(self) -> None:
        """Watch from now on."""
        self._cluster.clock.after(_LOOK_US, self._look)

    def cut_power(self) -> None:
        """Cut the power of one node."""
        if self._begins():
            self._away(self._rng.randint(*_BOOT_US))

    def put_back(self) -> None:
        """Take a snapshot of a node's volume, and put it back some time later."""
        cluster, rng = self._cluster, self._rng
        nodes = [one for one in cluster.up() if not one.retired]
        if not nodes or self.has_truce:
            return
        process = rng.choice(nodes)
        self._images += 1
        number, image = self._images, process.files.image(rng)
        cluster.note(f"image {number} is taken of {process.id}")

        def put() -> None:
            if cluster.calm or process.retired or not self._begins(process):
                return
            paths = self._let_one_lag(process)
            lagging_us = rng.randint(*_LAGGING_US)
            cluster.clock.after(lagging_us, lambda: self._replace(process, image, number, paths))

        cluster.clock.after(rng.randint(*_OLDER_US), put)

    def _let_one_lag(self, process: Process) -> list[tuple[NodeId, NodeId]]:
        """Cut off another one than that, and than the leader; returns the directions."""
        cluster = self._cluster
        others = [one for one in cluster.up() if one not in (process, *cluster.leaders())]
        if not others:
            return []
        return self._cut_off(self._rng.choice(others))

    def _cut_off(self, process: Process) -> list[tuple[NodeId, NodeId]]:
        rest = [one for one in self._cluster.processes if one != process.id]
        paths = [path for one in rest for path in ((one, process.id), (process.id, one))]
        self._cluster.links.cut(paths)
        return paths

    def _replace(
        self, process: Process, image: SimFiles, number: int, paths: list[tuple[NodeId, NodeId]]
    ) -> None:
        """Put the image in the disk's place; when the node starts, all others hear each other."""
        cluster = self._cluster
        self._is_struck = True
        if cluster.calm or not process.is_up:
            cluster.links.reopen(paths)
            return
        cluster.crash(process)
        process.files = image
        cluster.note(f"image {number} is put back to {process.id}")

        def come_back() -> None:
            cluster.links.reopen(paths)
            cluster.restart_after(0, process)
            cluster.clock.after(MS, lambda: self._depose_once_it_knows(process))

        cluster.clock.after(self._rng.randint(*_DOWN_US), come_back)

    def _depose_once_it_knows(self, process: Process) -> None:
        """Cut the leader off for a while, once the node is done with asking."""
        cluster = self._cluster
        if cluster.calm or not process.is_up:
            return
        if process.driver.core.asks:
            cluster.clock.after(MS, lambda: self._depose_once_it_knows(process))
            return
        for leader in cluster.leaders():
            cluster.note(f"leader {leader.id} is cut off")
            let_back = partial(cluster.links.reopen, self._cut_off(leader))
            cluster.clock.after(_DEPOSED_FOR_US, let_back)

    def _begins(self, process: Process | None = None) -> bool:
        """Begin a truce over a node, if the group is whole and has been for a while."""
        cluster = self._cluster
        if self.has_truce or cluster.clock.now_us - self._well_since_us < _WELL_US:
            return False
        self._hit, self._is_struck = process or self._rng.choice(cluster.up()), False
        cluster.links.heal()
        return True

    def _away(self, down_us: int) -> None:
        assert self._hit is not None, "a truce is over somebody"  # noqa: S101
        self._cluster.crash(self._hit)
        self._is_struck = True
        self._cluster.restart_after(down_us, self._hit)

    def _look(self) -> None:
        """Notice when the node that was hit is well, and since when all are."""
        now_us = self._cluster.clock.now_us
        if self._hit is not None and self._is_struck and self._is_well(self._hit):
            self._cluster.note(f"{self._hit.id} is caught up")
            self._hit, self._well_since_us = None, now_us
        lives = sum(one.lives for one in self._cluster.processes.values())
        if lives != self._lives or not all(map(self._runs, self._cluster.processes.values())):
            self._lives, self._well_since_us = lives, now_us
        if not self._cluster.calm:
            self._cluster.clock.after(_LOOK_US, self._look)

    def _runs(self, process: Process) -> bool:
        return process.is_up and not process.loop.is_paused

    def _is_well(self, process: Process) -> bool:
        last = self._cluster.commitment.last_index
        return self._runs(process) and process.driver.applied_index >= last > 0
