"""What all pods of a group share: security, a temporary directory, scheduling. Pure.

`RESTRICTED` and `CONTAINER_SECURITY` are the Pod Security Standard "restricted", with a read-only
root file system.
"""

from __future__ import annotations

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


def pod_security(group: BrokerGroup) -> Manifest:
    """Return the security context of pods that use a node's volume, all as the same user."""
    return {**RESTRICTED, **group.spec.security_context}


def scheduling(group: BrokerGroup) -> Manifest:
    """Return where pods that use a node's volume may run, as the spec says."""
    spec = group.spec
    optional = {
        "imagePullSecrets": pull_secrets(group),
        "priorityClassName": spec.priority_class_name,
        "nodeSelector": dict(spec.node_selector),
        "tolerations": [dict(toleration) for toleration in spec.tolerations],
    }
    return {
        "affinity": dict(spec.affinity) or _apart(group),
        **{key: value for key, value in optional.items() if value},
    }


def job_scheduling(group: BrokerGroup) -> Manifest:
    """Return where drivers and executors may run, and the Secrets to pull their image with."""
    optional = {
        "imagePullSecrets": pull_secrets(group),
        "nodeSelector": dict(group.spark_node_selector),
    }
    return {key: value for key, value in optional.items() if value}


def pull_secrets(group: BrokerGroup) -> list[Manifest]:
    """Return the Secrets that images are pulled with."""
    return [dict(secret) for secret in group.spec.image_pull_secrets]


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
