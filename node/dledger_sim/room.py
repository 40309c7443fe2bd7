"""What a lack of room may cost: no node, and no message that could not help."""

from __future__ import annotations

from collections.abc import Sequence

from dledger_sim.checkers import ViolationError
from dledger_sim.disk import SimFiles, says_full
from dledger_sim.process import Process


def check_has_room(process: Process, error: BaseException) -> None:
    """Check that a node does not end, or refuse to start, because its disk is full."""
    if says_full(error):
        raise ViolationError(f"{process.id} ends itself for lack of room: {error}")


def check_not_in_vain(disks: Sequence[SimFiles]) -> None:
    """Check that messages which go before their time make room that their group itself took.

    Args:
        disks: The members', before anything is removed.
    """
    if all(2 * one.own_bytes < one.volume_bytes for one in disks):
        taken = ", ".join(f"{one.own_bytes * 100 // one.volume_bytes} %" for one in disks)
        raise ViolationError(
            f"messages go before their time, though the group's own files take {taken} of its disks"
        )
