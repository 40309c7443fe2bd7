"""Kubernetes as the operator uses it: objects -> frozen values, and the writes that plans ask for.

The only writer of children, role labels, statuses and Events; each write is counted.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any, Final, Protocol

from dledger_operator import names
from dledger_operator.api import ApiError
from dledger_operator.observed import Pod, Volume
from dledger_operator.spec import BrokerGroup, Json, Manifest
from dledger_operator.status import Event

log: Final = logging.getLogger(__name__)


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


class Cluster:
    """Carries out writes.

    Args:
        api: The connection.
        wrote: Told the kind of each object that was written.
    """

    def __init__(self, api: KubernetesApi, wrote: Callable[[str], None]) -> None:
        self._api = api
        self._wrote = wrote

    async def apply_child(self, group: BrokerGroup, manifest: Manifest, *, known: bool) -> bool:
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
        await self._api.apply(manifest)
        self._wrote(kind)
        log.info("group %s/%s: applied %s %s", group.namespace, group.name, kind, name)
        return True

    async def write_status(
        self, group: BrokerGroup, status: Manifest, *, only_if: str = ""
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
            "kind": names.KIND,
            "metadata": metadata,
            "status": status,
        }
        written = await self._api.apply(manifest, status=True)
        self._wrote(names.KIND)
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

    async def post(self, group: BrokerGroup, event: Event, *, now: str) -> None:
        """Post an Event on the group. It is lost rather than retried if that fails."""
        log.info("group %s/%s: %s: %s", group.namespace, group.name, event.reason, event.message)
        try:
            await self._api.create(_event(group, event, now))
        except ApiError as error:
            log.warning("group %s/%s: no Event: %s", group.namespace, group.name, error)
            return
        self._wrote("Event")


def owned(manifest: Json, group: BrokerGroup) -> bool:
    """Whether an object is this very group's child, or was one and has no owner any more."""
    owners = manifest["metadata"].get("ownerReferences") or []
    if not any(owner.get("controller") for owner in owners):
        labels = manifest["metadata"].get("labels") or {}
        return names.labels(group.name).items() <= labels.items()
    return any(owner["uid"] == group.uid for owner in owners)


def left_over(manifest: Json, group: BrokerGroup) -> bool:
    """Whether an object belongs to an earlier BrokerGroup of this name and is about to go."""
    owners = manifest["metadata"].get("ownerReferences") or []
    return any(owner["kind"] == names.KIND and owner["name"] == group.name for owner in owners)


def group_of(manifest: Json) -> tuple[str, str]:
    """Return namespace and name of the group that a labelled object belongs to."""
    metadata = manifest["metadata"]
    return metadata["namespace"], metadata["labels"][names.GROUP_LABEL]


def pod_of(manifest: Json) -> Pod:
    """Return what matters of a pod."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    labels = metadata.get("labels") or {}
    ready = _condition(status, "Ready")
    return Pod(
        name=metadata["name"],
        ip=status.get("podIP") or "",
        ready=ready.get("status") == "True",
        role=labels.get(names.ROLE_LABEL, ""),
        zone=labels.get(names.ZONE_LABEL, ""),
        revision=labels.get(names.REVISION_LABEL, ""),
        terminating="deletionTimestamp" in metadata,
        trouble=_trouble(status),
    )


def volume_of(manifest: Json) -> Volume:
    """Return what matters of a volume claim."""
    spec = manifest["spec"]
    return Volume(
        name=manifest["metadata"]["name"],
        size=spec["resources"]["requests"]["storage"],
        storage_class_name=spec.get("storageClassName") or "",
        phase=(manifest.get("status") or {}).get("phase", "Pending"),
    )


def _trouble(status: Json) -> str:
    """Return why a pod does not run, in Kubernetes' words; empty when that is not known."""
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return str(scheduled.get("message") or scheduled.get("reason") or "not scheduled")
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting and waiting.get("reason") not in ("ContainerCreating", "PodInitializing"):
            return ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
    return ""


def _condition(status: Json, kind: str) -> Json:
    rows = status.get("conditions") or []
    found: Json = next((row for row in rows if row["type"] == kind), {})
    return found


def _whose(manifest: Json) -> str:
    owners = manifest["metadata"].get("ownerReferences") or []
    if not owners:
        return f"a {manifest['kind']} that this operator did not make"
    return f"a {manifest['kind']} of {owners[0]['kind']} {owners[0]['name']}"


def _event(group: BrokerGroup, event: Event, now: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "namespace": group.namespace,
            "name": f"{group.name}.{uuid.uuid4().hex[:16]}",
        },
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
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
