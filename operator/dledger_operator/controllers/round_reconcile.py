"""The rounds of compaction of one group: observed, planned, made and reported, one after the other.

A round is a BrokerOperation with a Job. `LogJobReconciler` lets them take turns with backups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dledger.errors import Unavailable
from dledger_operator.api import names
from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.cluster.nodes import log_since
from dledger_operator.controllers.log_job_keeper import LogJobKeeper, LogSince
from dledger_operator.controllers.operation_reports import OperationReports
from dledger_operator.controllers.reconcile import Clock, Watched
from dledger_operator.decisions.compacting import compacted_topics
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.operations import left_s, may_go
from dledger_operator.decisions.rounds import (
    RoundObserved,
    plan_round,
    round_blocked,
    round_outcome,
    rounds_in_turn,
)
from dledger_operator.metrics.metrics import Metrics
from dledger_operator.observed.job_status import JobStatus
from dledger_operator.status.operation_status import operation_status


class RoundReconciler:
    """Looks after the rounds of compaction that name one group.

    Args:
        key: Namespace and name of the group.
        group: Returns the current group; None if it does not exist.
        facts: Returns what was last seen of it; None if nothing was yet.
        is_ours: Whether the group is this operator's; another one's rounds are left to that one.
        ahead: Asks nodes how much log there is (`nodes.log_since`).
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
        ahead: LogSince = log_since,
    ) -> None:
        self.key = key
        self._group = group
        self._facts = facts
        self._cluster = cluster
        self._watched = watched
        self._clock = clock or Clock()
        self._is_ours = is_ours
        self._log_since = ahead
        self._jobs = LogJobKeeper(key, cluster=cluster, watched=watched, clock=self._clock)
        self._reports = OperationReports(cluster, metrics, now=self._clock.now)

    @property
    def has_unfinished(self) -> bool:
        """Whether any round is not finished."""
        return any(not one.finished for one in self._rounds())

    def soonest_s(self) -> float:
        """Return in how many seconds the next finished one may go; infinity without one."""
        now = self._clock.now()
        left = (left_s(one, now=now) for one in self._rounds() if one.finished)
        return min(left, default=float("inf"))

    async def statuses(self) -> dict[str, JobStatus]:
        """Return the statuses of the unfinished rounds' Jobs, by the round's name."""
        found: dict[str, JobStatus] = {}
        for one in self._rounds() if self._is_ours() else ():
            if not one.finished:
                status = await self._jobs.status(one, names.compaction_job(one.name))
                if status is not None:
                    found[one.name] = status
        return found

    async def reconcile(self, jobs: Mapping[str, JobStatus], *, predecessor: str) -> None:
        """Do one round of the rounds.

        Args:
            jobs: What `statuses` returned before backups had their turn.
            predecessor: The backup that runs, or is to run; empty without one.

        Raises:
            ApiError: The API server does not answer, or refused a write.
        """
        if not self._is_ours():
            return
        group, rounds = self._group(), self._rounds()
        rival = ""
        for one in rounds_in_turn(rounds, jobs):
            observed = await self._observe(
                one, group, jobs.get(one.name), predecessor=predecessor, rival=rival
            )
            for action in plan_round(one, observed, now=self._clock.now()):
                if not await self._jobs.act(action, group, one):
                    break
            await self._report(one, replace(observed, refusals=self._jobs.refusals(one)), group)
            rival = rival or one.name
        for one in rounds:
            if may_go(one, now=self._clock.now()):
                await self._cluster.delete_operation(one)

    async def _observe(
        self,
        one: BrokerOperation,
        group: BrokerGroup | None,
        job: JobStatus | None,
        *,
        predecessor: str,
        rival: str,
    ) -> RoundObserved:
        facts = self._facts()
        observed = RoundObserved(
            group=group,
            children=self._jobs.children(group, one),
            job=job,
            predecessor=predecessor,
            rival=rival,
            refusals=self._jobs.refusals(one),
            topics=compacted_topics(facts.observed.topics if facts else None),
        )
        held = round_blocked(one, observed)
        if job or held is None or held.reason is not Reason.WAITING_FOR_GROUP:
            return observed
        if observed.topics is None:
            return observed
        try:
            there_is = await self._log_since(self._watched.pods(*self.key), 1)
        except Unavailable as error:
            return replace(observed, unavailable=str(error))
        return replace(observed, log=there_is)

    async def _report(
        self, one: BrokerOperation, observed: RoundObserved, group: BrokerGroup | None
    ) -> None:
        now = self._clock.now()
        found = round_outcome(one, observed, now=now)
        await self._reports.tell(one, operation_status(one, found, now=now), group)

    def _rounds(self) -> list[BrokerOperation]:
        watched = self._reports.of(self._watched.operations(*self.key))
        found = [one for one in watched if one.is_round]
        self._jobs.keep([one.uid for one in found])
        return found
