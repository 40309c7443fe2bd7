"""The NetworkPolicy: clients and scrapers from anywhere, the ports for peers from few. Pure."""

from __future__ import annotations

from typing import Any

from dledger_operator import names
from dledger_operator.build.common import metadata
from dledger_operator.spec import BrokerGroup, Manifest


def network_policy(group: BrokerGroup, *, operator_namespace: str) -> Manifest:
    """Return the policy.

    The peer port carries Admin too, so only the group's own pods, its backups' and the operator
    reach it; the replication port only the first. With an empty *operator_namespace* (an operator
    outside the cluster) no pod of another namespace does.
    """
    open_ports = [names.CLIENT_PORT, names.CLIENT_TLS_PORT, names.HTTP_PORT]
    peers: list[dict[str, Any]] = [
        _nodes(group),
        {"podSelector": {"matchLabels": names.worker_selector(group.name, "backup")}},
    ]
    if operator_namespace:
        peers.append(_operator(operator_namespace))
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(group, group.name),
        "spec": {
            "podSelector": {"matchLabels": names.selector(group.name)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": _tcp(*open_ports)},
                {"ports": _tcp(names.PEER_PORT), "from": peers},
                {"ports": _tcp(names.REPLICATION_PORT), "from": [_nodes(group)]},
            ],
        },
    }


def _tcp(*ports: int) -> list[dict[str, Any]]:
    return [{"port": port, "protocol": "TCP"} for port in ports]


def _nodes(group: BrokerGroup) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": names.selector(group.name)}}


def _operator(namespace: str) -> dict[str, Any]:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": names.MANAGER}},
    }
