"""What a local cluster contains from the start, as manifests: a storage class, volumes, DNS."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.layout import (
    DNS_ADDRESS,
    DNS_DOMAIN,
    STORAGE_CLASS,
    VOLUMES_PER_NODE,
    ClusterNode,
    Layout,
)
from e2e.cluster.render import Manifest

VOLUME_SIZE = "20Gi"
DNS_USER = 65532
DNS_PORT = 1053


def storage_class() -> Manifest:
    """The default storage class: local directories, bound when a pod is placed."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Retain",
        "allowVolumeExpansion": True,
    }


def volume(name: str, node: str, path: Path) -> Manifest:
    """A local volume: a directory of one node."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": VOLUME_SIZE},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "volumeMode": "Filesystem",
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


def volumes(layout: Layout, nodes: Sequence[ClusterNode]) -> list[Manifest]:
    """All local volumes of the cluster."""
    return [
        volume(f"{node.name}-{number:02}", node.name, layout.volumes(node) / f"{number:02}")
        for node in nodes
        for number in range(1, VOLUMES_PER_NODE + 1)
    ]


def directory(volume_manifest: Manifest) -> Path:
    """The directory behind a local volume."""
    return Path(volume_manifest["spec"]["local"]["path"])


def dns(image: str) -> list[Manifest]:
    """CoreDNS on every node, each serving its own node only: a lost node takes no DNS with it."""
    labels = {"k8s-app": "kube-dns"}
    named = {"name": "coredns", "namespace": "kube-system"}
    corefile = f""".:{DNS_PORT} {{
    errors
    health
    ready
    kubernetes {DNS_DOMAIN} in-addr.arpa ip6.arpa {{
        pods insecure
        ttl 5
    }}
    cache 5
    reload
}}
"""
    container = {
        "name": "coredns",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8080}, "failureThreshold": 10},
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "serviceAccountName": "coredns",
        "priorityClassName": "system-node-critical",
        "dnsPolicy": "Default",
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {"runAsNonRoot": True, "runAsUser": DNS_USER, "runAsGroup": DNS_USER},
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }
    watch = ["list", "watch"]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "coredns"},
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["services", "pods", "namespaces"],
                    "verbs": watch,
                },
                {
                    "apiGroups": ["discovery.k8s.io"],
                    "resources": ["endpointslices"],
                    "verbs": watch,
                },
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "coredns"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "coredns",
            },
            "subjects": [{"kind": "ServiceAccount", **named}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": named,
            "data": {"Corefile": corefile},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {**named, "labels": labels},
            "spec": {
                "selector": {"matchLabels": labels},
                "updateStrategy": {"type": "RollingUpdate"},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
            "spec": {
                "clusterIP": DNS_ADDRESS,
                "internalTrafficPolicy": "Local",
                "selector": labels,
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": DNS_PORT},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": DNS_PORT},
                ],
            },
        },
    ]
