"""The simulated network: who can reach whom, and what becomes of a message."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from dledger.types import NodeId
from dledger_sim.faults import Faults

_MILLISECOND = 1000


class Network:
    """Loses, delays, doubles and reorders; times are in microseconds."""

    def __init__(self, nodes: Sequence[NodeId], faults: Faults, rng: Random) -> None:
        self._nodes = nodes
        self._rng = rng
        self.faults = faults
        self._cut: set[tuple[NodeId, NodeId]] = set()

    def reaches(self, sender: NodeId, recipient: NodeId) -> bool:
        """Whether messages get through at the moment."""
        return (sender, recipient) not in self._cut

    def delays_us(self) -> list[int]:
        """Return after how long a message arrives: not at all, once, or twice."""
        if self._rng.random() < self.faults.loss:
            return []
        copies = 2 if self._rng.random() < self.faults.duplicate else 1
        return [self._delay_us() for _ in range(copies)]

    def heal(self) -> None:
        """Let everyone reach everyone again."""
        self._cut.clear()

    def partition(self) -> str:
        """Cut the group in one of several ways; returns which."""
        self.heal()
        nodes = list(self._nodes)
        self._rng.shuffle(nodes)
        some, others = nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]
        shape = self._rng.choice(("split", "one way", "one pair", "one link", "deaf", "mute"))
        paths = {
            "split": [(a, b) for a in some for b in others],
            "one way": [(a, b) for a in some for b in others],
            "one pair": [(nodes[0], nodes[-1])],
            "one link": [(nodes[0], nodes[-1])],
            "deaf": [(other, nodes[0]) for other in nodes[1:]],
            "mute": [(nodes[0], other) for other in nodes[1:]],
        }[shape]
        self._cut.update(paths)
        if shape in ("split", "one pair"):
            self._cut.update([(b, a) for a, b in paths])
        return f"{shape} {','.join(some)} | {','.join(others)}"

    def _delay_us(self) -> int:
        if self._rng.random() < self.faults.straggle:
            return self._rng.randint(0, 1000 * _MILLISECOND)
        return self._rng.randint(100, self.faults.delay_ms * _MILLISECOND)
