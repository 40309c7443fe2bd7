"""A round of the BrokerOperations of one group: says where each stands, and deletes old ones.

The steps themselves are disruptions of the group's own plan (`decisions.operations`), which acts
only on what is recorded here: so nothing is done that was not written down before. Serves
operations also while there is no such group, to report that.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.controllers.operation_reports import OperationReports
from dledger_operator.controllers.reconcile import Clock, Watched
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.operations import (
    OperationObserved,
    in_turn,
    left_s,
    may_go,
    outcome,
)
from dledger_operator.metrics.metrics import Metrics
from dledger_operator.status.operation_status import operation_status


class OperationReconciler:
    """Looks after the BrokerOperations that name one group.

    Args:
        key: Namespace and name of the group.
        group: Returns the current group; None if it does not exist.
        facts: Returns what was last seen of it; None if nothing was yet.
        is_ours: Whether the group is this operator's; another one's are left to that one.
    """

    def __init__(
        self,
        key: tuple[str, str],
        *,
        group: Callable[[], BrokerGroup | None],
        facts: Callable[[], Facts | None],
        cluster: Cluster,
        watched: Watched,
        metrics: Metrics,
        clock: Clock | None = None,
        is_ours: Callable[[], bool] = lambda: True,
    ) -> None:
        self.key = key
        self._group = group
        self._facts = facts
        self._is_ours = is_ours
        self._cluster = cluster
        self._watched = watched
        self._clock = clock or Clock()
        self._reports = OperationReports(cluster, metrics, now=self._clock.now)

    @property
    def unfinished(self) -> bool:
        """Whether any operation is not finished."""
        return any(not one.finished for one in self._operations())

    def soonest_s(self) -> float:
        """Return in how many seconds the next finished one may go; infinity without one."""
        now = self._clock.now()
        left = (left_s(one, now=now) for one in self._operations() if one.finished)
        return min(left, default=float("inf"))

    async def reconcile(self) -> None:
        """Do one round.

        Raises:
            ApiError: The API server does not answer, or refused a write.
        """
        if not self._is_ours():
            return
        group, operations = self._group(), self._operations()
        first = ""
        for operation in in_turn(operations):
            now = self._clock.now()
            seen = OperationObserved(
                there=group is not None, facts=self._facts(), predecessor=first
            )
            await self._reports.tell(
                operation,
                operation_status(operation, outcome(operation, seen, now=now), now=now),
                group,
            )
            if not first and not operation.asks_only:
                first = operation.name
        for operation in operations:
            if may_go(operation, now=self._clock.now()):
                await self._cluster.delete_operation(operation)

    async def close(self) -> None:
        """Nothing is kept open."""

    def _operations(self) -> list[BrokerOperation]:
        """Return them but rounds of compaction, which take their turns with backups."""
        found = self._reports.of(self._watched.operations(*self.key))
        return [one for one in found if not one.is_round]
