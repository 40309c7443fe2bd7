"""What all filters of a broker's consumer groups may take together, counted as it is taken.

Part of the replicated state, though derived: a snapshot does not hold it, reading one counts it
again. So it is the same on all nodes, and may decide what a command does.
"""

from __future__ import annotations

from typing import Final

MAX_KEPT_BYTES: Final = 64 << 20
"""What may be kept of all queues of all groups, by the sizes below."""
RUN_BYTES: Final = 16
COLUMN_BYTES: Final = 512
"""What a column takes itself, so that very many short ones are bounded as well."""
MAX_CODES: Final = 1 << 19
"""Tags that the live filters of all groups name together, with one more for each filter."""


class FilterRoom:
    """Two sums over all groups of a state; shared by their parts, whatever edition these are of.

    Attributes:
        kept_bytes: The size of what is kept for filters.
        codes: The tags that live filters name, with one more for each filter.
    """

    __slots__ = ("codes", "kept_bytes")

    def __init__(self) -> None:
        self.kept_bytes = self.codes = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be kept."""
        return self.kept_bytes >= MAX_KEPT_BYTES
