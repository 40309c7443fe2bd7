"""The statuses of one group's BrokerOperations: written, and told to those who look at them.

Used by the reconcilers of operations and of rounds of compaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from dledger_operator.api.brokeroperation import FAILED, RUNNING, SUCCEEDED, BrokerOperation
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.controllers.latest_forms import LatestForms
from dledger_operator.metrics.metrics import Metrics
from dledger_operator.status.operation_status import operation_events

log: Final = logging.getLogger(__name__)


class OperationReports:
    """Writes what becomes of operations, and remembers it until the watch has caught up."""

    def __init__(self, cluster: Cluster, metrics: Metrics, *, now: Callable[[], str]) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._now = now
        self._forms: LatestForms[BrokerOperation] = LatestForms()

    def of(self, watched: Iterable[BrokerOperation]) -> list[BrokerOperation]:
        """Return each of these in its later form."""
        return self._forms.of(watched)

    async def tell(
        self, operation: BrokerOperation, after: Manifest, group: BrokerGroup | None
    ) -> None:
        """Write the status if it changed, then tell it to those who look at it or at the group.

        Raises:
            ApiError: The API server does not answer, or refused it.
        """
        before = operation.status
        if dict(before) == after:
            return
        try:
            written = await self._cluster.write_status(operation, after, only_if=operation.version)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return  # it was changed or deleted meanwhile, as the next round will see
        self._forms.note(BrokerOperation.parse(written))
        for event in operation_events(operation, before, after):
            for subject in (operation, group):
                if subject is not None:
                    await self._cluster.post(subject, event, now=self._now())
        if after["phase"] in (SUCCEEDED, FAILED):
            self._metrics.operated(operation.spec.kind or "Unknown", str(after["phase"]))
        elif after["phase"] == RUNNING and before.get("phase") != RUNNING:
            log.info("operation %s/%s: it begins", operation.namespace, operation.name)
