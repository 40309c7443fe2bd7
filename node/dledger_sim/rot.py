"""Damage to what disks hold, and the atlas that keeps it repairable.

A record may be damaged on a minority of the disks only; which minority comes out for each stretch
of the log by who is damaged there first (after TigerBeetle's fault atlas). It is a minority of the
smallest electorate that counts then, of the halves of each membership that may decide: a quorum of
it may be all who have the entry. So of every committed entry a whole copy survives, as long as no
voters leave. A group that shrinks afterwards may be left with damaged copies alone; then it stands
still, rightly (`Cluster.lost_entry`). Until the first entry is committed nothing is damaged: the
founder's disk may hold the only copy. What is damaged was synced: flipped bits, a write that went
to another place, or a sync that lied, so that the power takes what it should have kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dledger.errors import DledgerError
from dledger.types import Membership, NodeId
from dledger_sim.cluster import Cluster
from dledger_sim.process import LOG, Process

_STRETCH: Final = 8
_NEWEST: Final = 3

Place = tuple[Path, int, int]
"""A record: its file, the offset there and the length, in bytes."""


class Atlas:
    """Which disks have lost something of which stretch of the log; a repair does not count."""

    def __init__(self) -> None:
        self._damaged: dict[int, set[NodeId]] = {}

    def allows(self, node: NodeId, index: int, memberships: Sequence[Membership]) -> bool:
        """Whether this node's copy of this entry may be damaged; if so, it is, from now on.

        Args:
            node: Whose.
            index: Which.
            memberships: Those that may decide. Learners count, who may become voters as they are.
        """
        damaged = self._damaged.setdefault(index // _STRETCH, set())
        present = {node, *(member.id for one in memberships for member in one.members)}
        halves = [half for one in memberships for half in (one.voter_ids, one.outgoing_ids) if half]
        smallest = min(map(len, halves), default=0)
        allowed = len((damaged | {node}) & present) <= (smallest - 1) // 2
        if allowed:
            damaged.add(node)
        return allowed


class Rot:
    """Damages records that the atlas allows."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.random("rot")
        self._atlas = Atlas()

    def flip(self, process: Process) -> None:
        """Flip a bit of one record."""
        for path, offset, size in self._draw(process, 1):
            at = offset + self._rng.randrange(size)
            process.files.contents(path)[at] ^= 1 << self._rng.randrange(8)

    def misdirect(self, process: Process) -> None:
        """Put the bytes of one record into the place of another."""
        places = self._draw(process, 2)
        if len(places) > 1:
            (path, offset, size), (source, start, length) = places
            copied = min(size, length)
            data = process.files.contents(source)[start : start + copied]
            process.files.contents(path)[offset : offset + copied] = data

    def lie(self, process: Process) -> None:
        """Cut a node's power, and lose some of what it had synced last."""
        newest = process.log.synced_index
        places = self._places(process, range(max(1, newest - _NEWEST), newest + 1))
        if not process.is_up:
            return
        self._cluster.crash(process)
        self._cluster.restart_later(process)
        for path, offset, size in places:
            process.files.contents(path)[offset : offset + size] = bytes(size)

    def _draw(self, process: Process, count: int) -> list[Place]:
        log = process.log
        if log.synced_index < log.first_index:
            return []
        drawn = [self._rng.randint(log.first_index, log.synced_index) for _ in range(count)]
        return self._places(process, drawn)

    def _places(self, process: Process, indexes: Sequence[int]) -> list[Place]:
        if not process.is_up or not self._cluster.commitment.last_index:
            return []
        places: list[Place] = []
        memberships = self._cluster.memberships()
        for index in indexes:
            if index < process.log.first_index:
                continue
            try:
                extent, _ = process.log.read_extent(index, index, 1)
            except (DledgerError, OSError):
                continue
            if not self._atlas.allows(process.id, index, memberships):
                continue
            self._cluster.note(f"{process.id} loses its copy of {index}")
            places.append((LOG / extent.segment.name, extent.offset, extent.size_bytes))
        return places
