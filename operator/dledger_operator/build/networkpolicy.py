"""The NetworkPolicy: clients and scrapers from anywhere, the peer port from few. Pure."""

from __future__ import annotations

from typing import Any

from dledger_operator import names
from dledger_operator.build.common import metadata
from dledger_operator.spec import BrokerGroup, Manifest


def network_policy(group: BrokerGroup, *, operator_namespace: str) -> Manifest:
    """Return the policy.

    The peer port carries Admin too, so only the group's own pods, its backups' and the operator
    reach it. With an empty *operator_namespace* (an operator outside the cluster) no pod of another
    namespace does.
    """
    open_ports = [names.CLIENT_PORT, names.CLIENT_TLS_PORT, names.HTTP_PORT]
    peers: list[dict[str, Any]] = [
        {"podSelector": {"matchLabels": names.selector(group.name)}},
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
                {"ports": [{"port": port, "protocol": "TCP"} for port in open_ports]},
                {"ports": [{"port": names.PEER_PORT, "protocol": "TCP"}], "from": peers},
            ],
        },
    }


def _operator(namespace: str) -> dict[str, Any]:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": names.MANAGER}},
    }
