"""The NetworkPolicies: who reaches nodes and the pods of Jobs, and whom nodes reach. Pure.

The kubelet reaches the pods of its machine whatever a policy says, so probes need no rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.resources.common import metadata

_DNS_PORTS: Final = (53, 5353)
"""The second is where OpenShift's DNS pods listen, behind the first."""
_NODE_PORTS: Final = (
    names.CLIENT_PORT,
    names.CLIENT_TLS_PORT,
    names.PEER_PORT,
    names.REPLICATION_PORT,
)


def network_policy(group: BrokerGroup, *, operator_namespace: str) -> Manifest:
    """Return the policy of the nodes.

    The peer port carries Admin too, so only the group's own pods, its backups' and the operator
    reach it; the replication port only the first. With an empty *operator_namespace* (an operator
    outside the cluster) no pod of another namespace does. Nodes reach each other, DNS, and what the
    spec names.
    """
    spec = group.spec.network_policy
    peers = [_nodes(group), _workers(group, "backup")]
    if operator_namespace:
        peers.append(_operator(operator_namespace))
    clients = (names.CLIENT_PORT, names.CLIENT_TLS_PORT)
    return _policy(
        group,
        group.name,
        selector={"matchLabels": names.selector(group.name)},
        ingress=[
            # A node forwards calls to the leader's client port; the operator asks there for topics.
            _rule("from", _listed(spec.clients, peers), *clients),
            _rule("from", _listed(spec.monitoring), names.HTTP_PORT),
            _rule("from", peers, names.PEER_PORT),
            _rule("from", [_nodes(group)], names.REPLICATION_PORT),
        ],
        egress=[
            {"ports": [*_ports("UDP", *_DNS_PORTS), *_ports("TCP", *_DNS_PORTS)]},
            _rule("to", [_nodes(group)], *_NODE_PORTS),
            *([{"to": _listed(spec.egress)}] if spec.egress else []),
        ],
    )


def job_policy(group: BrokerGroup) -> Manifest:
    """Return the policy that closes the pods of backups and recoveries to all but scrapes."""
    labels = names.selector(group.name)
    del labels[names.COMPONENT_LABEL]
    components = ["backup", "recovery"]
    only = {"key": names.COMPONENT_LABEL, "operator": "In", "values": components}
    selector = {"matchLabels": labels, "matchExpressions": [only]}
    scrapes = _rule("from", _listed(group.spec.network_policy.monitoring), names.HTTP_PORT)
    return _policy(group, names.job_policy(group.name), selector=selector, ingress=[scrapes])


def driver_policy(group: BrokerGroup, name: str) -> Manifest:
    """Return the policy that lets a Spark driver and its executors connect to each other."""
    workers = _workers(group, "backup")
    rule = _rule("from", [workers], names.DRIVER_PORT, names.BLOCK_MANAGER_PORT)
    return _policy(group, name, selector=workers["podSelector"], ingress=[rule])


def _policy(
    group: BrokerGroup,
    name: str,
    *,
    selector: Manifest,
    ingress: list[Manifest],
    egress: list[Manifest] | None = None,
) -> Manifest:
    """Return a policy; no *egress*: its pods reach all."""
    spec: Manifest = {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress}
    if egress:
        spec |= {"policyTypes": ["Ingress", "Egress"], "egress": egress}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(group, name),
        "spec": spec,
    }


def _rule(direction: str, peers: list[Manifest], *ports: int) -> Manifest:
    """Return a rule; without *peers* it is for everyone."""
    return {"ports": _ports("TCP", *ports), **({direction: peers} if peers else {})}


def _ports(protocol: str, *numbers: int) -> list[dict[str, Any]]:
    return [{"port": number, "protocol": protocol} for number in numbers]


def _listed(peers: Iterable[Json], always: Iterable[Manifest] = ()) -> list[Manifest]:
    """Return the spec's peers and those that are always allowed; nothing, if it names none."""
    named = [dict(peer) for peer in peers]
    return [*named, *always] if named else []


def _nodes(group: BrokerGroup) -> Manifest:
    return {"podSelector": {"matchLabels": names.selector(group.name)}}


def _workers(group: BrokerGroup, component: str) -> Manifest:
    return {"podSelector": {"matchLabels": names.job_selector(group.name, component)}}


def _operator(namespace: str) -> Manifest:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": names.MANAGER}},
    }
