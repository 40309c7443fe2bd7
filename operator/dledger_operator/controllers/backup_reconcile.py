"""A round of the BrokerBackups of one group: observe, plan, act and report for each in turn.

One `BackupLoop` serves all that name a group, so that two of them never start at once; it serves
them while there is no such group, too, to report that.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from dledger.errors import Unavailable
from dledger_operator.api import names
from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.reasons import EventReason, Reason
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster, Subject, owned
from dledger_operator.cluster.nodes import log_since
from dledger_operator.controllers.job_troubles import JobTroubles
from dledger_operator.controllers.reconcile import Clock, Watched
from dledger_operator.decisions.actions import Apply, Create
from dledger_operator.decisions.backoff import Backoff
from dledger_operator.decisions.backups import (
    BackupObserved,
    blocked_reason,
    expired,
    first_index,
    in_turn,
    plan_backup,
)
from dledger_operator.metrics.metrics import BackupMetrics
from dledger_operator.observed.job_status import JobRunning, JobStatus
from dledger_operator.observed.observed import Pod, Ref, ref_of
from dledger_operator.resources.backup import LogRange
from dledger_operator.status.backup_status import backup_events, backup_status, changed

log: Final = logging.getLogger(__name__)

LogSince = Callable[[Iterable[Pod], int], Awaitable[LogRange]]


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
        self._troubles = JobTroubles(
            cluster, monotonic_s=self._clock.monotonic_s, now=self._clock.now
        )
        self._backoff: dict[str, Backoff] = {}
        self._written: dict[str, BrokerBackup] = {}

    @property
    def unfinished(self) -> bool:
        """Whether any backup is not finished."""
        return any(not backup.finished for backup in self._backups())

    async def reconcile(self) -> None:
        """Do one round.

        Raises:
            ApiError: The API server does not answer, or refused a status.
        """
        if not self._is_ours():
            return
        group, backups = self._group(), self._backups()
        jobs = await self._jobs(backups)
        first = ""
        for backup in in_turn(backups, jobs):
            job = jobs.get(backup.name)
            observed = await self._observe(backup, backups, group, job, predecessor=first)
            actions = plan_backup(backup, observed)
            for action in actions:
                if not await self._act(action, group, backup):
                    break
            await self._report(backup, replace(observed, refusals=self._backed_off(backup)))
            if not first and (actions or isinstance(observed.job, JobRunning)):
                first = backup.name
        if group is not None:
            await self._expire(group, backups)

    async def close(self) -> None:
        """Nothing is kept open."""

    def _backups(self) -> list[BrokerBackup]:
        """Return the backups from the watch, or as written, where the watch has not caught up."""
        watched = {backup.uid: backup for backup in self._watched.backups(*self.key)}
        for by_uid in (self._written, self._backoff):
            for uid in by_uid.keys() - watched.keys():
                del by_uid[uid]
        return [_newer(watched[uid], self._written.get(uid)) for uid in watched]

    async def _jobs(self, backups: Iterable[BrokerBackup]) -> dict[str, JobStatus]:
        """Return the statuses of the unfinished backups' Jobs, by the backup's name."""
        jobs = {m["metadata"]["name"]: m for m in self._of_kind("Job")}
        found = {}
        for backup in backups:
            name = names.backup_job(backup.name)
            if not backup.finished and name in jobs and owned(jobs[name], backup):
                pods = [pod for job, pod in self._watched.job_pods(*self.key) if job == name]
                found[backup.name] = await self._troubles.status(backup, jobs[name], pods)
        return found

    async def _observe(
        self,
        backup: BrokerBackup,
        backups: list[BrokerBackup],
        group: BrokerGroup | None,
        job: JobStatus | None,
        *,
        predecessor: str,
    ) -> BackupObserved:
        observed = BackupObserved(
            group=group,
            children=self._children(group, backup),
            job=job,
            predecessor=predecessor,
            refusals=self._backed_off(backup),
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

    def _children(self, group: BrokerGroup | None, backup: BrokerBackup) -> Mapping[Ref, Manifest]:
        owners: list[Subject] = [backup, *([group] if group else [])]
        found = self._watched.children(*self.key)
        return {ref_of(m): m for m in found if any(owned(m, owner) for owner in owners)}

    def _of_kind(self, kind: str) -> list[Manifest]:
        return [m for m in self._watched.children(*self.key) if m["kind"] == kind]

    async def _act(
        self, action: Apply | Create, group: BrokerGroup | None, backup: BrokerBackup
    ) -> bool:
        """Carry out one action; False if later ones have to wait.

        The status reports what the API server refuses.
        """
        try:
            if isinstance(action, Create):
                await self._cluster.create_child(backup, action.manifest)
                return True
            return group is not None and await self._cluster.apply_child(
                group, action.manifest, known=False
            )
        except ApiError as error:
            if not error.refused:
                raise
            ref = ref_of(action.manifest)
            self._backoff_of(backup).add(ref, str(error), generation=backup.generation)
            log.warning("backup %s/%s: %s %s: %s", *self.key, *ref, error)
            return False

    async def _expire(self, group: BrokerGroup, backups: list[BrokerBackup]) -> None:
        """Delete one BrokerBackup that may go; its end is seen by the watch and wakes this loop."""
        backup = expired(group, backups, now=self._clock.now())
        if backup is None or self._backed_off(backup):
            return
        try:
            await self._cluster.delete_backup(backup)
        except ApiError as error:
            if not error.refused:
                raise
            ref = (backup.KIND, backup.name)
            self._backoff_of(backup).add(ref, str(error), generation=backup.generation)
            log.warning("backup %s/%s: %s is not deleted: %s", *self.key, backup.name, error)

    async def _report(self, backup: BrokerBackup, observed: BackupObserved) -> None:
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
        self._written[backup.uid] = BrokerBackup.parse(written)
        for event in backup_events(before, after):
            await self._cluster.post(backup, event, now=self._clock.now())
            if event.reason is EventReason.BACKUP_FAILED and observed.group:
                self._metrics.failed(*self.key)

    def _backed_off(self, backup: BrokerBackup) -> dict[Ref, str]:
        return self._backoff_of(backup).active(backup.generation)

    def _backoff_of(self, backup: BrokerBackup) -> Backoff:
        return self._backoff.setdefault(backup.uid, Backoff(self._clock.monotonic_s))


def _newer(watched: BrokerBackup, written: BrokerBackup | None) -> BrokerBackup:
    """Return the later form of one object: its resourceVersion grows with each write."""
    if written is None or not (watched.version.isdigit() and written.version.isdigit()):
        return watched
    return written if int(written.version) > int(watched.version) else watched
