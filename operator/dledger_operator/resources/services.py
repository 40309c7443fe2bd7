"""A group's Services: ready nodes, the leader alone, all nodes by name, each node alone. Pure."""

from __future__ import annotations

from typing import Any

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.resources.common import metadata


def client_service(group: BrokerGroup) -> Manifest:
    """Return the Service that clients use: every ready node, since any of them serves."""
    return _service(group, group.name, selector=names.selector(group.name), ports=_client_ports())


def leader_service(group: BrokerGroup) -> Manifest:
    """Return the Service with only the pod that is labelled as leader; clients do not need it."""
    selector = {**names.selector(group.name), names.ROLE_LABEL: "leader"}
    name = names.leader_service(group.name)
    return _service(group, name, selector=selector, ports=_client_ports())


def nodes_service(group: BrokerGroup) -> Manifest:
    """Return the headless Service that gives each pod its name, ready or not: peers need it."""
    ports = [
        *_client_ports(),
        _port("peer", names.PEER_PORT),
        _port("replication", names.REPLICATION_PORT),
        _port("http", names.HTTP_PORT),
    ]
    service = _service(
        group,
        names.nodes_service(group.name),
        selector=names.selector(group.name),
        ports=ports,
    )
    service["spec"] |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return service


def pod_service(group: BrokerGroup, ordinal: int) -> Manifest:
    """Return the Service of one replica while it is ready: the address that routes tell clients.

    A pod that is replaced gets another address, but SDKs keep using those that routes gave them.
    Where no ready pod is behind it, kube-proxy refuses a connection at once, and the client tries
    the next node; one led to the address of a pod that is gone would wait for seconds.
    """
    selector = {
        **names.selector(group.name),
        "statefulset.kubernetes.io/pod-name": names.pod(group.name, ordinal),
    }
    name = names.pod_service(group.name, ordinal)
    return _service(group, name, selector=selector, ports=_client_ports())


def _service(
    group: BrokerGroup, name: str, *, selector: dict[str, str], ports: list[dict[str, Any]]
) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(group, name),
        "spec": {"type": "ClusterIP", "selector": selector, "ports": ports},
    }


def _client_ports() -> list[dict[str, Any]]:
    return [_port("client", names.CLIENT_PORT), _port("client-tls", names.CLIENT_TLS_PORT)]


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}
