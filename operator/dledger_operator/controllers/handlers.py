"""kopf's watches and indexes, and loops for each BrokerGroup, its Jobs and its operations.

No decision is made here. Only event and index handlers are registered: kopf's daemons would put a
finalizer and an annotation on our objects, so a `GroupLoop` does their work. Built by `__main__`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import kopf

from dledger_operator.api import names
from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.cluster.api import ApiConnection
from dledger_operator.cluster.cluster import Cluster, is_of_group
from dledger_operator.cluster.nodes import MOST_ASKED, Nodes, log_since
from dledger_operator.controllers.backup_reconcile import BackupReconciler
from dledger_operator.controllers.log_job_reconcile import LogJobReconciler
from dledger_operator.controllers.operation_reconcile import OperationReconciler
from dledger_operator.controllers.reconcile import Reconciler
from dledger_operator.controllers.reconcile_loop import GroupLoop, LogJobLoop, OperationLoop
from dledger_operator.controllers.round_reconcile import RoundReconciler
from dledger_operator.decisions.drift import others_fields
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.turns import SETTLES_S, RolloutTurns
from dledger_operator.metrics.metrics import Metrics
from dledger_operator.observed.job_status import JobPod
from dledger_operator.observed.observed import Pod, Volume
from dledger_operator.observed.parsers import (
    parse_component,
    parse_group,
    parse_job_pod,
    parse_pod,
    parse_volume,
    with_shared_texts,
)
from dledger_operator.resources import Platform, accepted
from dledger_operator.resources.log_job import LogRange
from dledger_operator.status.seen import seen_every_s

log: Final = logging.getLogger(__name__)

_PODS: Final = ("", "v1", "pods")
_VOLUMES: Final = ("", "v1", "persistentvolumeclaims")
_BACKUPS: Final = (names.API_GROUP, "v1", names.BACKUP_PLURAL)
_OPERATIONS: Final = (names.API_GROUP, "v1", names.OPERATION_PLURAL)
_CHILDREN: Final = (
    ("", "v1", "configmaps"),
    ("", "v1", "serviceaccounts"),
    ("", "v1", "services"),
    ("apps", "v1", "controllerrevisions"),
    ("apps", "v1", "statefulsets"),
    ("batch", "v1", "jobs"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("rbac.authorization.k8s.io", "v1", "rolebindings"),
)
_WATCHED: Final = (*_CHILDREN, _PODS, _VOLUMES)
MOST_AT_ONCE: Final = 16
"""So many groups are worked on at the same time; looking at nodes does not count. All at once would
keep the event loop from the Lease, and none would be ready before the last."""
_LABELLED: Final = {names.GROUP_LABEL: kopf.PRESENT}
_JOB_PODS: Final = "workers"


class Indexes:
    """What kopf's watches know, by group (`reconcile.Watched`)."""

    def __init__(self) -> None:
        self._indexes: dict[str, Any] = {}

    def use(self, indexes: dict[str, Any]) -> None:
        """Take kopf's live indexes, which it passes to every handler by their ids."""
        self._indexes = indexes

    def children(self, namespace: str, group: str) -> list[Manifest]:
        """See `reconcile.Watched.children`."""
        found = (self._all(plural, namespace, group) for _, _, plural in _CHILDREN)
        return [manifest for manifests in found for manifest in manifests]

    def pods(self, namespace: str, group: str) -> list[Pod]:
        """See `reconcile.Watched.pods`."""
        return self._all("pods", namespace, group)

    def volumes(self, namespace: str, group: str) -> list[Volume]:
        """See `reconcile.Watched.volumes`."""
        return self._all("persistentvolumeclaims", namespace, group)

    def job_pods(self, namespace: str, group: str) -> list[tuple[str, JobPod]]:
        """See `reconcile.Watched.job_pods`."""
        return self._all(_JOB_PODS, namespace, group)

    def backups(self, namespace: str, group: str) -> list[BrokerBackup]:
        """See `reconcile.Watched.backups`."""
        return self._all(names.BACKUP_PLURAL, namespace, group)

    def operations(self, namespace: str, group: str) -> list[BrokerOperation]:
        """See `reconcile.Watched.operations`."""
        return self._all(names.OPERATION_PLURAL, namespace, group)

    def _all(self, plural: str, namespace: str, group: str) -> list[Any]:
        return list(self._indexes.get(plural, {}).get((namespace, group), ()))


class Manager:
    """The reconcile loops of all groups, of their backups and of their operations."""

    def __init__(
        self,
        api: ApiConnection,
        platform: Platform,
        metrics: Metrics,
        lease_s: Callable[[], float],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.indexes = Indexes()
        self._cluster = Cluster(api, metrics.wrote)
        self._platform = platform
        self._lease_s = lease_s
        self._metrics = metrics
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)
        self._asking = asyncio.Semaphore(MOST_ASKED)
        self._monotonic_s = monotonic_s
        self._seen_all_s = monotonic_s() + SETTLES_S
        self._rollouts = RolloutTurns(monotonic_s, lambda key: self.wake(*key))
        self._loops: dict[tuple[str, str], GroupLoop] = {}
        self._job_loops: dict[tuple[str, str], LogJobLoop] = {}
        self._operation_loops: dict[tuple[str, str], OperationLoop] = {}

    async def update_group(self, body: Manifest) -> None:
        """Take a BrokerGroup that was created or changed."""
        metadata = body["metadata"]
        key = metadata["namespace"], metadata["name"]
        loop = self._loops.get(key)
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            await self.remove_group(*key)
        elif loop is not None and loop.uid == metadata["uid"]:
            loop.update(body)
        else:
            await self.remove_group(*key)
            self._rollouts.remember(key, _recorded_reason(body, "Progressing"))
            self._loops[key] = GroupLoop(self._reconciler(body), self._metrics)
            self._metrics.groups.set(len(self._loops))

    async def remove_group(self, namespace: str, name: str, *, uid: str = "") -> None:
        """End the loop of a BrokerGroup that is deleted; its children go with it.

        One that is held by a finalizer keeps its loop, which says so and does nothing else.

        With a *uid*, only that object's: another of the same name may exist by now.
        """
        loop = self._loops.get((namespace, name))
        if loop is not None and uid in ("", loop.uid):
            del self._loops[namespace, name]
            await loop.close()
            self._rollouts.forget((namespace, name))
            self._metrics.forget(namespace, name)
            self._metrics.groups.set(len(self._loops))
            self.wake(namespace, name)

    def forget_missed(self) -> None:
        """Drop the series of groups that were deleted while nobody watched."""
        self._metrics.keep(self._loops)

    async def update_others(self, namespace: str, group: str) -> None:
        """Start, wake or end what looks after a group's BrokerBackups and BrokerOperations.

        Called when one of them changes.
        """
        key = namespace, group
        operations = self.indexes.operations(*key)
        rounds = [one for one in operations if one.is_round]
        has_jobs = bool(rounds or self.indexes.backups(*key))
        if has_jobs and key not in self._job_loops:
            self._job_loops[key] = LogJobLoop(self._job_reconciler(key))
        elif not has_jobs and key in self._job_loops:
            await self._job_loops.pop(key).close()
        has_operations = len(operations) > len(rounds)
        if has_operations and key not in self._operation_loops:
            self._operation_loops[key] = OperationLoop(self._operation_reconciler(key))
        elif not has_operations and key in self._operation_loops:
            await self._operation_loops.pop(key).close()
        self.wake(*key)

    def wake(self, namespace: str, name: str) -> None:
        """Do a round of a group, of its Jobs and of its operations now."""
        for loops in (self._loops, self._job_loops, self._operation_loops):
            if loop := loops.get((namespace, name)):
                loop.wake()

    async def close(self) -> None:
        """End all loops; what was known of the groups last stays among the metrics."""
        while self._loops:
            await self._loops.popitem()[1].close()
        self._metrics.groups.set(0)
        while self._job_loops:
            await self._job_loops.popitem()[1].close()
        while self._operation_loops:
            await self._operation_loops.popitem()[1].close()

    def _reconciler(self, body: Json) -> Reconciler:
        return Reconciler(
            body,
            cluster=self._cluster,
            nodes=Nodes(body["metadata"]["name"], asking=self._asking),
            watched=self.indexes,
            platform=self._platform,
            metrics=self._metrics,
            lease_s=self._lease_s,
            turns=self._turns,
            rollout_turns=self._rollouts,
            seen_every_s=lambda: seen_every_s(len(self._loops), body["metadata"]["uid"]),
        )

    def _job_reconciler(self, key: tuple[str, str]) -> LogJobReconciler:
        backups = BackupReconciler(
            key,
            group=partial(self._group, key),
            cluster=self._cluster,
            watched=self.indexes,
            metrics=self._metrics.backups,
            is_ours=partial(self._is_ours, key),
            ahead=partial(self._log_since, key),
        )
        rounds = RoundReconciler(
            key,
            group=partial(self._group, key),
            facts=partial(self._facts, key),
            cluster=self._cluster,
            watched=self.indexes,
            metrics=self._metrics,
            is_ours=partial(self._is_ours, key),
            ahead=partial(self._log_since, key),
        )
        return LogJobReconciler(backups, rounds)

    async def _log_since(
        self, key: tuple[str, str], pods: Iterable[Pod], first_index: int
    ) -> LogRange:
        """See `nodes.log_since`; the nodes are asked with the group's credentials."""
        loop = self._loops.get(key)
        channels = loop.reconciler.channels if loop else None
        return await log_since(pods, first_index, channels=channels)

    def _operation_reconciler(self, key: tuple[str, str]) -> OperationReconciler:
        return OperationReconciler(
            key,
            group=partial(self._group, key),
            facts=partial(self._facts, key),
            cluster=self._cluster,
            watched=self.indexes,
            metrics=self._metrics,
            is_ours=partial(self._is_ours, key),
        )

    def _is_ours(self, key: tuple[str, str]) -> bool:
        """Whether what names a group is this operator's: what names none is anybody's.

        Which groups there are is known a moment after their backups and operations may be.
        """
        if (loop := self._loops.get(key)) is not None:
            return loop.reconciler.is_ours
        return self._monotonic_s() >= self._seen_all_s

    def _facts(self, key: tuple[str, str]) -> Facts | None:
        loop = self._loops.get(key)
        return loop.reconciler.facts if loop and self._group(key) else None

    def _group(self, key: tuple[str, str]) -> BrokerGroup | None:
        """Return a group that there is; one that is being deleted is as good as gone."""
        if (loop := self._loops.get(key)) and not loop.reconciler.group.deleted_at:
            return loop.reconciler.group
        return None


def registry(manager: Manager, api: ApiConnection) -> kopf.OperatorRegistry:
    """Return the handlers that keep *manager* informed."""
    made = kopf.OperatorRegistry()

    @kopf.on.login(registry=made)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection(api)

    @kopf.on.event(names.API_GROUP, "v1", names.PLURAL, registry=made)
    async def group_changed(event: Any, body: Any, **indexes: Any) -> None:
        manager.indexes.use(indexes)
        metadata = body["metadata"]
        if event["type"] == "DELETED":
            await manager.remove_group(metadata["namespace"], metadata["name"], uid=metadata["uid"])
        else:
            await manager.update_group(dict(body))

    @kopf.index(*_BACKUPS, id=names.BACKUP_PLURAL, registry=made)
    def backup_index(body: Any, **_: Any) -> dict[tuple[str, str], BrokerBackup]:
        if "deletionTimestamp" in body["metadata"]:
            return {}  # its Job is deleted first, and would be made again
        return {_group_of(body): BrokerBackup.parse(_unmanaged(body))}

    @kopf.on.event(*_BACKUPS, registry=made)
    async def backup_changed(body: Any, **indexes: Any) -> None:
        manager.indexes.use(indexes)
        await manager.update_others(*_group_of(body))

    _watch_operations(made, manager)

    @kopf.on.cleanup(registry=made)
    async def stop(**_: Any) -> None:
        await manager.close()

    for resource in _WATCHED:
        _watch(made, manager, resource)
    _index_job_pods(made)
    return made


def settings() -> kopf.OperatorSettings:
    """Return kopf's settings: no peering, no Events of its own, only our labelled objects."""
    made = kopf.OperatorSettings()
    made.peering.standalone = True
    made.posting.enabled = False
    made.scanning.disabled = True
    made.watching.server_timeout = 300  # client-go: 5 to 10 min
    for resource in _WATCHED:
        made.watching.label_selectors[resource[2]] = names.MANAGED_SELECTOR
    return made


async def connection(api: ApiConnection) -> kopf.ConnectionInfo:
    """Return how kopf reaches the API server: the same way as *api*."""
    conf = api.settings
    header = await conf.get_api_key_with_prefix("BearerToken") or ""
    return kopf.ConnectionInfo(
        server=conf.host,
        ca_path=conf.ssl_ca_cert,
        insecure=not conf.verify_ssl,
        scheme="Bearer" if header else None,
        token=header.rpartition(" ")[2] or None,
        certificate_path=conf.cert_file,
        private_key_path=conf.key_file,
    )


def _watch(made: kopf.OperatorRegistry, manager: Manager, resource: tuple[str, str, str]) -> None:
    """Index one kind by group, and wake the group's loop when one of them changes."""
    value = {_PODS: parse_pod, _VOLUMES: parse_volume}.get(resource, _unmanaged)

    @kopf.index(*resource, id=resource[2], labels=_LABELLED, registry=made)
    def index(body: Any, **_: Any) -> dict[tuple[str, str], Any]:
        if resource == _PODS and parse_component(body) != "node":
            return {}
        if body["kind"] == accepted.KIND and not is_of_group(body):
            return {}  # a StatefulSet keeps its templates so, with our labels
        return {parse_group(body): value(body)}

    @kopf.on.event(*resource, id=f"{resource[2]}-changed", labels=_LABELLED, registry=made)
    async def changed(body: Any, **_: Any) -> None:
        manager.wake(*parse_group(body))


def _watch_operations(made: kopf.OperatorRegistry, manager: Manager) -> None:
    """Index BrokerOperations by group, and wake their loop when one of them changes."""

    @kopf.index(*_OPERATIONS, id=names.OPERATION_PLURAL, registry=made)
    def operation_index(body: Any, **_: Any) -> dict[tuple[str, str], BrokerOperation]:
        if "deletionTimestamp" in body["metadata"]:
            return {}  # who deletes one wants nothing more done
        return {_group_of(body): BrokerOperation.parse(_unmanaged(body))}

    @kopf.on.event(*_OPERATIONS, registry=made)
    async def operation_changed(body: Any, **indexes: Any) -> None:
        manager.indexes.use(indexes)
        await manager.update_others(*_group_of(body))


def _index_job_pods(made: kopf.OperatorRegistry) -> None:
    """Index the pods of Jobs, which are not nodes of the group."""

    @kopf.index(*_PODS, id=_JOB_PODS, labels=_LABELLED, registry=made)
    def job_pods(body: Any, **_: Any) -> dict[tuple[str, str], tuple[str, JobPod]]:
        return {} if parse_component(body) == "node" else {parse_group(body): parse_job_pod(body)}


def _recorded_reason(body: Json, kind: str) -> str:
    """Return the reason of a condition, as it is recorded; empty without that condition."""
    rows = (body.get("status") or {}).get("conditions") or ()
    return next((str(row["reason"]) for row in rows if row["type"] == kind), "")


def _group_of(body: Json) -> tuple[str, str]:
    return body["metadata"]["namespace"], str(body["spec"].get("group"))


def _unmanaged(body: Any) -> Manifest:
    """Return a manifest with what of `managedFields` tells others' changes; the rest is large."""
    metadata = dict(body["metadata"])
    others = others_fields(metadata)
    metadata.pop("managedFields", None)
    kept = {"managedFields": others} if others else {}
    manifest: Manifest = with_shared_texts({**body, "metadata": metadata | kept})
    return manifest
