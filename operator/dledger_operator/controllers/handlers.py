"""kopf wiring: watches, indexes, a task for each BrokerGroup and for its BrokerBackups.

No decision is made here.

Only event and index handlers are registered, so that kopf puts no finalizer and no annotation on
anything; its daemons would. What they do, a `GroupTask` does.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final

import kopf

from dledger_operator.api import names
from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.cluster.api import Api
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.cluster.nodes import Nodes
from dledger_operator.controllers.backup_reconcile import BackupReconciler
from dledger_operator.controllers.reconcile import Reconciler
from dledger_operator.controllers.task import BackupTask, GroupTask
from dledger_operator.metrics.metrics import Metrics
from dledger_operator.observed.observed import Pod, Volume
from dledger_operator.observed.views import component_of, group_of, pod_of, volume_of, worker_of
from dledger_operator.observed.work import WorkerPod
from dledger_operator.resources import Platform

log: Final = logging.getLogger(__name__)

_PODS: Final = ("", "v1", "pods")
_VOLUMES: Final = ("", "v1", "persistentvolumeclaims")
_BACKUPS: Final = (names.API_GROUP, "v1", names.BACKUP_PLURAL)
_CHILDREN: Final = (
    ("", "v1", "configmaps"),
    ("", "v1", "serviceaccounts"),
    ("", "v1", "services"),
    ("apps", "v1", "statefulsets"),
    ("batch", "v1", "jobs"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("rbac.authorization.k8s.io", "v1", "rolebindings"),
)
_WATCHED: Final = (*_CHILDREN, _PODS, _VOLUMES)
_LABELLED: Final = {names.GROUP_LABEL: kopf.PRESENT}
_WORKERS: Final = "workers"


class Indexes:
    """What kopf's watches know, by group (`reconcile.Watched`)."""

    def __init__(self) -> None:
        self._indexes: dict[str, Any] = {}

    def use(self, indexes: dict[str, Any]) -> None:
        """Take kopf's live indexes, which it hands to every handler by their ids."""
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

    def workers(self, namespace: str, group: str) -> list[tuple[str, WorkerPod]]:
        """See `reconcile.Watched.workers`."""
        return self._all(_WORKERS, namespace, group)

    def backups(self, namespace: str, group: str) -> list[BrokerBackup]:
        """See `reconcile.Watched.backups`."""
        return self._all(names.BACKUP_PLURAL, namespace, group)

    def _all(self, plural: str, namespace: str, group: str) -> list[Any]:
        return list(self._indexes.get(plural, {}).get((namespace, group), ()))


class Manager:
    """The tasks of all groups and of their backups."""

    def __init__(self, api: Api, platform: Platform, metrics: Metrics) -> None:
        self.indexes = Indexes()
        self._cluster = Cluster(api, metrics.wrote)
        self._platform = platform
        self._metrics = metrics
        self._tasks: dict[tuple[str, str], GroupTask] = {}
        self._backups: dict[tuple[str, str], BackupTask] = {}

    async def saw(self, body: Manifest) -> None:
        """Take a BrokerGroup that was created or changed."""
        metadata = body["metadata"]
        key = metadata["namespace"], metadata["name"]
        task = self._tasks.get(key)
        if "deletionTimestamp" in metadata:
            await self.gone(*key)
        elif task is not None and task.uid == metadata["uid"]:
            task.saw(body)
        else:
            await self.gone(*key)
            self._tasks[key] = GroupTask(self._reconciler(body), self._metrics)
            self._metrics.groups.set(len(self._tasks))

    async def gone(self, namespace: str, name: str, *, uid: str = "") -> None:
        """End the task of a BrokerGroup that is or is being deleted; its children go by owner.

        With a *uid*, only that object's: another one of the same name may be there by now.
        """
        task = self._tasks.get((namespace, name))
        if task is not None and uid in ("", task.uid):
            del self._tasks[namespace, name]
            await task.close()
            self._metrics.forget(namespace, name)
            self._metrics.groups.set(len(self._tasks))
            self.wake(namespace, name)

    async def saw_backup(self, namespace: str, group: str) -> None:
        """Take note of a BrokerBackup that was created, changed or deleted."""
        key = namespace, group
        if key not in self._backups and self.indexes.backups(*key):
            self._backups[key] = BackupTask(self._backup_reconciler(key))
        elif key in self._backups and not self.indexes.backups(*key):
            await self._backups.pop(key).close()
        self.wake(*key)

    def wake(self, namespace: str, name: str) -> None:
        """Something of a group, or of its backups, changed."""
        for tasks in (self._tasks, self._backups):
            if task := tasks.get((namespace, name)):
                task.wake()

    async def close(self) -> None:
        """End all tasks."""
        for key in list(self._tasks):
            await self.gone(*key)
        while self._backups:
            await self._backups.popitem()[1].close()

    def _reconciler(self, body: Json) -> Reconciler:
        return Reconciler(
            body,
            cluster=self._cluster,
            nodes=Nodes(body["metadata"]["name"]),
            watched=self.indexes,
            platform=self._platform,
            metrics=self._metrics,
        )

    def _backup_reconciler(self, key: tuple[str, str]) -> BackupReconciler:
        return BackupReconciler(
            key,
            group=partial(self._group, key),
            cluster=self._cluster,
            watched=self.indexes,
            metrics=self._metrics.backups,
        )

    def _group(self, key: tuple[str, str]) -> BrokerGroup | None:
        if task := self._tasks.get(key):
            body = task.reconciler.body
            return self._platform.group(body)
        return None


def registry(manager: Manager, api: Api) -> kopf.OperatorRegistry:
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
            await manager.gone(metadata["namespace"], metadata["name"], uid=metadata["uid"])
        else:
            await manager.saw(dict(body))

    @kopf.index(*_BACKUPS, id=names.BACKUP_PLURAL, registry=made)
    def backup_index(body: Any, **_: Any) -> dict[tuple[str, str], BrokerBackup]:
        if "deletionTimestamp" in body["metadata"]:
            return {}  # else its Job, which goes first, would be made again
        return {_group_of_backup(body): BrokerBackup.parse(_unmanaged(body))}

    @kopf.on.event(*_BACKUPS, registry=made)
    async def backup_changed(body: Any, **indexes: Any) -> None:
        manager.indexes.use(indexes)
        await manager.saw_backup(*_group_of_backup(body))

    @kopf.on.cleanup(registry=made)
    async def stop(**_: Any) -> None:
        await manager.close()

    for resource in _WATCHED:
        _watch(made, manager, resource)
    _index_workers(made)
    return made


def settings() -> kopf.OperatorSettings:
    """Return kopf's settings: no peering, no Events of its own, only our labelled objects."""
    made = kopf.OperatorSettings()
    made.peering.standalone = True
    made.posting.enabled = False
    made.scanning.disabled = True
    made.watching.server_timeout = 300
    for resource in _WATCHED:
        made.watching.label_selectors[resource[2]] = names.MANAGED_SELECTOR
    return made


async def connection(api: Api) -> kopf.ConnectionInfo:
    """Return how to reach the API server, the same as *api* does."""
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
    """Index one kind by group, and wake the group's task when one of them changes."""
    value = {_PODS: pod_of, _VOLUMES: volume_of}.get(resource, _unmanaged)

    @kopf.index(*resource, id=resource[2], labels=_LABELLED, registry=made)
    def index(body: Any, **_: Any) -> dict[tuple[str, str], Any]:
        if resource == _PODS and component_of(body) != "node":
            return {}
        return {group_of(body): value(body)}

    @kopf.on.event(*resource, id=f"{resource[2]}-changed", labels=_LABELLED, registry=made)
    async def changed(body: Any, **_: Any) -> None:
        manager.wake(*group_of(body))


def _index_workers(made: kopf.OperatorRegistry) -> None:
    """Index the pods of Jobs, which are none of the group's own."""

    @kopf.index(*_PODS, id=_WORKERS, labels=_LABELLED, registry=made)
    def workers(body: Any, **_: Any) -> dict[tuple[str, str], tuple[str, WorkerPod]]:
        return {} if component_of(body) == "node" else {group_of(body): worker_of(body)}


def _group_of_backup(body: Json) -> tuple[str, str]:
    return body["metadata"]["namespace"], str(body["spec"].get("group"))


def _unmanaged(body: Any) -> Manifest:
    """Return a manifest without the record of who manages which field."""
    kept = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    return {**body, "metadata": kept}
