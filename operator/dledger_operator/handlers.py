"""kopf wiring: watches, indexes, and one task a BrokerGroup. No decision is made here.

Only event and index handlers are registered, so that kopf puts no finalizer and no annotation on
anything; its daemons would. What they do, a `GroupTask` does.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import kopf

from dledger_operator import names
from dledger_operator.api import Api
from dledger_operator.build import Platform
from dledger_operator.cluster import Cluster, group_of, pod_of, volume_of
from dledger_operator.metrics import Metrics
from dledger_operator.nodes import Nodes
from dledger_operator.observed import Pod, Volume
from dledger_operator.reconcile import GroupTask, Reconciler
from dledger_operator.spec import Json, Manifest

log: Final = logging.getLogger(__name__)

_PODS: Final = ("", "v1", "pods")
_VOLUMES: Final = ("", "v1", "persistentvolumeclaims")
_CHILDREN: Final = (
    ("", "v1", "configmaps"),
    ("", "v1", "services"),
    ("apps", "v1", "statefulsets"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("policy", "v1", "poddisruptionbudgets"),
)
_WATCHED: Final = (*_CHILDREN, _PODS, _VOLUMES)
_LABELLED: Final = {names.GROUP_LABEL: kopf.PRESENT}


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

    def _all(self, plural: str, namespace: str, group: str) -> list[Any]:
        return list(self._indexes.get(plural, {}).get((namespace, group), ()))


class Manager:
    """The tasks of all groups."""

    def __init__(self, api: Api, platform: Platform, metrics: Metrics) -> None:
        self.indexes = Indexes()
        self._cluster = Cluster(api, metrics.wrote)
        self._platform = platform
        self._metrics = metrics
        self._tasks: dict[tuple[str, str], GroupTask] = {}

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

    def wake(self, namespace: str, name: str) -> None:
        """Something of a group changed."""
        if task := self._tasks.get((namespace, name)):
            task.wake()

    async def close(self) -> None:
        """End all tasks."""
        for key in list(self._tasks):
            await self.gone(*key)

    def _reconciler(self, body: Json) -> Reconciler:
        return Reconciler(
            body,
            cluster=self._cluster,
            nodes=Nodes(body["metadata"]["name"]),
            watched=self.indexes,
            platform=self._platform,
            metrics=self._metrics,
        )


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

    @kopf.on.cleanup(registry=made)
    async def stop(**_: Any) -> None:
        await manager.close()

    for resource in _WATCHED:
        _watch(made, manager, resource)
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
    value = {_PODS: pod_of, _VOLUMES: volume_of}.get(resource, _child)

    @kopf.index(*resource, id=resource[2], labels=_LABELLED, registry=made)
    def index(body: Any, **_: Any) -> dict[tuple[str, str], Any]:
        return {group_of(body): value(body)}

    @kopf.on.event(*resource, id=f"{resource[2]}-changed", labels=_LABELLED, registry=made)
    async def changed(body: Any, **_: Any) -> None:
        manager.wake(*group_of(body))


def _child(body: Any) -> Manifest:
    """Return a child's manifest without the record of who manages which field."""
    kept = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    return {**body, "metadata": kept}
