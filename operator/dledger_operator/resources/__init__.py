"""The manifests of a group's children. Pure; `desired` lists them in the order they are applied.

Each carries the hash of its own desired form, so that a change of the spec shows as a difference
even if a field only disappears. Used by `reconcile`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dledger_operator.api.policy import Policy, repository
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.resources.common import hashed
from dledger_operator.resources.configmap import config_map
from dledger_operator.resources.networkpolicy import job_policy, network_policy
from dledger_operator.resources.services import (
    client_service,
    leader_service,
    nodes_service,
    pod_service,
)
from dledger_operator.resources.statefulset import budget, stateful_set


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What the operator was installed with.

    Attributes:
        image: Image of the nodes when the spec names none.
        namespace: Where the operator runs; empty when it runs outside the cluster.
        spark_image: Image of backups and recoveries when the spec names none; may be empty.
        spark_node_selector: Labels of the machines that backups and recoveries run on.
        policy: What groups may ask for, besides every version of these two images: a group may keep
            the one it runs, or return to it.
        peer_tls: Whether nodes get certificates, and speak mutual TLS on their peer ports.
        client_server: What serves clients' ports: `grpc`, `native`, or empty: the nodes' default.
        door_processes: How many processes of each node do that; 0: the node itself.
        operator: Namespace and name of the operator's Lease: its mark on the groups that it acts
            on. Empty: it marks none, and all are its own.
    """

    image: str
    namespace: str = ""
    spark_image: str = ""
    spark_node_selector: Mapping[str, str] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    peer_tls: bool = False
    client_server: str = ""
    door_processes: int = 0
    operator: str = ""

    def group(self, body: Json) -> BrokerGroup:
        """Return the API's object as a group, with our own values where it has none."""
        own = tuple(repository(image) for image in (self.image, self.spark_image) if image)
        return BrokerGroup.parse(
            body,
            image=self.image,
            spark_image=self.spark_image,
            spark_node_selector=self.spark_node_selector,
            policy=replace(self.policy, allowed_images=(*own, *self.policy.allowed_images)),
            has_peer_tls=self.peer_tls,
            client_server=self.client_server,
            door_processes=self.door_processes,
        )


def desired(group: BrokerGroup, platform: Platform) -> tuple[Manifest, ...]:
    """Return every child of *group*."""
    manifests = (
        config_map(group),
        nodes_service(group),
        client_service(group),
        leader_service(group),
        *(pod_service(group, ordinal) for ordinal in range(group.pods)),
        budget(group),
        network_policy(group, operator_namespace=platform.namespace),
        job_policy(group),
        stateful_set(group),
    )
    return tuple(hashed(manifest) for manifest in manifests)
