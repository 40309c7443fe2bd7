"""What all pods of a group share: security, a temporary directory, scheduling. Pure.

Every pod of a group, a node's, a Job's or an executor's, is made by `pod_template`. `RESTRICTED`
and `CONTAINER_SECURITY` are the Pod Security Standard "restricted", with a read-only root file
system.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest

_USER: Final = 10001
"""The operator's own Deployment has it, too; above 10000, so that it is no user of the machine."""
RESTRICTED: Final[dict[str, Any]] = {
    "runAsNonRoot": True,
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "fsGroup": _USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
TMP_DIR: Final = "/tmp"  # noqa: S108 - the pod's own
TMP_VOLUME: Final[dict[str, Any]] = {"name": "tmp", "emptyDir": {}}
TMP_MOUNT: Final[dict[str, Any]] = {"name": "tmp", "mountPath": TMP_DIR}


class Place(Enum):
    """Which machines a pod of a group is for."""

    NODES = "a node's, near its volume and apart from the other nodes"
    NODES_AND_SPARK = "those of them that have Spark's image, for the first node's volume"
    JOBS = "any that the platform has for Spark, or else any that nodes may be on"


def named_user(group: BrokerGroup) -> Manifest:
    """Return the annotations, volumes and mounts that give a pod's user a name; none if it has one.

    An executor of Spark does not start for a user that its image does not know: Hadoop asks the
    system for the name. So the pod has a list of users of its own, with that one.
    """
    security = {**RESTRICTED, **group.spec.security_context}
    user, of = security.get("runAsUser"), security.get("runAsGroup")
    if not isinstance(user, int) or user == _USER:
        return {"annotations": {}, "volumes": [], "mounts": []}
    line = f"dledger:x:{user}:{of if isinstance(of, int) else 0}::{TMP_DIR}:/usr/sbin/nologin\n"
    path = f"metadata.annotations['{names.USERS_ANNOTATION}']"
    items = [{"path": "passwd", "fieldRef": {"fieldPath": path}}]
    return {
        "annotations": {names.USERS_ANNOTATION: f"root:x:0:0::/:/usr/sbin/nologin\n{line}"},
        "volumes": [{"name": "users", "downwardAPI": {"items": items}}],
        "mounts": [
            {"name": "users", "mountPath": "/etc/passwd", "subPath": "passwd", "readOnly": True}
        ],
    }


def pod_template(
    group: BrokerGroup,
    place: Place,
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    spec: Manifest,
) -> Manifest:
    """Return the template of a pod of *group*: all that its spec says of pods, whatever one is for.

    Args:
        group: The group.
        place: Where it runs.
        labels: Its own; none of ours comes from the spec.
        annotations: Its own.
        spec: What it has of its own, its containers among it.
    """
    asked, ours = group.spec, names.labels(group.name)
    theirs = {key: value for key, value in asked.pod_labels.items() if key not in ours}
    said = {**asked.pod_annotations, **(annotations or {})}
    return {
        "metadata": {"labels": {**theirs, **labels}, **({"annotations": said} if said else {})},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,  # a Service dledger-... would become a DLEDGER_ setting
            "securityContext": {**RESTRICTED, **asked.security_context},
            **_placement(group, place),
            **spec,
        },
    }


def _placement(group: BrokerGroup, place: Place) -> Manifest:
    """Return where a pod may run, and the Secrets that its image is pulled with."""
    spec, of_spark = group.spec, dict(group.spark_node_selector)
    wanted: Manifest
    if place is Place.JOBS:
        # What nodes say of each other is not about Jobs: beside each node there would be no room.
        node_affinity = spec.affinity.get("nodeAffinity")
        wanted = {
            "affinity": {"nodeAffinity": node_affinity} if node_affinity and not of_spark else {},
            "nodeSelector": of_spark or dict(spec.node_selector),
        }
    else:
        selector = dict(spec.node_selector)
        wanted = {
            "affinity": dict(spec.affinity) or _apart(group),
            "priorityClassName": spec.priority_class_name,
            "nodeSelector": selector if place is Place.NODES else {**selector, **of_spark},
        }
    wanted["imagePullSecrets"] = [dict(secret) for secret in spec.image_pull_secrets]
    wanted["tolerations"] = [dict(toleration) for toleration in spec.tolerations]
    return {key: value for key, value in wanted.items() if value}


def from_pod(name: str, path: str) -> Manifest:
    """Return an environment variable with a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def from_secret(name: str, secret: str, *, optional: bool = False) -> Manifest:
    """Return an environment variable with the Secret's key of the same name."""
    key: Manifest = {"name": secret, "key": name}
    if optional:
        key["optional"] = True
    return {"name": name, "valueFrom": {"secretKeyRef": key}}


def _apart(group: BrokerGroup) -> Manifest:
    """Prefer one node of the group on a machine; not a rule, so that one machine can run all."""
    term = {
        "labelSelector": {"matchLabels": names.selector(group.name)},
        "topologyKey": "kubernetes.io/hostname",
    }
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
