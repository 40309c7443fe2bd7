"""Linearizable reads (Raft thesis 6.4): each must see all that was acknowledged before it began."""

from __future__ import annotations

from typing import Final

from dledger_sim.checkers import ViolationError
from dledger_sim.cluster import MS, Cluster
from dledger_sim.producers import Answer, is_error

_EVERY_US: Final = 250 * MS


class Reader:
    """Asks whoever believes to lead for a read index, again and again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.random("reader")
        self.answered = 0

    def start(self) -> None:
        """Read from now on."""
        self._cluster.clock.after(self._rng.randint(1, _EVERY_US), self._read)

    def _read(self) -> None:
        least = max(producer.highest_index for producer in self._cluster.producers)

        def answered(answer: Answer) -> None:
            if is_error(answer):
                return
            assert isinstance(answer, int), "a read is answered with an index"  # noqa: S101
            self.answered += 1
            if answer < least:
                raise ViolationError(
                    f"a read at {answer} misses entry {least}, acknowledged before it began"
                )

        for leader in self._cluster.leaders():
            self._cluster.call(leader.id, lambda driver: driver.read_index(), answered)
        self.start()
