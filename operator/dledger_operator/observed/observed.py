"""What was observed of a group, as frozen values: children, pods, volumes, and nodes' statuses.

Filled by `reconcile` each round, taken by the pure functions. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dledger.common.status import MemberStatus, NodeStatus
from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.api.spec import Manifest
from dledger_operator.observed.certificates import Certificates
from dledger_operator.observed.job_status import JobStatus

Ref = tuple[str, str]
"""Kind and name of a child, such as ``("Service", "orders")``."""


def ref_of(manifest: Manifest) -> Ref:
    """Return kind and name of a manifest."""
    return manifest["kind"], manifest["metadata"]["name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of the group.

    Attributes:
        name: Such as ``orders-0``; also its name as a Raft member.
        uid: Of this pod, as against a later one of that name.
        ip: Empty until it has one.
        ready: The kubelet says so.
        role: Its role label; empty when it has none.
        zone: Its zone label, where Kubernetes sets one (1.35 and later).
        host: The machine it was placed on; empty until then.
        spec_hash: Of what of the spec it was made from; empty if an older operator's template did.
        restarted_at: The wish to restart that it was made for (``kubectl rollout restart``).
        created_at: RFC 3339.
        terminating: It is being deleted.
        held_by: Whose finalizers hold that up.
        trouble: Why it does not run, as Kubernetes puts it; empty if that is not known.
        stopped: No container of it runs, and not for want of a moment: *trouble* says why.
        idle_since: Since when no container of it runs, RFC 3339; empty if one does.
        looping: A container of it ends again and again, as soon as it runs.
        was_ready: It is ready, or was since its containers were started.
        too_old: The node's last line, if it stopped because its image is older than what its group
            wrote; else empty.
    """

    name: str
    uid: str = ""
    ip: str = ""
    ready: bool = False
    role: str = ""
    zone: str = ""
    host: str = ""
    spec_hash: str = ""
    restarted_at: str = ""
    created_at: str = ""
    terminating: bool = False
    held_by: tuple[str, ...] = ()
    trouble: str = ""
    stopped: bool = False
    idle_since: str = ""
    looping: bool = False
    was_ready: bool = False
    too_old: str = ""

    @property
    def deletion(self) -> str:
        """What is said of one that is being deleted: who holds that up, if anybody does."""
        held = f", held by finalizers: {', '.join(self.held_by)}" if self.held_by else ""
        return f"being deleted{held}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """The claim of one replica: requested size, class, phase; whether a backup is restored to it.

    *capacity* is what it has, empty if not bound; *recovery* ``pending``, ``done`` or empty;
    *volume* the name of the volume it is bound to; *terminating* whether it is being deleted;
    *removed* the node id of its disk, if that was to leave the group.
    """

    name: str
    size: str
    storage_class_name: str = ""
    phase: str = "Bound"
    capacity: str = ""
    recovery: str = ""
    uid: str = ""
    volume: str = ""
    terminating: bool = False
    removed: str = ""


class CompactionSeen(NamedTuple):
    """How a compacted topic keeps its messages, in milliseconds."""

    min_lag_ms: int
    tombstone_ms: int


class TopicSeen(NamedTuple):
    """What a topic is: the type of its messages, its queues, and its own retention, if it has one.

    Its retention is in hours; 0: for ever. *compaction* is None for a topic that is not compacted.
    """

    type: str
    queues: int
    retention_hours: int | None = None
    compaction: CompactionSeen | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything observed of one group in one round.

    Attributes:
        children: Manifests as the API has them, by kind and name.
        pods: Pods of the group, by name.
        volumes: Its claims, by name; they outlive the group.
        foreign: The claims of its pods' names that are someone else's, and whose.
        uncreated: The pods that Kubernetes refuses to create, and why.
        unstarted: What Events say of pods of which nothing has run for a while, by their names.
        absent: What pods would mount and cannot, and why, as far as that may be looked at.
        lost: The claims whose disks are gone for good, and why, as far as that may be looked at.
        nodes: The statuses of the nodes that answered, by pod name.
        disbelieved: Pods whose answer cannot be a node's, and why; they are not among *nodes*.
        topics: The topics that exist, by name; None if nobody was asked.
        refusals: What failed lately and is not tried yet: child or topic to error.
        recovery: The status of the Job that restores the first volume; None without one.
        backups: The BrokerBackups of the group.
        operations: The BrokerOperations of the group.
        due: The time that a scheduled backup is to be made for now, RFC 3339; empty if none is.
        round_due: The same of a scheduled round of compaction.
        certificates: What is known of the peers' certificates.
    """

    children: Mapping[Ref, Manifest] = field(default_factory=dict)
    pods: Mapping[str, Pod] = field(default_factory=dict)
    volumes: Mapping[str, Volume] = field(default_factory=dict)
    foreign: Mapping[str, str] = field(default_factory=dict)
    uncreated: Mapping[str, str] = field(default_factory=dict)
    unstarted: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[Ref, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, NodeStatus] = field(default_factory=dict)
    disbelieved: Mapping[str, str] = field(default_factory=dict)
    topics: Mapping[str, TopicSeen] | None = None
    refusals: Mapping[Ref, str] = field(default_factory=dict)
    recovery: JobStatus | None = None
    backups: tuple[BrokerBackup, ...] = ()
    operations: tuple[BrokerOperation, ...] = ()
    due: str = ""
    round_due: str = ""
    certificates: Certificates = field(default_factory=Certificates)

    def of_group(self, group_id: str) -> Observed:
        """Return the same without the nodes of another group than this; all, if it is empty."""
        if not group_id:
            return self
        own = {name: one for name, one in self.nodes.items() if one.group_id in ("", group_id)}
        return replace(self, nodes=own)

    @property
    def leader(self) -> tuple[str, NodeStatus] | None:
        """Pod name and status of the node that leads in the newest term, if one answers."""
        leaders = [item for item in self.nodes.items() if item[1].role == "leader"]
        return max(leaders, key=lambda item: item[1].term, default=None)

    @property
    def member_names(self) -> Mapping[str, str]:
        """The name of each member, by its node id."""
        return {str(row.member.id): row.member.name for row in self.membership}

    @property
    def membership(self) -> tuple[MemberStatus, ...]:
        """The members, as the leader or else the node with the newest term knows them."""
        if self.leader and self.leader[1].members:
            return self.leader[1].members
        knowing = [node for node in self.nodes.values() if node.members]
        newest = max(knowing, key=lambda node: (node.term, node.applied_index), default=None)
        return newest.members if newest else ()
