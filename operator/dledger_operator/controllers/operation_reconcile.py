"""A round of the BrokerOperations of one group: says where each stands, and deletes old ones.

The steps themselves are disruptions of the group's own plan (`decisions.operations`), which acts
only on what is recorded here: so nothing is done that was not written down before. Serves
operations also while there is no such group, to report that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from dledger_operator.api.brokeroperation import FAILED, RUNNING, SUCCEEDED, BrokerOperation
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
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
from dledger_operator.status.operation_status import operation_events, operation_status

log: Final = logging.getLogger(__name__)


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
        self._metrics = metrics
        self._clock = clock or Clock()
        self._written: dict[str, BrokerOperation] = {}

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
            await self._report(
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
        """Return them from the watch, or as written, where the watch has not caught up."""
        watched = {one.uid: one for one in self._watched.operations(*self.key)}
        for uid in self._written.keys() - watched.keys():
            del self._written[uid]
        return [_newer(one, self._written.get(uid)) for uid, one in watched.items()]

    async def _report(
        self, operation: BrokerOperation, after: dict[str, object], group: BrokerGroup | None
    ) -> None:
        """Write the status if it changed, then tell it to those who look at it or at the group."""
        before = operation.status
        if dict(before) == after:
            return
        try:
            written = await self._cluster.write_status(operation, after, only_if=operation.version)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return  # it was changed or deleted meanwhile, as the next round will see
        self._written[operation.uid] = BrokerOperation.parse(written)
        for event in operation_events(operation, before, after):
            for subject in (operation, group):
                if subject is not None:
                    await self._cluster.post(subject, event, now=self._clock.now())
        if after["phase"] in (SUCCEEDED, FAILED):
            self._metrics.operated(operation.spec.kind or "Unknown", str(after["phase"]))
        elif after["phase"] == RUNNING and before.get("phase") != RUNNING:
            log.info("operation %s/%s: it begins", operation.namespace, operation.name)


def _newer(watched: BrokerOperation, written: BrokerOperation | None) -> BrokerOperation:
    """Return the later form of one object: its resourceVersion grows with each write."""
    if written is None or not (watched.version.isdigit() and written.version.isdigit()):
        return watched
    return written if int(written.version) > int(watched.version) else watched
