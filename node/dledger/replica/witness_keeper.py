"""Asks the other members at a start, and remembers what they are known to have had.

The rules are the core's (`raft.witness`); here are the clock, the reports that carry the questions
and answers, the file, and what is told to people. Owned by the driver.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from dledger.common.metrics import NodeMetrics
from dledger.common.reports import Mark, Report
from dledger.errors import DiskFull, StorageError
from dledger.raft.core import Raft
from dledger.replica.reports import Reports
from dledger.store.witness_file import WitnessFile
from dledger.types import NodeId

logger = logging.getLogger(__name__)

ASK_WAIT_S: Final = 3.0
"""How long a start waits for a member that is silent. Then it goes on, as Raft does: nobody can
tell a copy of a disk from the disk where those that know better are away."""
_ASK_AGAIN_S: Final = 0.15
"""Links open within a few of these after a start."""
_SAVE_EVERY_S: Final = 1.0


class WitnessKeeper:
    """Asks, listens, remembers and tells.

    Args:
        file: Where the marks are kept; None: in memory only.
        wake: Called when the core has work.
        on_failed: Called when the disk failed.
    """

    def __init__(
        self,
        core: Raft,
        reports: Reports,
        *,
        file: WitnessFile | None,
        metrics: NodeMetrics,
        wake: Callable[[], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._core, self._reports, self._metrics = core, reports, metrics
        self._file, self._wake, self._on_failed = file, wake, on_failed
        self._incarnations: dict[NodeId, str] = {}
        self._told: dict[NodeId, Mapping[NodeId, Mark]] = {}
        self._until_s: float | None = None
        self._ask_s = 0.0
        self._owed: Mark | None = None
        self._saved = dict(core.witness.known)
        reports.marks = core.told_marks
        reports.listeners.append(self._reported)

    def tick(self, now_s: float) -> None:
        """Ask, or go on; and tell it if this node begins or ends to abstain."""
        if self._core.asks:
            self._ask(now_s)
        owed = self._core.abstains
        if owed is not self._owed:
            self._tell(owed)
            self._owed = owed

    def _ask(self, now_s: float) -> None:
        core = self._core
        if self._until_s is None:
            self._until_s = now_s + ASK_WAIT_S
        voters = core.memberships.electorate.everyone - {core.id}
        silent = voters - self._reports.heard(ASK_WAIT_S).keys()
        knows_all = core.memberships.current.get(core.id) is not None and not silent
        if not knows_all and (now_s < self._until_s or self._knows_nobody()):
            if now_s >= self._ask_s:
                self._ask_s = now_s + _ASK_AGAIN_S
                members = [each.id for each in core.memberships.current.members]
                self._reports.ask(members, term=core.state.term)
            return
        if silent:
            logger.warning(
                "node %s takes part without the word of %s, silent for %.0f s: if this disk is an "
                "older copy of itself, only they know",
                core.id,
                ", ".join(sorted(silent)),
                ASK_WAIT_S,
            )
        core.answered(self._told)
        self._told = {}
        self._wake()

    def _knows_nobody(self) -> bool:
        """Whether those that this node can ask may all be gone, and nobody else has spoken yet.

        Nobody waits for a node that joins; and whoever feeds it reports to it. Its disk may be an
        older copy of a voter's, from when that joined.
        """
        return self._core.is_joining and not self._told

    def _reported(self, sender: NodeId, report: Report) -> None:
        """Take what a member knows; of one that started anew nothing is counted on any more."""
        core = self._core
        if core.asks:
            self._told[sender] = report.marks
        else:
            core.note_marks(report.marks)
        if self._incarnations.get(sender, report.incarnation) != report.incarnation:
            core.peer_restarted(sender)
            self._wake()
        self._incarnations[sender] = report.incarnation

    def _tell(self, owed: Mark | None) -> None:
        core = self._core
        if owed is None:
            logger.warning(
                "node %s has what it had again, up to entry %d: it votes", core.id, core.last_index
            )
            return
        self._metrics.older_disks.inc()
        logger.error(
            "the disk of node %s is older than it says: other members know that it had entry %d of "
            "term %d and was in term %d, and its log ends with entry %d of term %d. It gives no "
            "vote and stands for none until a leader has sent it what it lacks",
            core.id,
            owed.last_index,
            owed.last_term,
            owed.term,
            core.last_index,
            core.last_term,
        )

    async def keep(self) -> None:
        """Save what is known about once a second while that changes, until it is cancelled."""
        while True:
            await asyncio.sleep(_SAVE_EVERY_S)
            core = self._core
            if core.membership_index <= core.commit_index:
                core.witness.keep_only(each.id for each in core.membership.members)
            if self._file is None or core.witness.known == self._saved:
                continue
            marks = dict(core.witness.known)
            try:
                await asyncio.to_thread(self._file.save, marks)
                self._saved = marks
            except DiskFull as error:
                logger.warning("what other members had is not saved: %s", error)
            except StorageError as error:
                self._on_failed(error)
                return
