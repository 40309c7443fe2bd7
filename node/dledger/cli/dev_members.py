"""Which nodes of a `dledger dev` group stay down, and whether the others can go on without them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class DevMembers:
    """What became of the nodes, by number.

    Attributes:
        count: How many there were at first.
        removed: Those that the group removed; it has that many fewer.
        down: Those that refuse to start, which no restart helps, and what each said.
    """

    count: int
    removed: set[int] = field(default_factory=set)
    down: dict[int, str] = field(default_factory=dict)

    @property
    def have_majority(self) -> bool:
        """Whether those that are left are a majority of the group."""
        members = self.count - len(self.removed)
        return 2 * (members - len(self.down)) > members

    def all_answered(self, answered: int) -> bool:
        """Whether nobody is missing but those that stay down."""
        return answered >= self.count - len(self.removed) - len(self.down)

    def refusals(self) -> str:
        """Return who stays down, and why."""
        return "; ".join(f"node {index} {why}" for index, why in sorted(self.down.items()))
