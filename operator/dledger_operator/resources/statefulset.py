"""The StatefulSet of a group, one pod and one volume a replica, and its disruption budget. Pure.

Kubernetes never restarts a pod because the template changed (OnDelete), since only the operator
could tell which node leads; starts all at once (Parallel), since a group is founded by all; and
keeps the volumes whatever happens to the StatefulSet.
"""

from __future__ import annotations

from typing import Final

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.resources.certificates import DIRECTORY_ENV, node_mounts, node_volumes
from dledger_operator.resources.common import metadata
from dledger_operator.resources.configmap import CONFIG_DIR, DATA_DIR, GROUP_ID_KEY
from dledger_operator.resources.pods import (
    CONTAINER_SECURITY,
    TMP_MOUNT,
    TMP_VOLUME,
    Place,
    from_pod,
    pod_template,
)
from dledger_operator.resources.wish import wish

_RETAIN: Final = {"whenDeleted": "Retain", "whenScaled": "Retain"}
_COUNTS: Final = frozenset(str(n) for n in range(1, names.MOST_REPLICAS + 1))


def stateful_set(group: BrokerGroup) -> Manifest:
    """Return the StatefulSet."""
    described = metadata(group, group.name)
    described["annotations"] = {names.PODS_ANNOTATION: str(group.pods)}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": described,
        "spec": {
            "serviceName": names.nodes_service(group.name),
            "replicas": group.pods,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": dict(_RETAIN),
            "selector": {"matchLabels": names.selector(group.name)},
            "template": pod_template(
                group,
                Place.NODES,
                labels=names.labels(group.name),
                annotations={names.SPEC_ANNOTATION: wish(group)},
                spec=_pod_spec(group),
            ),
            "volumeClaimTemplates": [claim_template(group)],
        },
    }


def budget(group: BrokerGroup) -> Manifest:
    """Return the budget.

    A pod that is not ready counts as disrupted, so a second one is not evicted while one is down.
    A group of one allows its only pod to be evicted: else its machine could never be drained. A
    group of two, on its way from three to one, can spare neither, and soon is one of one.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(group, group.name),
        "spec": {
            "maxUnavailable": 0 if group.pods == 2 else 1,
            "selector": {"matchLabels": names.selector(group.name)},
        },
    }


def pods_asked(stateful_set: Json) -> int:
    """Return how many pods the operator asked a StatefulSet for, whoever scaled it since."""
    said = (stateful_set["metadata"].get("annotations") or {}).get(names.PODS_ANNOTATION, "")
    if said in _COUNTS:
        return int(said)
    return int(stateful_set["spec"].get("replicas", 1))


def image_of(stateful_set: Json) -> str:
    """Return the image of the nodes that a StatefulSet makes."""
    return str(stateful_set["spec"]["template"]["spec"]["containers"][0]["image"])


def _pod_spec(group: BrokerGroup) -> Manifest:
    spec = group.spec
    named = {"serviceAccountName": spec.service_account_name} if spec.service_account_name else {}
    return {
        "terminationGracePeriodSeconds": 30,
        "topologySpreadConstraints": [dict(c) for c in spec.topology_spread_constraints]
        or [_over(group, key) for key in (names.ZONE_LABEL, names.HOST_LABEL)],
        "containers": [_container(group)],
        "volumes": [
            {"name": "config", "configMap": {"name": names.config_map(group.name)}},
            TMP_VOLUME,
            *node_volumes(group),
        ],
        **named,
    }


def _container(group: BrokerGroup) -> Manifest:
    return {
        "name": "node",
        "image": group.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/opt/dledger/bin/dledger"],
        "args": ["node", "--config", f"{CONFIG_DIR}/node.toml"],
        "env": [
            from_pod("DLEDGER_NAME", "metadata.name"),
            {
                "name": "DLEDGER_GROUP_ID",
                "valueFrom": {
                    "configMapKeyRef": {"name": names.config_map(group.name), "key": GROUP_ID_KEY}
                },
            },
            from_pod("POD_NAMESPACE", "metadata.namespace"),
            {
                "name": "DLEDGER_ADVERTISE_HOST",
                "value": "$(DLEDGER_NAME)-client.$(POD_NAMESPACE).svc",
            },
            from_pod("DLEDGER_PEER_HOST", "status.podIP"),
            *(DIRECTORY_ENV if group.has_peer_tls else ()),  # for commands in the pod
        ],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in (
                ("client", names.CLIENT_PORT),
                ("client-tls", names.CLIENT_TLS_PORT),
                ("peer", names.PEER_PORT),
                ("replication", names.REPLICATION_PORT),
                ("http", names.HTTP_PORT),
            )
        ],
        # Recovering a long log may take minutes (5 here; 10 GiB take 2 s), so liveness, which
        # restarts a node that hangs for 30 s, begins after that.
        "startupProbe": _probe("/livez", period_s=2, timeout_s=2, failures=150),
        "livenessProbe": _probe("/livez", period_s=5, timeout_s=5, failures=6),
        "readinessProbe": _probe("/readyz", period_s=1, timeout_s=2, failures=3),
        **({"resources": dict(group.spec.resources)} if group.spec.resources else {}),
        "securityContext": CONTAINER_SECURITY,
        # The last line of a node that gave up says why; conditions and Events show it.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "data", "mountPath": DATA_DIR},
            {"name": "config", "mountPath": CONFIG_DIR, "readOnly": True},
            TMP_MOUNT,
            *node_mounts(group),
        ],
    }


def _probe(path: str, *, period_s: int, timeout_s: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def _over(group: BrokerGroup, key: str) -> Manifest:
    """Return the wish to spread pods; a pod that cannot be spread runs all the same."""
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.selector(group.name)},
    }


def claim_template(group: BrokerGroup) -> Manifest:
    """Return the template of each replica's volume claim."""
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
