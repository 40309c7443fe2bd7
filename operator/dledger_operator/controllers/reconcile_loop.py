"""The reconcile loops of one group, its Jobs and its operations: a round when woken, or in time.

A round that fails is logged, counted and tried again after a longer pause. `handlers` starts, wakes
and closes the loops; `reconcile` and `log_job_reconcile` are what a round does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Final

from dledger.common.backoff import Backoff
from dledger_operator.api.spec import Json
from dledger_operator.cluster.api import ApiError
from dledger_operator.controllers.log_job_reconcile import LogJobReconciler
from dledger_operator.controllers.operation_reconcile import OperationReconciler
from dledger_operator.controllers.reconcile import Reconciler
from dledger_operator.metrics.metrics import RUNAWAY_ROUNDS, Metrics

log: Final = logging.getLogger(__name__)

RESYNC_S: Final = 1.0
"""A group is reconciled this often while something is under way, or while one of its nodes has to
be asked: then only that shows a failover, which takes about a second (docs/performance.md)."""
SETTLED_S: Final = 10.0
"""The same while its nodes tell what changes and nothing is under way: for what only time changes,
such as a backup that is due, or a refusal that is over."""
RETRY_S: Final = 2.0
"""A round that failed is tried again after this, then after twice as long, and so on."""
RETRY_MAX_S: Final = 8.0
JOB_RESYNC_S: Final = 5.0
"""The same for its unfinished backups and rounds: a Job of minutes, whose pods are watched."""
EXPIRY_S: Final = 3600.0
"""The same for finished ones, which go by their age in days."""


class ReconcileLoop:
    """Runs rounds until closed."""

    def __init__(self, reconciler: Reconciler | LogJobReconciler | OperationReconciler) -> None:
        self._rounds = reconciler
        self._woken = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def wake(self) -> None:
        """Do a round now."""
        self._woken.set()

    async def close(self) -> None:
        """End the loop and close its connections."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._rounds.close()

    def pause_s(self) -> float:
        """Return how long to wait for being woken before the next round."""
        return RESYNC_S

    def note_round(self, *, started_s: float, ended_s: float, succeeded: bool) -> None:
        """Take note of a round, in monotonic seconds."""

    async def _run(self) -> None:
        backoff = Backoff(RETRY_S, RETRY_MAX_S)
        while True:
            self._woken.clear()
            if await self._round():
                backoff.reset()
                await self._wait(self.pause_s())
            else:
                await asyncio.sleep(backoff.next_s())

    async def _round(self) -> bool:
        started_s = time.monotonic()
        succeeded = False
        try:
            await self._rounds.reconcile()
            succeeded = True
        except ApiError as error:
            log.warning("round failed, trying again: %s", error)
        except Exception:
            log.exception("round failed, trying again")
        self.note_round(started_s=started_s, ended_s=time.monotonic(), succeeded=succeeded)
        return succeeded

    async def _wait(self, pause_s: float) -> None:
        # Not wait_for: until Python 3.12 it loses a cancellation that comes with the result, and
        # the task of a deleted group would go on for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._woken.wait()


class LogJobLoop(ReconcileLoop):
    """Looks after the BrokerBackups and rounds of compaction that name one group."""

    def __init__(self, reconciler: LogJobReconciler) -> None:
        self._reconciler = reconciler
        super().__init__(reconciler)

    def pause_s(self) -> float:
        """Look again for what no watch tells: a group that answers, a lost result, mere age."""
        if self._reconciler.has_unfinished:
            return JOB_RESYNC_S
        return min(EXPIRY_S, max(RESYNC_S, self._reconciler.soonest_s()))


class OperationLoop(ReconcileLoop):
    """Looks after the BrokerOperations that name one group."""

    def __init__(self, reconciler: OperationReconciler) -> None:
        self._reconciler = reconciler
        super().__init__(reconciler)

    def pause_s(self) -> float:
        """Look again as often as at the group, while one is unfinished; else when one may go."""
        if self._reconciler.unfinished:
            return RESYNC_S
        return min(EXPIRY_S, max(RESYNC_S, self._reconciler.soonest_s()))


class GroupLoop(ReconcileLoop):
    """Looks after one BrokerGroup object."""

    def __init__(self, reconciler: Reconciler, metrics: Metrics) -> None:
        self.reconciler = reconciler
        self.uid = str(reconciler.body["metadata"]["uid"])
        self._metrics = metrics
        super().__init__(reconciler)
        reconciler.call_on_news(self.wake)

    def pause_s(self) -> float:
        """Return how long to wait for being woken before the next round."""
        return SETTLED_S if self.reconciler.is_settled else RESYNC_S

    def update(self, body: Json) -> None:
        """Do a round with this form of the object."""
        self.reconciler.update(body)
        self.wake()

    def note_round(self, *, started_s: float, ended_s: float, succeeded: bool) -> None:
        """Count it, unless nothing was looked at: then the group's age would say that it is."""
        if self.reconciler.is_let_alone:
            return
        metadata = self.reconciler.body["metadata"]
        key = metadata["namespace"], metadata["name"]
        if self._metrics.reconciled(
            *key, started_s=started_s, ended_s=ended_s, succeeded=succeeded
        ):
            log.warning("group %s/%s: more than %d rounds in a minute", *key, RUNAWAY_ROUNDS)
