"""The writes that plans ask for, and who owns which object.

The only writer of children, role labels, statuses and Events; each write is counted. Called by the
reconcilers.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from dledger_operator.api import names
from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.cluster.api import Api, ApiError
from dledger_operator.observed.parsers import uncreated_pods
from dledger_operator.observed.starts import refused_pod, start_failures
from dledger_operator.resources.recovery import DONE
from dledger_operator.status.status import Event

log: Final = logging.getLogger(__name__)

Subject = BrokerGroup | BrokerBackup | BrokerOperation
"""What owns children, and what statuses and Events are about."""

_RIGHTS: Final = frozenset({"Secret", "ServiceAccount", "RoleBinding"})


class Cluster:
    """Writes to Kubernetes.

    Args:
        api: The connection.
        wrote: Called with the kind of each object that was written.
    """

    def __init__(self, api: Api, wrote: Callable[[str], None]) -> None:
        self._api = api
        self._wrote = wrote

    async def apply_child(self, group: Subject, manifest: Manifest, *, known: bool) -> bool:
        """Apply a child; False if an older object of its name has to be deleted first.

        Args:
            group: The owner.
            manifest: The child.
            known: Whether it was observed as this group's own; if not, its owner is checked first.

        Raises:
            ApiError: The API server refused it, or the name is taken by someone else's object.
        """
        return await self.applied(group, manifest, known=known) is not None

    async def applied(self, group: Subject, manifest: Manifest, *, known: bool) -> Manifest | None:
        """Do what `apply_child` does; return the object as written, None if it was not.

        A manifest with a resourceVersion is for that version of the object only.
        """
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if not known:
            present = await self._api.get(kind, group.namespace, name)
            if present is not None and not owned(present, group):
                if left_over(present, group):
                    return None
                raise ApiError(409, f"the name is taken by {_whose(present)}")
        if kind == "StatefulSet":
            await self._check_claims(group, manifest)
        try:
            written = await self._api.apply(manifest)
        except ApiError as error:
            if error.status == 409 and "resourceVersion" in manifest["metadata"]:
                return None
            raise
        self._wrote(kind)
        log.info("%s %s/%s: applied %s %s", *_who(group), kind, name)
        return written

    async def secret(self, group: BrokerGroup, name: str) -> Manifest | None:
        """Return a Secret of the group's namespace, whoever it belongs to; None without one."""
        return await self._api.get("Secret", group.namespace, name)

    async def repair_child(self, group: Subject, manifest: Manifest, patch: Manifest) -> bool:
        """Patch a child that others changed; False if it was changed since it was seen.

        Raises:
            ApiError: The API server refused it.
        """
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if not await self._merged(group, kind, name, patch):
            return False
        log.info("%s %s/%s: repaired %s %s", *_who(group), kind, name)
        return True

    async def _check_claims(self, group: Subject, manifest: Manifest) -> None:
        """Raise ApiError if a volume claim that the pods would mount is someone else's.

        A StatefulSet uses any claim of the right name: ``data-orders-0`` may be a database's.
        """
        claims = (names.claim(group.name, n) for n in range(manifest["spec"]["replicas"]))
        for name, whose in (await self.foreign_claims(group, claims)).items():
            raise ApiError(409, f"the name {name} is taken by {whose}; {_labels_said(group, name)}")

    async def foreign_claims(self, group: Subject, claims: Iterable[str]) -> dict[str, str]:
        """Return which of these volume claims are someone else's, and whose."""
        found = {}
        for name in claims:
            present = await self._api.get("PersistentVolumeClaim", group.namespace, name)
            if present is not None and not _labelled(present, group):
                found[name] = _whose(present)
        return found

    async def uncreated_pods(
        self, group: Subject, stateful_set: Json, pods: Collection[str]
    ) -> dict[str, str]:
        """Return which of *pods*, which are missing, Kubernetes refuses to create, and why."""
        uid = stateful_set["metadata"].get("uid", "")
        events = await self._api.events_on("StatefulSet", group.namespace, uid=uid)
        return uncreated_pods(events, pods)

    async def start_failures(self, group: Subject, *, pod_uid: str) -> str:
        """Return what the Events on a pod say of why nothing of it runs; empty if nothing."""
        return start_failures(await self._api.events_on("Pod", group.namespace, uid=pod_uid))

    async def refused_pod(self, group: Subject, job: Json) -> str:
        """Return why Kubernetes did not create the last pod of a Job; empty if it did."""
        uid = job["metadata"].get("uid", "")
        return refused_pod(await self._api.events_on("Job", group.namespace, uid=uid))

    async def is_there(self, group: Subject, kind: str, name: str) -> bool:
        """Whether an object is in the group's namespace and stays; what is in it is not read."""
        metadata = await self._api.metadata(kind, group.namespace, name)
        return metadata is not None and "deletionTimestamp" not in metadata

    async def volume(self, name: str) -> Manifest | None:
        """Return a PersistentVolume, or None if it does not exist."""
        return await self._api.get("PersistentVolume", "", name)

    async def machines_named(self, host: str) -> list[Manifest]:
        """Return the Nodes that carry a host name; none if the machine is gone."""
        return await self._api.nodes(**{names.HOST_LABEL: host})

    async def create_child(self, owner: Subject, manifest: Manifest) -> bool:
        """Create an object that is never changed; False if it or an older one of its name exists.

        Raises:
            ApiError: The API server refused it, or the name is taken by someone else's object.
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
        """Mark a volume claim: its recovery is done."""
        body = {"metadata": {"annotations": {names.RECOVERY_ANNOTATION: DONE}}}
        await self._api.merge("PersistentVolumeClaim", group.namespace, claim, body)
        self._wrote("PersistentVolumeClaim")

    async def mark_removed(self, group: BrokerGroup, claim: str, *, uid: str, node_id: str) -> bool:
        """Mark a volume claim: its disk, which has this node id, leaves the group for good.

        False if that claim is gone.

        Raises:
            ApiError: The API server refused it.
        """
        marks = {names.REMOVED_ANNOTATION: node_id}
        body: Manifest = {"metadata": {"uid": uid, "annotations": marks}}
        return await self._merged(group, "PersistentVolumeClaim", claim, body)

    async def retire_pods(self, group: BrokerGroup, name: str, *, uid: str, pods: int) -> bool:
        """Have a StatefulSet keep so many of its pods; False if that StatefulSet is gone.

        Raises:
            ApiError: The API server refused it.
        """
        marks = {names.PODS_ANNOTATION: str(pods)}
        metadata: Manifest = {"uid": uid, "annotations": marks}
        body: Manifest = {"metadata": metadata, "spec": {"replicas": pods}}
        done = await self._merged(group, "StatefulSet", name, body)
        if done:
            log.info("%s %s/%s: StatefulSet %s keeps %d pods", *_who(group), name, pods)
        return done

    async def _merged(self, group: Subject, kind: str, name: str, body: Manifest) -> bool:
        """Merge *body* into the object with its uid; False if that is gone."""
        try:
            await self._api.merge(kind, group.namespace, name, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return False
        self._wrote(kind)
        return True

    async def grow_claim(self, group: BrokerGroup, claim: str, size: str) -> None:
        """Ask for more in a volume claim.

        Raises:
            ApiError: The API server refused it, such as for a class that cannot grow.
        """
        body = {"metadata": {}, "spec": {"resources": {"requests": {"storage": size}}}}
        await self._api.merge("PersistentVolumeClaim", group.namespace, claim, body)
        self._wrote("PersistentVolumeClaim")
        log.info("%s %s/%s: %s is asked for %s", *_who(group), claim, size)

    async def release_pods(self, group: BrokerGroup, name: str, *, uid: str) -> bool:
        """Delete a StatefulSet without its pods; False if it is gone."""
        done = await self._delete(group, "StatefulSet", name, uid=uid, orphan=True)
        if done:
            log.info("%s %s/%s: deleted StatefulSet %s without its pods", *_who(group), name)
        return done

    async def write_status(
        self, group: Subject, status: Manifest, *, only_if: str = ""
    ) -> Manifest:
        """Write the whole status and return the object.

        Args:
            group: Its owner; another object of the same name is not touched.
            status: All of it: fields that are left out are removed.
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

    async def delete_backup(self, backup: BrokerBackup) -> None:
        """Delete a BrokerBackup with its Job; one that is gone needs none, nor another of its name.

        Raises:
            ApiError: The API server refused it.
        """
        if await self._delete(backup, backup.KIND, backup.name, uid=backup.uid):
            log.info("%s %s/%s: deleted, as retention says", *_who(backup))

    async def delete_operation(self, operation: BrokerOperation) -> None:
        """Delete a finished BrokerOperation; one that is gone needs none, nor another of its name.

        Raises:
            ApiError: The API server refused it.
        """
        if await self._delete(operation, operation.KIND, operation.name, uid=operation.uid):
            log.info("%s %s/%s: deleted, as its TTL says", *_who(operation))

    async def replace_claim(
        self, group: BrokerGroup, claim: str, *, uid: str, pod: str, pod_uid: str
    ) -> bool:
        """Delete a claim and the pod that mounts it; False if that claim is gone.

        The claim goes first: until the pod ends, it only waits. Its volume is not touched.

        Raises:
            ApiError: The API server refused it.
        """
        done = await self._delete(group, "PersistentVolumeClaim", claim, uid=uid)
        if done:
            log.info("%s %s/%s: deleted claim %s", *_who(group), claim)
        if pod_uid:
            await self._delete(group, "Pod", pod, uid=pod_uid)
        return done

    async def forget(self, group: BrokerGroup, kind: str, name: str, *, uid: str) -> None:
        """Delete a child that is for nothing any more; one that is gone needs none."""
        if await self._delete(group, kind, name, uid=uid):
            log.info("%s %s/%s: deleted %s %s", *_who(group), kind, name)

    async def restart_pod(self, group: BrokerGroup, name: str, *, uid: str) -> bool:
        """Delete a pod, which its StatefulSet makes anew; False if that pod is gone."""
        done = await self._delete(group, "Pod", name, uid=uid)
        if done:
            log.info("%s %s/%s: deleted pod %s", *_who(group), name)
        return done

    async def _delete(
        self, subject: Subject, kind: str, name: str, *, uid: str, orphan: bool = False
    ) -> bool:
        """Delete the object with that uid, near *subject*; False if it is gone."""
        try:
            await self._api.delete(kind, subject.namespace, name, uid=uid, orphan=orphan)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return False
        self._wrote(kind)
        return True

    async def label_role(self, group: BrokerGroup, pod: str, role: str) -> None:
        """Set a pod's role label, or remove it; a pod that is gone needs none."""
        body = {"metadata": {"labels": {names.ROLE_LABEL: role or None}}}
        try:
            await self._api.merge("Pod", group.namespace, pod, body)
        except ApiError as error:
            if error.status != 404:
                raise
            return
        self._wrote("Pod")

    async def post(self, group: Subject, event: Event, *, now: str) -> None:
        """Post an Event on an object. If that fails, the Event is lost and not retried."""
        log.info("%s %s/%s: %s: %s", *_who(group), event.reason, event.message)
        try:
            await self._api.create(_event(group, event, now))
        except ApiError as error:
            log.warning("%s %s/%s: no Event: %s", *_who(group), error)
            return
        self._wrote("Event")


def owned(manifest: Json, group: Subject) -> bool:
    """Whether an object is this owner's child, or has the labels of a group's child and no owner.

    Accounts and their bindings are never adopted by labels: whoever can label an account could then
    run a driver with its rights. Nor are Secrets: their keys would be known to who made them.
    """
    owners = manifest["metadata"].get("ownerReferences") or []
    controllers = [owner["uid"] for owner in owners if owner.get("controller")]
    if controllers or manifest["kind"] in _RIGHTS:
        return group.uid in controllers
    return group.KIND == names.KIND and _labelled(manifest, group)


def _labelled(manifest: Json, group: Subject) -> bool:
    labels = manifest["metadata"].get("labels") or {}
    return names.labels(group.name).items() <= labels.items()


def is_of_group(manifest: Json) -> bool:
    """Whether a BrokerGroup, any one, controls an object."""
    owners = manifest["metadata"].get("ownerReferences") or []
    return any(owner.get("controller") and owner["kind"] == names.KIND for owner in owners)


def left_over(manifest: Json, group: Subject) -> bool:
    """Whether an object belongs to an earlier owner of this name and is about to be deleted."""
    owners = manifest["metadata"].get("ownerReferences") or []
    return any(owner["kind"] == group.KIND and owner["name"] == group.name for owner in owners)


def _whose(manifest: Json) -> str:
    owners = manifest["metadata"].get("ownerReferences") or []
    if not owners:
        return f"a {manifest['kind']} that this operator did not make"
    return f"a {manifest['kind']} of {owners[0]['kind']} {owners[0]['name']}"


def _labels_said(group: Subject, claim: str) -> str:
    """Return what makes a claim the group's own, such as one of a volume that was brought back."""
    labels = " ".join(f"{key}={value}" for key, value in names.labels(group.name).items())
    return (
        f"if it is one of this group that was brought back, label it: kubectl label pvc {claim} "
        f"-n {group.namespace} {labels}"
    )


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
