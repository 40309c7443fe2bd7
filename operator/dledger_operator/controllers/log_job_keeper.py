"""The Jobs of one group's backups and rounds: what they are seen to do, made, and tried again.

Used by the reconcilers of both.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster, Subject, owned
from dledger_operator.controllers.job_troubles import JobTroubles
from dledger_operator.controllers.reconcile import Clock, Watched
from dledger_operator.decisions.actions import Apply, Create
from dledger_operator.decisions.backoff import Backoff
from dledger_operator.observed.job_status import JobStatus
from dledger_operator.observed.observed import Pod, Ref, ref_of
from dledger_operator.resources.log_job import LogRange

log: Final = logging.getLogger(__name__)

LogSince = Callable[[Iterable[Pod], int], Awaitable[LogRange]]


class LogJobKeeper:
    """Looks at and makes the Jobs of the objects of one kind that name one group.

    Args:
        key: Namespace and name of the group.
    """

    def __init__(
        self, key: tuple[str, str], *, cluster: Cluster, watched: Watched, clock: Clock
    ) -> None:
        self._key = key
        self._cluster = cluster
        self._watched = watched
        self._clock = clock
        self._troubles = JobTroubles(cluster, monotonic_s=clock.monotonic_s, now=clock.now)
        self._backoff: dict[str, Backoff] = {}

    async def status(self, owner: Subject, name: str) -> JobStatus | None:
        """Return the status of an object's Job of that name; None if it has none."""
        jobs = [m for m in self._watched.children(*self._key) if ref_of(m) == ("Job", name)]
        if not jobs or not owned(jobs[0], owner):
            return None
        pods = [pod for job, pod in self._watched.job_pods(*self._key) if job == name]
        return await self._troubles.status(owner, jobs[0], pods)

    def children(self, group: BrokerGroup | None, owner: Subject) -> Mapping[Ref, Manifest]:
        """Return the children of the group and of one object."""
        owners: list[Subject] = [owner, *([group] if group else [])]
        found = self._watched.children(*self._key)
        return {ref_of(m): m for m in found if any(owned(m, each) for each in owners)}

    async def act(self, action: Apply | Create, group: BrokerGroup | None, owner: Subject) -> bool:
        """Carry out one action; False if later ones have to wait.

        The status reports what the API server refuses.
        """
        try:
            if isinstance(action, Create):
                await self._cluster.create_child(owner, action.manifest)
                return True
            return group is not None and await self._cluster.apply_child(
                group, action.manifest, known=False
            )
        except ApiError as error:
            if not error.refused:
                raise
            self.refuse(owner, ref_of(action.manifest), str(error))
            return False

    def refuse(self, owner: Subject, ref: Ref, error: str) -> None:
        """Note what the API server refused for an object, which is not tried again at once."""
        self._backoff_of(owner).add(ref, error, generation=owner.generation)
        log.warning("%s %s/%s: %s %s: %s", owner.KIND, self._key[0], owner.name, *ref, error)

    def refusals(self, owner: Subject) -> dict[Ref, str]:
        """Return what failed lately for an object and is not tried yet."""
        return self._backoff_of(owner).active(owner.generation)

    def keep(self, uids: Collection[str]) -> None:
        """Forget all objects but these."""
        for uid in self._backoff.keys() - set(uids):
            del self._backoff[uid]

    def _backoff_of(self, owner: Subject) -> Backoff:
        return self._backoff.setdefault(owner.uid, Backoff(self._clock.monotonic_s))
