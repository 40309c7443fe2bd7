"""What the pods of a template need to be there before they can start. Pure.

Of the volumes and of the variables: a kubelet waits for each, but for what is optional.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dledger_operator.api.spec import Manifest


def list_mounts(template: Manifest) -> tuple[tuple[str, str], ...]:
    """Return kind and name of the ConfigMaps, Secrets and claims that a pod waits for, once each.

    Args:
        template: Of a StatefulSet or a Job, or a pod; claims of a StatefulSet's claim templates are
            not in it.
    """
    spec = template["spec"]
    found = [
        *(ref for volume in spec.get("volumes") or () for ref in _of_volume(volume)),
        *(
            ref
            for container in (*(spec.get("initContainers") or ()), *spec["containers"])
            for ref in _of_variables(container)
        ),
    ]
    return tuple(dict.fromkeys(found))


def _of_volume(volume: Manifest) -> Iterator[tuple[str, str]]:
    if claim := volume.get("persistentVolumeClaim"):
        yield "PersistentVolumeClaim", claim["claimName"]
    sources = (volume, *((volume.get("projected") or {}).get("sources") or ()))
    for source in sources:
        yield from _refer("Secret", source.get("secret"))
        yield from _refer("ConfigMap", source.get("configMap"))


def _of_variables(container: Manifest) -> Iterator[tuple[str, str]]:
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        yield from _refer("Secret", source.get("secretKeyRef"))
        yield from _refer("ConfigMap", source.get("configMapKeyRef"))
    for source in container.get("envFrom") or ():
        yield from _refer("Secret", source.get("secretRef"))
        yield from _refer("ConfigMap", source.get("configMapRef"))


def _refer(kind: str, source: Any) -> Iterator[tuple[str, str]]:
    if source and not source.get("optional"):
        yield kind, source.get("secretName") or source["name"]
