"""The Kubernetes API: get, apply, merge, create, replace, delete, over `kubernetes.aio.dynamic`.

`Api` is what writers ask of it, `ApiConnection` is it. Paths are built here rather than discovered:
the kinds are few and known, and discovery would need a cache file. Every failure is an `ApiError`.
Used by `cluster`, `lease` and `__main__`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Protocol, Self

import aiohttp
import yaml
from kubernetes.aio import client, config, dynamic
from kubernetes.aio.dynamic.exceptions import DynamicApiError

from dledger_operator.api import names
from dledger_operator.api.spec import Manifest

TIMEOUT_S: Final = 10.0
"""Of a request: as long as a Lease may go without being renewed (`lease.RENEW_DEADLINE_S`)."""
# The package has types for a part of itself only.
_config: Any = config
_DynamicClient: Any = dynamic.DynamicClient

# What the library's reader raises for a file that is no kubeconfig.
_NO_KUBECONFIG: Final = (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError)
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_COLLECTIONS: Final = {
    "ConfigMap": "api/v1/namespaces/{}/configmaps",
    "Event": "api/v1/namespaces/{}/events",
    "Pod": "api/v1/namespaces/{}/pods",
    "Secret": "api/v1/namespaces/{}/secrets",
    "Service": "api/v1/namespaces/{}/services",
    "StatefulSet": "apis/apps/v1/namespaces/{}/statefulsets",
    "ControllerRevision": "apis/apps/v1/namespaces/{}/controllerrevisions",
    "Job": "apis/batch/v1/namespaces/{}/jobs",
    "PersistentVolume": "api/v1/persistentvolumes",
    "Node": "api/v1/nodes",
    "PersistentVolumeClaim": "api/v1/namespaces/{}/persistentvolumeclaims",
    "ServiceAccount": "api/v1/namespaces/{}/serviceaccounts",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "PodDisruptionBudget": "apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Lease": "apis/coordination.k8s.io/v1/namespaces/{}/leases",
    names.KIND: f"apis/{names.API_VERSION}/namespaces/{{}}/{names.PLURAL}",
    names.BACKUP_KIND: f"apis/{names.API_VERSION}/namespaces/{{}}/{names.BACKUP_PLURAL}",
    names.OPERATION_KIND: f"apis/{names.API_VERSION}/namespaces/{{}}/{names.OPERATION_PLURAL}",
}
_OURS: Final = {
    names.KIND: names.PLURAL,
    names.BACKUP_KIND: names.BACKUP_PLURAL,
    names.OPERATION_KIND: names.OPERATION_PLURAL,
}


class ApiError(Exception):
    """The API server refused a request, or gave no answer (*status* 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def refused(self) -> bool:
        """Whether sending the same request again will not help."""
        return self.status in (400, 403, 404, 409, 422)


class Api(Protocol):
    """What is asked of Kubernetes for a group's objects. Every method raises ApiError."""

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return an object, or None if it does not exist."""

    async def metadata(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return the metadata of an object and nothing that is in it; None if it does not exist."""

    async def events_on(self, kind: str, namespace: str, *, uid: str) -> list[Manifest]:
        """Return the Events on one object."""

    async def nodes(self, **labels: str) -> list[Manifest]:
        """Return the Nodes with these labels; a dot or slash of a key is passed by unpacking."""

    async def apply(self, manifest: Manifest, *, status: bool = False) -> Manifest:
        """Bring an object, or its status, to this form by server-side apply.

        With a resourceVersion it is refused (409) if the object's is another.
        """

    async def merge(self, kind: str, namespace: str, name: str, body: Manifest) -> Manifest:
        """Merge *body* into an object; None removes a key."""

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object; refused (409) if it exists."""

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str, orphan: bool = False
    ) -> None:
        """Delete an object, provided it is the one with this *uid*.

        What it owns goes with it, but for an *orphan*: then it stays, without an owner.
        """


class ApiConnection:
    """A connection to the API server: `Api`, and `lease.Leases`."""

    def __init__(self, connection: client.ApiClient) -> None:
        self._connection: Any = connection
        self._dynamic = _DynamicClient(connection)

    @classmethod
    async def connect(cls, kubeconfig: str) -> Self:
        """Connect by a kubeconfig file, or as the pod's service account if it is empty.

        Raises:
            ApiError: The file is missing or no kubeconfig, or this process runs in no pod.
        """
        settings = client.Configuration()
        if kubeconfig:
            await _load(kubeconfig, settings)
        else:
            try:
                _config.load_incluster_config(client_configuration=settings)
            except (_config.ConfigException, OSError) as error:
                raise ApiError(0, f"no --kubeconfig, and this is no pod: {error}") from error
        return cls(client.ApiClient(settings))

    @property
    def settings(self) -> Any:
        """The client's Configuration: address, certificates, token."""
        return self._connection.configuration

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return an object, or None if it does not exist."""
        try:
            return await self._request("get", _path(kind, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def metadata(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return the metadata of an object and nothing that is in it; None if it does not exist."""
        asked = {"header_params": {"Accept": _METADATA}}
        try:
            found = await self._request("get", _path(kind, namespace, name), **asked)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        metadata: Manifest = found["metadata"]
        return metadata

    async def events_on(self, kind: str, namespace: str, *, uid: str) -> list[Manifest]:
        """Return the Events on one object."""
        on = f"involvedObject.kind={kind},involvedObject.uid={uid}"
        listed = await self._request("get", _path("Event", namespace), field_selector=on)
        items: list[Manifest] = listed["items"]
        return items

    async def nodes(self, **labels: str) -> list[Manifest]:
        """Return the Nodes with these labels; a dot or slash of a key is passed by unpacking."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        listed = await self._request("get", _path("Node", ""), label_selector=selector)
        items: list[Manifest] = listed["items"]
        return items

    async def missing_kinds(self, namespace: str) -> tuple[str, ...]:
        """Return our kinds that cannot be listed yet; an empty *namespace* means all of them.

        A CRD that was just created answers 404, then 429, before it can be used.
        """
        return tuple([kind for kind in _OURS if not await self._serves(kind, namespace)])

    async def _serves(self, kind: str, namespace: str) -> bool:
        everywhere = f"/apis/{names.API_VERSION}/{_OURS[kind]}"
        try:
            await self._request("get", _path(kind, namespace) if namespace else everywhere, limit=1)
        except ApiError as error:
            if error.status in (404, 429):
                return False
            raise
        return True

    async def apply(self, manifest: Manifest, *, status: bool = False) -> Manifest:
        """Bring an object, or its status, to this form by server-side apply."""
        metadata = manifest["metadata"]
        path = _path(manifest["kind"], metadata["namespace"], metadata["name"])
        return await self._request(
            "patch",
            f"{path}/status" if status else path,
            body=manifest,
            content_type=_APPLY,
            field_manager=names.MANAGER,
            force_conflicts=True,
        )

    async def merge(self, kind: str, namespace: str, name: str, body: Manifest) -> Manifest:
        """Merge *body* into an object; None removes a key."""
        path = _path(kind, namespace, name)
        return await self._request(
            "patch", path, body=body, content_type=_MERGE, field_manager=names.MANAGER
        )

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object."""
        path = _path(manifest["kind"], manifest["metadata"]["namespace"])
        return await self._request("post", path, body=manifest)

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object, provided its resourceVersion is still the one in *manifest*."""
        metadata = manifest["metadata"]
        path = _path(manifest["kind"], metadata["namespace"], metadata["name"])
        return await self._request("put", path, body=manifest)

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str, orphan: bool = False
    ) -> None:
        """Delete an object; see `Api`."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if orphan:
            options["propagationPolicy"] = "Orphan"
        await self._request("delete", _path(kind, namespace, name), body=options)

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    async def _request(self, method: str, path: str, **options: Any) -> Manifest:
        try:
            response: Manifest = await self._dynamic.request(
                method, path, serializer=_plain, _request_timeout=TIMEOUT_S, **options
            )
        except DynamicApiError as error:
            raise ApiError(error.status, _message(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ApiError(0, f"the API server does not answer: {reason}") from error
        return response


async def _load(kubeconfig: str, settings: Any) -> None:
    """Read a kubeconfig into *settings*. Raises ApiError, with one line, if it is not one."""
    try:
        _check_readable(kubeconfig)
        await _config.load_kube_config(config_file=kubeconfig, client_configuration=settings)
    except OSError as error:
        raise ApiError(0, f"kubeconfig {kubeconfig}: {error.strerror or error}") from error
    except _config.ConfigException as error:
        raise ApiError(0, f"kubeconfig {kubeconfig}: {error}") from error
    except _NO_KUBECONFIG as error:
        raise ApiError(0, f"kubeconfig {kubeconfig}: this is not a kubeconfig file") from error


def _check_readable(path: str) -> None:
    """Raise OSError if the file cannot be read; the library takes a missing one for empty."""
    with Path(path).open("rb") as file:
        file.read(1)


def _plain(_: object, data: Manifest) -> Manifest:
    return data


def _path(kind: str, namespace: str, name: str = "") -> str:
    collection = "/" + _COLLECTIONS[kind].format(namespace)
    return f"{collection}/{name}" if name else collection


def _message(error: DynamicApiError) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"
