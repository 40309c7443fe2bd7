"""Backups and rounds of compaction of one group: each has a Job that reads the log, one at a time.

Backups come first. A round that is due waits for the backup that runs or is to run; a backup that
is created while a round runs is the next to run, before any other round.
"""

from __future__ import annotations

from dledger_operator.controllers.backup_reconcile import BackupReconciler
from dledger_operator.controllers.round_reconcile import RoundReconciler
from dledger_operator.observed.job_status import JobRunning


class LogJobReconciler:
    """Has backups and rounds take turns."""

    def __init__(self, backups: BackupReconciler, rounds: RoundReconciler) -> None:
        self._backups = backups
        self._rounds = rounds

    @property
    def has_unfinished(self) -> bool:
        """Whether anything is not finished."""
        return self._backups.unfinished or self._rounds.has_unfinished

    def soonest_s(self) -> float:
        """Return in how many seconds the next finished round may go; infinity without one."""
        return self._rounds.soonest_s()

    async def reconcile(self) -> None:
        """Do one round of both.

        What rounds were seen to do before backups had their turn counts for both: a round that
        ends meanwhile does not let the next one pass a backup that waited for it.

        Raises:
            ApiError: The API server does not answer, or refused a write.
        """
        jobs = await self._rounds.statuses()
        running = next((n for n, job in jobs.items() if isinstance(job, JobRunning)), "")
        backup = await self._backups.reconcile(running=running)
        await self._rounds.reconcile(jobs, predecessor=backup)

    async def close(self) -> None:
        """Nothing is kept open."""
