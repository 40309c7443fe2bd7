"""Groups and observations to begin a test with: a three-replica group `orders` in `shop`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dledger.common.status import MemberStatus, NodeStatus
from dledger.types import Member, NodeId
from dledger_operator.api import names
from dledger_operator.api.policy import Policy
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.decisions.compacting import asked_compaction
from dledger_operator.observed.observed import Observed, Pod, TopicSeen, Volume, ref_of
from dledger_operator.resources import Platform, desired
from dledger_operator.resources.accepted import accepted_revision
from dledger_operator.resources.wish import wish

GROUP_ID = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
FRESH_ID = "0b5c1f2e-0000-4000-8000-000000000001"
NOW = "2031-05-06T07:08:09Z"
PLATFORM = Platform(
    image="dledger:test", namespace="dledger-system", spark_image="dledger-spark:test"
)
FREE = replace(
    PLATFORM,
    policy=Policy(
        allowed_images=("*",),
        allowed_priority_classes=("*",),
        denied_pod_metadata=(),
        pod_security="overridable",
    ),
)
"""Of an operator that lets groups ask for what they like."""


def body(spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    """Return a BrokerGroup as the API has it."""
    metadata = {"namespace": "shop", "name": "orders", "uid": "uid-1", "generation": 1}
    return {"metadata": metadata, "spec": spec or {}, "status": status}


def group(spec: dict[str, Any] | None = None, **status: Any) -> BrokerGroup:
    """Return the group with this spec and recorded status."""
    return FREE.group(body(spec, **status))


def bootstrapped(spec: dict[str, Any] | None = None, **status: Any) -> BrokerGroup:
    """Return the group as recorded after its first leader."""
    return group(spec, **{"groupId": GROUP_ID, "term": 1, "leader": "orders-0", **status})


def node(node_id: str, **said: Any) -> NodeStatus:
    """Return what a node with an empty disk says, but for *said*."""
    unjoined = NodeStatus(
        node_id=node_id,
        name="",
        group="orders",
        group_id="",
        role="unjoined",
        term=0,
        leader_id="",
        commit_index=0,
        applied_index=0,
        last_index=0,
        synced_index=0,
        ready=False,
        not_ready_reason="",
        members=(),
        last_failover=None,
        version="",
        storage_used_bytes=0,
        storage_capacity_bytes=0,
        writes_refused_reason="",
    )
    return replace(unjoined, **said)


def member(node_id: str, name: str, **said: Any) -> MemberStatus:
    """Return a connected member as the leader sees it, but for *said*."""
    who = Member(id=NodeId(node_id), name=name, address="")
    row = MemberStatus(member=who, role="unknown", match_index=0, lag=0, connected=True)
    return replace(row, **said)


def unjoined(*ordinals: int) -> dict[str, NodeStatus]:
    """Return nodes with empty disks, by pod name."""
    return {f"orders-{n}": node(f"id-{n}") for n in ordinals}


def joined(*ordinals: int, leader: int | None = 0, **changes: Any) -> dict[str, NodeStatus]:
    """Return nodes that carry the group id and agree on a leader, by pod name."""
    return {f"orders-{n}": _joined(n, leader, changes) for n in ordinals}


def _joined(ordinal: int, leader: int | None, changes: dict[str, Any]) -> NodeStatus:
    role = "leader" if ordinal == leader else "follower"
    joined = node(
        f"id-{ordinal}",
        group_id=GROUP_ID,
        role=role,
        term=1,
        leader_id="" if leader is None else f"id-{leader}",
        commit_index=7,
        applied_index=7,
        ready=True,
        members=members(0, 1, 2, leader=leader),
        storage_used_bytes=3 << 30,
        storage_capacity_bytes=10 << 30,
        feature_level=3,
    )
    return replace(joined, **changes)


def members(*ordinals: int, leader: int | None = 0) -> tuple[MemberStatus, ...]:
    """Return a membership of these replicas as the leader sees it."""
    return tuple(
        member(
            f"id-{n}",
            f"orders-{n}",
            role="leader" if n == leader else "follower",
            match_index=7,
        )
        for n in ordinals
    )


def pods(*ordinals: int, leader: int | None = 0, **changes: Any) -> dict[str, Pod]:
    """Return ready, labelled pods by name; a `leader` of None leaves them without a role."""
    return {f"orders-{n}": replace(_pod(n, leader), **changes) for n in ordinals}


def _pod(ordinal: int, leader: int | None) -> Pod:
    role = "" if leader is None else "leader" if ordinal == leader else "follower"
    return Pod(
        name=f"orders-{ordinal}",
        uid=f"pod-{ordinal}",
        ip=f"10.0.0.{ordinal}",
        ready=True,
        role=role,
    )


def volumes(*ordinals: int, size: str = "10Gi") -> dict[str, Volume]:
    """Return bound claims by name."""
    claims = (names.claim("orders", n) for n in ordinals)
    return {claim: Volume(name=claim, size=size, storage_class_name="standard") for claim in claims}


def converged(of: BrokerGroup, **changes: Any) -> Observed:
    """Return what is seen when everything is as the spec wants it."""
    image = "" if of.spec.image else of.kept_image
    observed = Observed(
        children={
            ref_of(manifest): manifest
            for manifest in (accepted_revision(of, image=image), *desired(of, PLATFORM))
        },
        pods=pods(0, 1, 2, spec_hash=wish(of)),
        volumes=volumes(*range(max(3, of.spec.replicas))),
        nodes=joined(0, 1, 2),
        topics={
            one.name: TopicSeen(one.type, one.queues, one.retention.hours, asked_compaction(one))
            for one in of.spec.topics
        },
    )
    return replace(observed, **changes)
