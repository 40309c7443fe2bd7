"""The NetworkPolicies: who reaches nodes and the pods of Jobs, and whom these reach. Pure.

The kubelet reaches the pods of its machine whatever a policy says, so probes need no rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dledger_operator.api import names
from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.resources.common import metadata, owned_by
from dledger_operator.resources.job_egress import api_rule, dns_rule, port_list, store_rules

_NODE_PORTS: Final = (
    names.CLIENT_PORT,
    names.CLIENT_TLS_PORT,
    names.PEER_PORT,
    names.REPLICATION_PORT,
)

_READERS: Final = (names.BACKUP_JOBS, names.COMPACTION_JOBS)
"""Jobs whose pods read the nodes' logs, by themselves or with executors."""


def network_policy(group: BrokerGroup, *, operator_namespace: str) -> Manifest:
    """Return the policy of the nodes.

    The peer port carries Admin too, so only the group's own pods, its Jobs' and the operator reach
    it; the replication port only the first. With an empty *operator_namespace* (an operator
    outside the cluster) no pod of another namespace does. Nodes reach each other, DNS, and what the
    spec names.
    """
    spec = group.spec.network_policy
    peers = [_nodes(group), *(_workers(group, each) for each in _READERS)]
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
            dns_rule(),
            _rule("to", [_nodes(group)], *_NODE_PORTS),
            *([{"to": _listed(spec.egress)}] if spec.egress else []),
        ],
    )


def job_policy(group: BrokerGroup) -> Manifest:
    """Return the policy of the pods of Jobs.

    They are reached by scrapes alone, and reach DNS, the nodes, the group's stores, and what the
    spec names.
    """
    labels = names.selector(group.name)
    del labels[names.COMPONENT_LABEL]
    components = [*_READERS, names.RECOVERY_JOBS]
    only = {"key": names.COMPONENT_LABEL, "operator": "In", "values": components}
    spec = group.spec.network_policy
    stores = (group.spec.backup.store, group.spec.bootstrap.recovery.store)
    rules = [rule for store in stores for rule in store_rules(store)]
    return _policy(
        group,
        names.job_policy(group.name),
        selector={"matchLabels": labels, "matchExpressions": [only]},
        ingress=[_rule("from", _listed(spec.monitoring), names.HTTP_PORT)],
        egress=[
            dns_rule(),
            _rule("to", [_nodes(group)], names.PEER_PORT),
            *(rule for number, rule in enumerate(rules) if rule not in rules[:number]),
            *([{"to": _listed(spec.job_egress)}] if spec.job_egress else []),
        ],
    )


def store_policy(backup: BrokerBackup, group: BrokerGroup) -> Manifest:
    """Return the policy that opens the way to the backup's own store, and no other."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": owned_by(
            backup, names.backup_job(backup.name), names.job_labels(group.name, names.BACKUP_JOBS)
        ),
        "spec": {
            **_workers(group, names.BACKUP_JOBS),
            "policyTypes": ["Egress"],
            "egress": store_rules(backup.spec.store),
        },
    }


def driver_policy(group: BrokerGroup, name: str) -> Manifest:
    """Return the policy of a Spark driver and its executors.

    They connect to each other, and to the API server: executors, which have no token, cannot be
    told from their driver by a label that they may not have.
    """
    labels = names.selector(group.name)
    del labels[names.COMPONENT_LABEL]
    only = {"key": names.COMPONENT_LABEL, "operator": "In", "values": [*_READERS]}
    workers = {"podSelector": {"matchLabels": labels, "matchExpressions": [only]}}
    spark = (names.DRIVER_PORT, names.BLOCK_MANAGER_PORT)
    return _policy(
        group,
        name,
        selector=workers["podSelector"],
        ingress=[_rule("from", [workers], *spark)],
        egress=[_rule("to", [workers], *spark), api_rule()],
    )


def _policy(
    group: BrokerGroup,
    name: str,
    *,
    selector: Manifest,
    ingress: list[Manifest],
    egress: list[Manifest],
) -> Manifest:
    """Return a policy; what its pods reach beyond *egress* another one says, or nobody."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(group, name),
        "spec": {
            "podSelector": selector,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }


def _rule(direction: str, peers: list[Manifest], *ports: int) -> Manifest:
    """Return a rule; without *peers* it is for everyone."""
    return {"ports": port_list("TCP", *ports), **({direction: peers} if peers else {})}


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
