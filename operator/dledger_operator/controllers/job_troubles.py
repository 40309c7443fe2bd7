"""Why the pods of Jobs are not created, or do not start: what only Events say.

Looked up while a Job has no pod at work, or one that does not run. Used by the reconcilers of a
group, whose first volume a Job restores, and of its backups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dledger_operator.api.spec import Json
from dledger_operator.cluster.cluster import Cluster, Subject
from dledger_operator.controllers.event_looks import EventLooks
from dledger_operator.decisions.starts import GRACE_S
from dledger_operator.observed.job_status import (
    JobPod,
    JobStatus,
    has_ended,
    is_without,
    job_status,
    seconds_between,
)


class JobTroubles:
    """Reads Events on Jobs and their pods; what it remembers only saves asking again.

    Args:
        cluster: Reads Events.
        monotonic_s: The clock.
        now: The time of day, RFC 3339.
    """

    def __init__(
        self, cluster: Cluster, *, monotonic_s: Callable[[], float], now: Callable[[], str]
    ) -> None:
        self._cluster = cluster
        self._now = now
        self._events = EventLooks(monotonic_s)

    async def status(self, owner: Subject, job: Json, pods: Sequence[JobPod]) -> JobStatus:
        """Return the status of a Job, with what Events say of it."""
        now, refused = self._now(), ""
        if is_without(pods):
            refused = await self._of_job(owner, job)
        seen = [await self._of_pod(owner, pod, now) for pod in pods]
        return job_status(job, seen, now=now, refused=refused)

    async def _of_job(self, owner: Subject, job: Json) -> str:
        """Return why its last pod was refused; of one that has ended, what was said before."""
        uid = str(job["metadata"].get("uid") or "")
        known = self._events.recall(uid)
        if has_ended(job) and known is not None:
            return known
        return await self._events.read(uid, lambda: self._cluster.refused_pod(owner, job))

    async def _of_pod(self, owner: Subject, pod: JobPod, now: str) -> JobPod:
        """Return a pod with what it waits for, if nothing of it runs for too long."""
        if not pod.idle_since or seconds_between(pod.idle_since, now) < GRACE_S:
            self._events.forget(pod.uid)
            return pod
        said = await self._events.read(
            pod.uid, lambda: self._cluster.start_failures(owner, pod_uid=pod.uid)
        )
        since = f"its pod does not run since {pod.idle_since}"
        return replace(pod, trouble="; ".join(filter(None, (since, pod.trouble, said))))
