"""The epochs of a group: how a node that a forced group left out learns of it, and stops.

When a group is forced (`raft.force`), the others' disks are thought lost. If one comes back, it
believes to be a member, and two such disks may be a majority of the members that they know. So each
handshake says the caller's epoch, and a refused one the epoch of who refuses. A node whose own log
names it in earlier epochs only was left out, and stops for good as a removed one does. Whether that
is so it finds in its own log: who refuses cannot tell a disk that was left out from one that is
fresh. Owned by the node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from dledger.errors import DledgerError, LeftOut, MemberRemoved
from dledger.peers.handshake import Handshake
from dledger.raft.view import RaftView
from dledger.types import NodeId

logger = logging.getLogger(__name__)

_NONE: Final = (0, 0)


class Epochs:
    """What this node knows of epochs, and says of them.

    Args:
        node_id: This node.
        group_id: Returns its group; empty while Unjoined.
        core: Returns the Raft core; None before there is one.
        removed: Called, with the index of the entry, when this node turns out to be left out.
    """

    def __init__(
        self,
        node_id: NodeId,
        *,
        group_id: Callable[[], str],
        core: Callable[[], RaftView | None],
        removed: Callable[[int], None],
    ) -> None:
        self._node_id = node_id
        self._group_id, self._core, self._removed = group_id, core, removed

    def known(self) -> tuple[int, int]:
        """Return the epoch that is committed here, and the entry that began it.

        One that is not committed is told to nobody: a node that stops for good because of it could
        not come back if the entry was lost.
        """
        core = self._core()
        return core.epoch if core is not None else _NONE

    def check(self, handshake: Handshake) -> None:
        """Refuse a caller whose epoch this node was left out of, and stop. Raises MemberRemoved."""
        if handshake.group_id and handshake.group_id == self._group_id():
            self.learn(handshake.epoch, handshake.epoch_index)
            if self._is_left_out(handshake.epoch):
                index, group_id = handshake.epoch_index, handshake.group_id
                raise MemberRemoved(self._node_id, group_id=group_id, index=index)

    def learn(self, epoch: int, index: int) -> None:
        """Take a member's word that the group was forced; stop if this node was left out."""
        if self._is_left_out(epoch):
            logger.critical(
                "node %s: its group %s was forced to epoch %d by entry %d, without this node: it "
                "never votes again; what only its disk has can be read by `dledger log dump`",
                self._node_id, self._group_id(), epoch, index,
            )  # fmt: skip
            self._removed(index)

    def _is_left_out(self, epoch: int) -> bool:
        core = self._core()
        return core is not None and core.is_behind(epoch)

    def refusal(self, handshake: Handshake, error: DledgerError) -> DledgerError:
        """Return what to refuse a handshake with, if *error* is why: it may say our epoch."""
        epoch, index = self.known()
        if isinstance(error, MemberRemoved):
            error.epoch = epoch
        elif handshake.group_id == self._group_id() and handshake.epoch < epoch:
            return LeftOut(str(error), epoch=epoch, index=index)
        return error

    def is_binding(self, epoch: int) -> bool:
        """Whether the word of a node of *epoch* that this one was removed counts.

        Not of an earlier epoch than our log has, committed or not: those that this node left out
        may have removed it from the group that they believe to be.
        """
        core = self._core()
        return core is None or core.membership.epoch <= epoch
