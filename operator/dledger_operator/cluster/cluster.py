"""Kubernetes as the operator uses it: the writes that plans ask for, and whose object is whose.

The only writer of children, role labels, statuses and Events; each write is counted.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any, Final, Protocol

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.cluster.api import ApiError
from dledger_operator.resources.recovery import DONE
from dledger_operator.status.status import Event

log: Final = logging.getLogger(__name__)

_RIGHTS: Final = frozenset({"ServiceAccount", "RoleBinding"})


class KubernetesApi(Protocol):
    """What of `api.Api` is needed here."""

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """See `api.Api.get`."""

    async def apply(self, manifest: Manifest, *, status: bool = False) -> Manifest:
        """See `api.Api.apply`."""

    async def merge(self, kind: str, namespace: str, name: str, body: Manifest) -> Manifest:
        """See `api.Api.merge`."""

    async def create(self, manifest: Manifest) -> Manifest:
        """See `api.Api.create`."""


class Subject(Protocol):
    """What statuses and Events are written of, and what owns children: one of our own kinds."""

    @property
    def KIND(self) -> str:  # noqa: N802 - a constant of its class
        """BrokerGroup or BrokerBackup."""

    @property
    def namespace(self) -> str:
        """Where it lives."""

    @property
    def name(self) -> str:
        """Of the object."""

    @property
    def uid(self) -> str:
        """Of this very object."""


class Cluster:
    """Carries out writes.

    Args:
        api: The connection.
        wrote: Told the kind of each object that was written.
    """

    def __init__(self, api: KubernetesApi, wrote: Callable[[str], None]) -> None:
        self._api = api
        self._wrote = wrote

    async def apply_child(self, group: Subject, manifest: Manifest, *, known: bool) -> bool:
        """Bring a child to this form; False when that has to wait for an older one to go.

        Args:
            group: The owner.
            manifest: The child.
            known: Whether it was observed as this group's own; if not, who owns it is asked first.

        Raises:
            ApiError: The API server refused it, or the name belongs to someone else.
        """
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if not known:
            present = await self._api.get(kind, group.namespace, name)
            if present is not None and not owned(present, group):
                if left_over(present, group):
                    return False
                raise ApiError(409, f"the name is taken by {_whose(present)}")
        if not known and kind == "StatefulSet":
            await self._check_claims(group, manifest)
        await self._api.apply(manifest)
        self._wrote(kind)
        log.info("%s %s/%s: applied %s %s", *_who(group), kind, name)
        return True

    async def _check_claims(self, group: Subject, manifest: Manifest) -> None:
        """Raise ApiError if a volume claim that the pods would mount is somebody else's.

        A StatefulSet takes any claim of the right name for its own: ``data-orders-0`` may well be a
        database's.
        """
        for ordinal in range(manifest["spec"]["replicas"]):
            name = names.claim(group.name, ordinal)
            present = await self._api.get("PersistentVolumeClaim", group.namespace, name)
            if present is not None and not _labelled(present, group):
                raise ApiError(409, f"the name {name} is taken by {_whose(present)}")

    async def create_child(self, owner: Subject, manifest: Manifest) -> bool:
        """Create an object that is never changed; False if it is there, or an older one has to go.

        Raises:
            ApiError: The API server refused it, or the name belongs to someone else.
        """
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        try:
            await self._api.create(manifest)
        except ApiError as error:
            if error.status != 409:
                raise
            present = await self._api.get(kind, owner.namespace, name)
            if present is None or owned(present, owner) or left_over(present, owner):
                return False
            raise ApiError(409, f"the name is taken by {_whose(present)}") from error
        self._wrote(kind)
        log.info("%s %s/%s: created %s %s", *_who(owner), kind, name)
        return True

    async def mark_restored(self, group: BrokerGroup, claim: str) -> None:
        """Mark a volume claim: its recovery is over."""
        body = {"metadata": {"annotations": {names.RECOVERY_ANNOTATION: DONE}}}
        await self._api.merge("PersistentVolumeClaim", group.namespace, claim, body)
        self._wrote("PersistentVolumeClaim")

    async def write_status(
        self, group: Subject, status: Manifest, *, only_if: str = ""
    ) -> Manifest:
        """Write the whole status and return the object.

        Args:
            group: Whose; another object of the same name is not touched.
            status: The whole of it: what is left out is taken away.
            only_if: The resourceVersion that the object must still have; empty for any.

        Raises:
            ApiError: 409 when it has another one, or is another object.
        """
        metadata = {"namespace": group.namespace, "name": group.name, "uid": group.uid}
        if only_if:
            metadata["resourceVersion"] = only_if
        manifest = {
            "apiVersion": names.API_VERSION,
            "kind": group.KIND,
            "metadata": metadata,
            "status": status,
        }
        written = await self._api.apply(manifest, status=True)
        self._wrote(group.KIND)
        return written

    async def label_role(self, group: BrokerGroup, pod: str, role: str) -> None:
        """Label a pod, or take the label off; a pod that is gone needs none."""
        body = {"metadata": {"labels": {names.ROLE_LABEL: role or None}}}
        try:
            await self._api.merge("Pod", group.namespace, pod, body)
        except ApiError as error:
            if error.status != 404:
                raise
            return
        self._wrote("Pod")

    async def post(self, group: Subject, event: Event, *, now: str) -> None:
        """Post an Event on an object. It is lost rather than retried if that fails."""
        log.info("%s %s/%s: %s: %s", *_who(group), event.reason, event.message)
        try:
            await self._api.create(_event(group, event, now))
        except ApiError as error:
            log.warning("%s %s/%s: no Event: %s", *_who(group), error)
            return
        self._wrote("Event")


def owned(manifest: Json, group: Subject) -> bool:
    """Whether an object is this very owner's child, or was a group's and has no owner any more.

    What rights hang on is never taken over by its labels: who may label an account would lend it.
    """
    owners = manifest["metadata"].get("ownerReferences") or []
    controllers = [owner["uid"] for owner in owners if owner.get("controller")]
    if controllers or manifest["kind"] in _RIGHTS:
        return group.uid in controllers
    return group.KIND == names.KIND and _labelled(manifest, group)


def _labelled(manifest: Json, group: Subject) -> bool:
    labels = manifest["metadata"].get("labels") or {}
    return names.labels(group.name).items() <= labels.items()


def left_over(manifest: Json, group: Subject) -> bool:
    """Whether an object belongs to an earlier owner of this name and is about to go."""
    owners = manifest["metadata"].get("ownerReferences") or []
    return any(owner["kind"] == group.KIND and owner["name"] == group.name for owner in owners)


def _whose(manifest: Json) -> str:
    owners = manifest["metadata"].get("ownerReferences") or []
    if not owners:
        return f"a {manifest['kind']} that this operator did not make"
    return f"a {manifest['kind']} of {owners[0]['kind']} {owners[0]['name']}"


def _who(of: Subject) -> tuple[str, str, str]:
    return of.KIND, of.namespace, of.name


def _event(group: Subject, event: Event, now: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "namespace": group.namespace,
            "name": f"{group.name}.{uuid.uuid4().hex[:16]}",
        },
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": group.KIND,
            "namespace": group.namespace,
            "name": group.name,
            "uid": group.uid,
        },
        "type": "Warning" if event.warning else "Normal",
        "reason": str(event.reason),
        "message": event.message[:1024],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": names.MANAGER},
        "reportingComponent": names.MANAGER,
        "reportingInstance": names.MANAGER,
        "action": "Reconcile",
    }
