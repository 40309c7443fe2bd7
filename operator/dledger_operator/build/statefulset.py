"""The StatefulSet of a group: one pod and one volume a replica. Pure.

Kubernetes never restarts a pod because the template changed (OnDelete), starts all at once
(Parallel), and keeps the volumes whatever happens to the StatefulSet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dledger_operator import names
from dledger_operator.build.common import digest, metadata
from dledger_operator.build.config import CONFIG_DIR, DATA_DIR
from dledger_operator.spec import BrokerGroup, Manifest

_USER: Final = 10001
_RESTRICTED: Final[dict[str, Any]] = {
    "runAsNonRoot": True,
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "fsGroup": _USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_RETAIN: Final = {"whenDeleted": "Retain", "whenScaled": "Retain"}


def stateful_set(group: BrokerGroup, *, default_image: str, config: Mapping[str, str]) -> Manifest:
    """Return the StatefulSet; *config* is the data of the ConfigMap that the pods mount."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(group, group.name),
        "spec": {
            "serviceName": names.nodes_service(group.name),
            "replicas": group.spec.replicas,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": dict(_RETAIN),
            "selector": {"matchLabels": names.selector(group.name)},
            "template": {
                "metadata": _pod_metadata(group, config),
                "spec": _pod_spec(group, default_image),
            },
            "volumeClaimTemplates": [_claim(group)],
        },
    }


def _pod_metadata(group: BrokerGroup, config: Mapping[str, str]) -> Manifest:
    spec = group.spec
    return {
        "labels": {**spec.pod_labels, **names.labels(group.name)},
        "annotations": {**spec.pod_annotations, names.CONFIG_ANNOTATION: digest(dict(config))},
    }


def _pod_spec(group: BrokerGroup, default_image: str) -> Manifest:
    spec = group.spec
    optional = {
        "serviceAccountName": spec.service_account_name,
        "imagePullSecrets": [dict(secret) for secret in spec.image_pull_secrets],
        "priorityClassName": spec.priority_class_name,
        "nodeSelector": dict(spec.node_selector),
        "tolerations": [dict(toleration) for toleration in spec.tolerations],
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service named dledger-... would become a DLEDGER_ setting
        "terminationGracePeriodSeconds": 30,
        "securityContext": {**_RESTRICTED, **spec.security_context},
        "affinity": dict(spec.affinity) or _apart(group),
        "topologySpreadConstraints": [dict(c) for c in spec.topology_spread_constraints]
        or [_over_zones(group)],
        "containers": [_container(group, default_image)],
        "volumes": [
            {"name": "config", "configMap": {"name": names.config_map(group.name)}},
            {"name": "tmp", "emptyDir": {}},
        ],
        **{key: value for key, value in optional.items() if value},
    }


def _container(group: BrokerGroup, default_image: str) -> Manifest:
    return {
        "name": "node",
        "image": group.spec.image or default_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/opt/dledger/bin/dledger"],
        "args": ["node", "--config", f"{CONFIG_DIR}/node.toml"],
        "env": [
            _from_pod("DLEDGER_NAME", "metadata.name"),
            _from_pod("POD_NAMESPACE", "metadata.namespace"),
            {
                "name": "DLEDGER_ADVERTISE_HOST",
                "value": "$(DLEDGER_NAME)-client.$(POD_NAMESPACE).svc",
            },
            _from_pod("DLEDGER_PEER_HOST", "status.podIP"),
        ],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in (
                ("client", names.CLIENT_PORT),
                ("client-tls", names.CLIENT_TLS_PORT),
                ("peer", names.PEER_PORT),
                ("http", names.HTTP_PORT),
            )
        ],
        # Recovery of a long log may take minutes; a node that hangs afterwards is restarted.
        "startupProbe": _probe("/livez", period_s=2, timeout_s=2, failures=150),
        "livenessProbe": _probe("/livez", period_s=5, timeout_s=5, failures=6),
        "readinessProbe": _probe("/readyz", period_s=2, timeout_s=2, failures=2),
        **({"resources": dict(group.spec.resources)} if group.spec.resources else {}),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": "data", "mountPath": DATA_DIR},
            {"name": "config", "mountPath": CONFIG_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
        ],
    }


def _from_pod(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(path: str, *, period_s: int, timeout_s: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def _apart(group: BrokerGroup) -> Manifest:
    """Prefer one node of the group a machine; a preference, so that one machine can run all."""
    term = {
        "labelSelector": {"matchLabels": names.selector(group.name)},
        "topologyKey": "kubernetes.io/hostname",
    }
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _over_zones(group: BrokerGroup) -> Manifest:
    return {
        "maxSkew": 1,
        "topologyKey": names.ZONE_LABEL,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.selector(group.name)},
    }


def _claim(group: BrokerGroup) -> Manifest:
    storage = group.spec.storage
    chosen = {"storageClassName": storage.storage_class_name} if storage.storage_class_name else {}
    return {
        "metadata": {"name": "data", "labels": names.labels(group.name)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": storage.size}},
            **chosen,
        },
    }
