"""A round of the BrokerBackups of one group: observe, plan, act and report for each in turn.

One `LogJobReconciler` serves all that name a group, so that two of them never start at once; it
serves them while there is no such group, too, to report that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from dledger.errors import Unavailable
from dledger_operator.api import names
from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.reasons import EventReason, Reason
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.cluster.nodes import log_since
from dledger_operator.controllers.latest_forms import LatestForms
from dledger_operator.controllers.log_job_keeper import LogJobKeeper, LogSince
from dledger_operator.controllers.reconcile import Clock, Watched
from dledger_operator.decisions.backups import (
    blocked_reason,
    expired,
    first_index,
    in_turn,
    plan_backup,
)
from dledger_operator.decisions.log_jobs import LogJobObserved
from dledger_operator.metrics.metrics import BackupMetrics
from dledger_operator.observed.job_status import JobRunning, JobStatus
from dledger_operator.status.backup_status import backup_events, backup_status, changed


class BackupReconciler:
    """Looks after the BrokerBackups that name one group.

    Args:
        key: Namespace and name of the group.
        group: Returns the current group; None if it does not exist.
        is_ours: Whether the group is this operator's; another one's backups are left to that one.
        ahead: Asks nodes how much log there is (`nodes.log_since`).
    """

    def __init__(
        self,
        key: tuple[str, str],
        *,
        group: Callable[[], BrokerGroup | None],
        cluster: Cluster,
        watched: Watched,
        metrics: BackupMetrics,
        clock: Clock | None = None,
        is_ours: Callable[[], bool] = lambda: True,
        ahead: LogSince = log_since,
    ) -> None:
        self.key = key
        self._group = group
        self._cluster = cluster
        self._watched = watched
        self._metrics = metrics
        self._clock = clock or Clock()
        self._is_ours = is_ours
        self._log_since = ahead
        self._jobs = LogJobKeeper(key, cluster=cluster, watched=watched, clock=self._clock)
        self._forms: LatestForms[BrokerBackup] = LatestForms()

    @property
    def unfinished(self) -> bool:
        """Whether any backup is not finished."""
        return any(not backup.finished for backup in self._backups())

    async def reconcile(self, *, running: str = "") -> str:
        """Do one round; return the backup that has a Job, or gets one, if there is any.

        None gets a Job while something else (*running*) of the group has one.

        Raises:
            ApiError: The API server does not answer, or refused a status.
        """
        if not self._is_ours():
            return ""
        group, backups = self._group(), self._backups()
        jobs = await self._statuses(backups)
        first = ""
        for backup in in_turn(backups, jobs):
            job = jobs.get(backup.name)
            observed = await self._observe(
                backup, backups, group, job, predecessor=first or running
            )
            actions = plan_backup(backup, observed)
            for action in actions:
                if not await self._jobs.act(action, group, backup):
                    break
            await self._report(backup, replace(observed, refusals=self._jobs.refusals(backup)))
            if not first and (actions or isinstance(observed.job, JobRunning)):
                first = backup.name
        if group is not None:
            await self._expire(group, backups)
        return first

    async def close(self) -> None:
        """Nothing is kept open."""

    def _backups(self) -> list[BrokerBackup]:
        found = self._forms.of(self._watched.backups(*self.key))
        self._jobs.keep([backup.uid for backup in found])
        return found

    async def _statuses(self, backups: Iterable[BrokerBackup]) -> dict[str, JobStatus]:
        """Return the statuses of the unfinished backups' Jobs, by the backup's name."""
        found: dict[str, JobStatus] = {}
        for backup in backups:
            if not backup.finished:
                status = await self._jobs.status(backup, names.backup_job(backup.name))
                if status is not None:
                    found[backup.name] = status
        return found

    async def _observe(
        self,
        backup: BrokerBackup,
        backups: list[BrokerBackup],
        group: BrokerGroup | None,
        job: JobStatus | None,
        *,
        predecessor: str,
    ) -> LogJobObserved:
        observed = LogJobObserved(
            group=group,
            children=self._jobs.children(group, backup),
            job=job,
            predecessor=predecessor,
            refusals=self._jobs.refusals(backup),
        )
        held = blocked_reason(backup, observed)
        if job or group is None or held is None or held.reason is not Reason.WAITING_FOR_GROUP:
            return observed
        try:
            since = first_index(backup, group, backups)
            there_is = await self._log_since(self._watched.pods(*self.key), since)
        except Unavailable as error:
            return replace(observed, unavailable=str(error))
        return replace(observed, log=there_is)

    async def _expire(self, group: BrokerGroup, backups: list[BrokerBackup]) -> None:
        """Delete one BrokerBackup that may go; its end is seen by the watch and wakes this loop."""
        backup = expired(group, backups, now=self._clock.now())
        if backup is None or self._jobs.refusals(backup):
            return
        try:
            await self._cluster.delete_backup(backup)
        except ApiError as error:
            if not error.refused:
                raise
            self._jobs.refuse(backup, (backup.KIND, backup.name), f"is not deleted: {error}")

    async def _report(self, backup: BrokerBackup, observed: LogJobObserved) -> None:
        """Write the status if it changed, then post the Events that the change is worth."""
        before = backup.status
        after = backup_status(backup, observed, now=self._clock.now())
        if not changed(before, after):
            return
        try:
            written = await self._cluster.write_status(backup, after, only_if=backup.version)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return  # it was changed or deleted meanwhile, as the next round will see
        self._forms.note(BrokerBackup.parse(written))
        for event in backup_events(before, after):
            await self._cluster.post(backup, event, now=self._clock.now())
            if event.reason is EventReason.BACKUP_FAILED and observed.group:
                self._metrics.failed(*self.key)
