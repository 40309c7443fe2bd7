"""When one survivor may make itself the group, and what its membership is then.

If a majority of the disks is lost for good, no quorum can decide anything, not even to go on
without them (Raft 6). Only an administrator knows that they will not come back. So this is no part
of Raft. It gives up that there can be one group of a name only, and leaves marks instead by which
those that were left out are known:

- the membership's *epoch* is one higher, and whoever is only named in earlier ones is fenced: by
  the forced group, which does not hear it, and by itself, as soon as it learns of that epoch;
- the term is so far above that no election of the left-out gets there.

What the survivor has not seen is lost. Pure functions, called by the core.
"""

from __future__ import annotations

from typing import Final

from dledger.errors import Refused, Unavailable
from dledger.raft.view import RaftView
from dledger.types import Membership, NodeId, Role

TERM_STEP: Final = 1 << 20
"""How far the term rises: an election a second would need twelve days. It is small beside
`core.MAX_TERM_JUMP`, so that a new disk still believes a group that was forced a thousand times."""
SILENT_TIMEOUTS: Final = 10
"""For how many election timeouts no leader may have been heard: a living group elects within two
or three, so one that is only between two leaders is not forced apart."""


def forced(current: Membership, node_id: NodeId) -> Membership:
    """Return the membership of the next epoch: the survivor *node_id* of *current* alone."""
    survivors = [member for member in current.members if member.id == node_id]
    return Membership.of(survivors, current.group_id, epoch=current.epoch + 1)


def check_force(core: RaftView, *, last_term: int, last_index: int) -> None:
    """Check that a node may be made the group, as far as it knows by itself.

    Raises:
        Refused: It leads, or has heard a leader lately; its last entry is another than the
            administrator saw; its log has damaged entries; it is no member by its log.
        Unavailable: A write or a snapshot's installation is under way.
    """
    if core.role is Role.LEADER:
        raise Refused(f"node {core.id} leads the group: nothing is to be forced")
    if core.membership.get(core.id) is None:
        raise Refused(f"node {core.id} is not a member of the group, by its own log")
    if (core.last_term, core.last_index) != (last_term, last_index):
        raise Refused(
            f"the last entry of node {core.id} is {core.last_index} of term {core.last_term}, "
            f"not {last_index} of term {last_term}: look again at all survivors"
        )
    if core.leader is not None or core.silent_ticks < _silent_ticks(core):
        raise Refused(
            f"node {core.id} heard a leader ({core.leader or 'now unknown'}), or was started, "
            f"{core.silent_ticks} ticks ago: ask again after {_silent_ticks(core)} ticks without "
            "one, but only if the others' disks are lost for good"
        )
    if not core.log_is_whole:
        raise Refused(
            f"entries of the log of node {core.id} are damaged: it cannot give them to others"
        )
    if core.state.installing is not None or core.durable_index < core.last_index:
        raise Unavailable(f"node {core.id} is still writing its log: try again")


def _silent_ticks(core: RaftView) -> int:
    return SILENT_TIMEOUTS * core.config.election_timeout_ticks
