"""Client of the node's Export: which ranges to read, and their records, from any node.

Synchronous, since Spark's workers are; one client belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from dledger_pipeline.records import RecordBytes

TARGET_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRange:
    """Entries [first_index, last_index], *size_bytes* of records, behind *previous_chain*."""

    first_index: int
    last_index: int
    size_bytes: int
    previous_chain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """How a log is cut into ranges; the same from every node of the group.

    Attributes:
        group: The BrokerGroup's name.
        group_id: The group that the node belongs to.
        term: The term of the last planned entry; 0 if *ranges* is empty.
        commit_index: The node's newest committed entry that it has on disk.
        first_available: The oldest entry it keeps.
        ranges: Ascending, without gap; empty if there is nothing from the first index on.
    """

    group: str
    group_id: str
    term: int
    commit_index: int
    first_available: int
    ranges: tuple[ExportRange, ...]


class Exporter:
    """Reads from one node through its peer port (20911). A context manager."""

    def __init__(self, address: str, *, timeout_s: float = 60.0) -> None:
        self.address = address
        self.timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""

    def plan(
        self,
        *,
        group_id: str = "",
        first_index: int = 1,
        last_index: int = 0,
        target_bytes: int = TARGET_BYTES,
    ) -> ExportPlan:
        """Ask how to cut [first_index, last_index] into ranges of about *target_bytes*.

        Args:
            group_id: The group it must be; "" takes the node's.
            first_index: At least 1. One behind the commit index gives an empty plan.
            last_index: Inclusive; 0 for the commit index.
            target_bytes: Record bytes of a range; a single larger record has a range of its own.

        Raises:
            RangeNotAvailable: Past the commit index or below the oldest entry kept.
            ForeignGroup: The node belongs to another group.
            NodeUnavailable: It does not answer, or has joined no group.
        """
        raise NotImplementedError(group_id, first_index, last_index, target_bytes)

    def read(self, group_id: str, first_index: int, last_index: int) -> Iterator[RecordBytes]:
        """Yield the records of [first_index, last_index] in chunks of about 4 MiB, for `parse`.

        Raises:
            RangeNotAvailable, ForeignGroup, NodeUnavailable: Like `plan`.
            CorruptRecord: The node cannot read them from its disk.
        """
        raise NotImplementedError(group_id, first_index, last_index)


def choose(addresses: Sequence[str], *, timeout_s: float = 5.0) -> str:
    """Return the best node to read from: a follower with the highest commit index, else the leader.

    Args:
        addresses: Peer addresses (port 20911) of the group's nodes; some may be down.
        timeout_s: How long to wait for each.

    Raises:
        NodeUnavailable: None of them answers and is in a group.
        ForeignGroup: They belong to different groups.
    """
    raise NotImplementedError(addresses, timeout_s)
