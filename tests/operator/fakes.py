"""An API server and nodes in memory, for the reconciler's tests; each call can be made to fail."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dledger.common.status import MemberStatus, NodeStatus
from dledger.errors import (
    AlreadyBootstrapped,
    FeatureNotReady,
    InvalidArgument,
    NotTheGroup,
    Unavailable,
    UnknownTopic,
)
from dledger.types import Member
from dledger_operator.api import names
from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.api.spec import Manifest, Topic
from dledger_operator.cluster.api import Api, ApiError
from dledger_operator.cluster.nodes import Nodes
from dledger_operator.decisions.compacting import asked_compaction
from dledger_operator.observed.job_status import JobPod
from dledger_operator.observed.observed import CompactionSeen, Pod, TopicSeen, Volume
from dledger_operator.observed.parsers import (
    parse_component,
    parse_job_pod,
    parse_pod,
    parse_volume,
)
from tests.operator.samples import NOW, body, member, node, volumes

GROUP = (names.KIND, "orders")
_CREATED = {"uid": "uid-of-it", "generation": 1, "creationTimestamp": NOW}


@dataclass
class Trouble:
    """Counts calls; the one numbered *at* fails, before or after it had its effect."""

    at: int = 0
    after: bool = False
    calls: int = 0

    def before_effect(self, error: Exception) -> None:
        """Count a call, and fail if it is the one."""
        self.calls += 1
        if self.calls == self.at and not self.after:
            raise error

    def after_effect(self, error: Exception) -> None:
        """Fail if the call just counted is the one."""
        if self.calls == self.at and self.after:
            raise error


@dataclass
class World:
    """What outlives an operator: objects in the API, disks of nodes."""

    trouble: Trouble = field(default_factory=Trouble)
    objects: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    refuse: dict[str, ApiError] = field(default_factory=dict)
    disks: dict[str, str] = field(default_factory=dict)
    restored: dict[str, int] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    retentions: dict[str, int | None] = field(default_factory=dict)
    compacted: dict[str, CompactionSeen | None] = field(default_factory=dict)
    bad_topics: set[str] = field(default_factory=set)
    older_member: str = ""
    bootstraps: int = 0
    leader: str = ""
    version: int = 0
    node_ids: dict[str, str] = field(default_factory=dict)
    membership: dict[str, tuple[str, bool]] = field(default_factory=dict)
    replaced: list[tuple[str, str]] = field(default_factory=list)
    stale_s: float = 0.0
    lease_s: float = 0.0

    def node_id(self, name: str) -> str:
        """Return the id of the disk that a pod has now."""
        return self.node_ids.get(name, f"id-of-{name}")

    def lose_disk(self, name: str) -> None:
        """Give a pod an empty disk, with a node id of its own."""
        if not self.membership:
            self.membership = {disk: (self.node_id(disk), True) for disk in self.disks}
        self.disks[name] = ""
        self.node_ids[name] = f"new-{len(self.node_ids)}-of-{name}"

    def catch_up(self) -> None:
        """Make voters of learners, as a group does once they have all entries."""
        self.membership = {name: (one, True) for name, (one, _) in self.membership.items()}

    def put(self, manifest: Manifest) -> Manifest:
        """Store an object as the API server would, with the next resourceVersion."""
        self.version += 1
        stored = copy.deepcopy(manifest)
        stored["metadata"]["resourceVersion"] = str(self.version)
        old = self.objects.get((manifest["kind"], manifest["metadata"]["name"]), {"metadata": {}})
        uid = old["metadata"].get("uid", f"uid-{self.version}")
        stored["metadata"].setdefault("uid", uid)
        self.objects[manifest["kind"], manifest["metadata"]["name"]] = stored
        return copy.deepcopy(stored)

    def put_group(self, spec: dict[str, Any] | None = None) -> Manifest:
        """Create or change the BrokerGroup, keeping its status."""
        old = self.objects.get(GROUP, {})
        new = {**body(spec), "kind": names.KIND, "status": old.get("status", {})}
        new["metadata"]["generation"] = old.get("metadata", {}).get("generation", 0) + 1
        return self.put(new)

    @property
    def group(self) -> Manifest:
        """The BrokerGroup as it is stored."""
        return copy.deepcopy(self.objects[GROUP])

    @property
    def status(self) -> Manifest:
        """Its status."""
        status: Manifest = self.group["status"]
        return status

    def run_pods(self) -> None:
        """Do what the StatefulSet controller and kubelets do: make pods and format disks."""
        built = self.objects.get(("StatefulSet", "orders"))
        for ordinal in range(built["spec"]["replicas"] if built else 0):
            name = names.pod("orders", ordinal)
            self.disks.setdefault(name, "")
            if ("Pod", name) not in self.objects:
                template = built["spec"]["template"]["metadata"] if built else {}
                pod = _pod(name, f"10.0.0.{ordinal}")
                pod["metadata"]["annotations"] = dict(template.get("annotations") or {})
                self.put(pod)

    def delete_group(self) -> None:
        """Delete the group with everything that it owns; disks stay."""
        self.objects.clear()
        self.leader = ""


def _merged(present: Any, patch: Any) -> Any:
    """Return what a merge patch (RFC 7396) makes of a value."""
    if not isinstance(patch, Mapping):
        return patch
    made = dict(present) if isinstance(present, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = _merged(made.get(key), value)
    return made


class FakeApi(Api):
    """`api.Api` over a World."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        self._world.trouble.before_effect(ApiError(0, "no answer"))
        return copy.deepcopy(self._world.objects.get((kind, name)))

    async def metadata(self, kind: str, namespace: str, name: str) -> Manifest | None:
        found = await self.get(kind, namespace, name)
        return found["metadata"] if found else None

    async def events_on(self, kind: str, namespace: str, *, uid: str) -> list[Manifest]:
        self._world.trouble.before_effect(ApiError(0, "no answer"))
        return []

    async def nodes(self, **labels: str) -> list[Manifest]:
        self._world.trouble.before_effect(ApiError(0, "no answer"))
        made = [each for (kind, _), each in self._world.objects.items() if kind == "Node"]
        return [
            copy.deepcopy(each)
            for each in made
            if labels.items() <= each["metadata"].get("labels", {}).items()
        ]

    async def apply(self, manifest: Manifest, *, status: bool = False) -> Manifest:
        world, kind = self._world, manifest["kind"]
        world.trouble.before_effect(ApiError(0, "no answer"))
        if kind in world.refuse:
            raise world.refuse[kind]
        present = world.objects.get((kind, manifest["metadata"]["name"]))
        only_if = manifest["metadata"].get("resourceVersion")
        if only_if and present and present["metadata"]["resourceVersion"] != only_if:
            raise ApiError(409, "the object was changed")
        world.writes.append(kind)
        if status and present:
            manifest = {**present, "status": manifest["status"]}
        written = world.put(manifest)
        world.trouble.after_effect(ApiError(0, "the answer is lost"))
        return written

    async def merge(self, kind: str, namespace: str, name: str, body: Manifest) -> Manifest:
        world = self._world
        world.trouble.before_effect(ApiError(0, "no answer"))
        if f"merge {kind}" in world.refuse:
            raise world.refuse[f"merge {kind}"]
        if (kind, name) not in world.objects:
            raise ApiError(404, "not found")
        world.writes.append(kind)
        present = world.objects[kind, name]
        only_if = body["metadata"].get("resourceVersion")
        if only_if not in (None, present["metadata"]["resourceVersion"]):
            raise ApiError(409, "the object was changed")
        return world.put(_merged(present, body))

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str, orphan: bool = False
    ) -> None:
        world = self._world
        world.trouble.before_effect(ApiError(0, "no answer"))
        if f"delete {kind}" in world.refuse:
            raise world.refuse[f"delete {kind}"]
        if (kind, name) not in world.objects:
            raise ApiError(404, "not found")
        if world.objects[kind, name]["metadata"]["uid"] != uid:
            raise ApiError(409, "the uid is another")
        world.writes.append(kind)
        del world.objects[kind, name]
        world.trouble.after_effect(ApiError(0, "the answer is lost"))

    async def create(self, manifest: Manifest) -> Manifest:
        world, kind = self._world, manifest["kind"]
        world.trouble.before_effect(ApiError(0, "no answer"))
        if kind in world.refuse:
            raise world.refuse[kind]
        if kind != "Event" and (kind, manifest["metadata"]["name"]) in world.objects:
            raise ApiError(409, "it exists")
        world.writes.append(kind)
        if kind == "Event":
            world.events.append(manifest["reason"])
            return manifest
        written = world.put({**manifest, "metadata": {**manifest["metadata"], **_CREATED}})
        world.trouble.after_effect(ApiError(0, "the answer is lost"))
        return written


class FakeWatched:
    """`reconcile.Watched` over a World: watches that are always up to date."""

    def __init__(self, world: World) -> None:
        self._world = world

    def children(self, namespace: str, group: str) -> list[Manifest]:
        items = self._world.objects.items()
        wanted = {"ControllerRevision", "Job", "ServiceAccount", "RoleBinding"}
        wanted |= {kind for kind, _ in names.children(group, 3)}
        return [copy.deepcopy(m) for (kind, _), m in items if kind in wanted and _labelled(m)]

    def pods(self, namespace: str, group: str) -> list[Pod]:
        return [parse_pod(pod) for pod in self._pods() if parse_component(pod) == "node"]

    def job_pods(self, namespace: str, group: str) -> list[tuple[str, JobPod]]:
        return [parse_job_pod(pod) for pod in self._pods() if parse_component(pod) != "node"]

    def volumes(self, namespace: str, group: str) -> list[Volume]:
        found = volumes(*range(len(self._world.disks)))
        made = self._world.objects.items()
        claims = (m for (kind, _), m in made if kind == "PersistentVolumeClaim" and _labelled(m))
        found |= {volume.name: volume for volume in map(parse_volume, claims)}
        return list(found.values())

    def backups(self, namespace: str, group: str) -> list[BrokerBackup]:
        made = self._world.objects.items()
        parsed = [BrokerBackup.parse(m) for (kind, _), m in made if kind == names.BACKUP_KIND]
        return [backup for backup in parsed if backup.spec.group == group]

    def operations(self, namespace: str, group: str) -> list[BrokerOperation]:
        made = self._world.objects.items()
        found = [m for (kind, _), m in made if kind == names.OPERATION_KIND]
        parsed = [BrokerOperation.parse(m) for m in found]
        return [one for one in parsed if one.spec.group == group]

    def _pods(self) -> list[Manifest]:
        return [m for (kind, _), m in self._world.objects.items() if kind == "Pod"]


class FakeNodes(Nodes):
    """Its group is a World's: who has joined follows the leader, or has none. Nobody is called."""

    def __init__(self, world: World) -> None:
        super().__init__("orders")
        self._world = world
        self._afresh = False

    @property
    def tell_changes(self) -> bool:
        return False

    @property
    def over_tls(self) -> frozenset[str]:
        return frozenset(self._over_tls)

    def oldest_answer_s(self) -> float:
        return 0.0 if self._afresh else self._world.stale_s

    async def poll(
        self, pods: Mapping[str, Pod], *, everyone: bool = False
    ) -> dict[str, NodeStatus]:
        self._afresh = everyone
        self._over_tls = set(pods) if self.channels.credentials else set()
        return {name: self._view(name) for name in pods}

    async def change_members(
        self, pod: Pod, *, add: Sequence[Member] = (), remove: Sequence[str] = ()
    ) -> None:
        world = self._world
        (new,), (old_id,) = add, remove
        world.trouble.before_effect(Unavailable("no answer"))
        assert pod.name == world.leader
        assert world.membership[new.name][0] in (old_id, new.id)
        world.membership[new.name] = new.id, False
        world.replaced.append((new.name, old_id))
        world.disks[new.name] = world.disks[world.leader]
        world.trouble.after_effect(Unavailable("the answer is lost"))

    async def transfer_leader(self, pod: Pod, target_id: str) -> str:
        world = self._world
        assert (pod.name, target_id) == (world.leader, "")
        world.leader = max(name for name in world.disks if name != pod.name)
        return world.node_id(world.leader)

    async def force_new_group(
        self, pod: Pod, group_id: str, node_id: str, *, last_term: int, last_index: int
    ) -> None:
        raise NotImplementedError

    async def bootstrap(
        self, pod: Pod, group_id: str, members: Iterable[tuple[str, str, str]]
    ) -> None:
        world = self._world
        world.trouble.before_effect(Unavailable("no answer"))
        if world.disks[pod.name]:
            raise AlreadyBootstrapped(world.disks[pod.name])
        told = world.objects["ConfigMap", "orders-config"]["data"]["group-id"]
        if told != group_id:
            raise NotTheGroup(told=told, theirs=group_id)
        world.bootstraps += 1
        for _, name, _ in members:
            world.disks[name] = group_id
        world.leader = pod.name
        world.trouble.after_effect(Unavailable("the answer is lost"))

    async def topics(self, pod: Pod) -> dict[str, TopicSeen]:
        kept = self._world.retentions
        return {
            name: TopicSeen("NORMAL", queues, kept.get(name), self._world.compacted.get(name))
            for name, queues in self._world.topics.items()
        }

    async def create_topic(self, pod: Pod, topic: Topic) -> bool:
        self._world.trouble.before_effect(Unavailable("no answer"))
        if topic.name in self._world.bad_topics:
            raise InvalidArgument(f"topic {topic.name} exists with 4 queues")
        self._world.topics[topic.name] = topic.queues
        self._world.compacted[topic.name] = asked_compaction(topic)
        return True

    async def delete_topic(self, pod: Pod, name: str) -> int:
        if self._world.topics.pop(name, None) is None:
            raise UnknownTopic(name)
        return 5

    async def grow_topic(self, pod: Pod, name: str, queues: int) -> int:
        self._world.trouble.before_effect(Unavailable("no answer"))
        if member := self._world.older_member:
            raise FeatureNotReady.held_back("GROW_TOPIC", needed=2, member=member, told=1)
        before, self._world.topics[name] = self._world.topics[name], queues
        return before

    async def set_topic_retention(self, pod: Pod, name: str, hours: int | None) -> int | None:
        self._world.trouble.before_effect(Unavailable("no answer"))
        before = self._world.retentions.get(name)
        self._world.retentions[name] = hours
        return before

    async def close(self) -> None:
        """Nothing is open."""

    def _view(self, name: str) -> NodeStatus:
        world = self._world
        if not world.disks[name]:
            told = world.objects.get(("ConfigMap", "orders-config"), {})
            return node(
                world.node_id(name),
                recovered_to=world.restored.get(name, 0),
                told_group_id=told.get("data", {}).get("group-id", ""),
            )
        leader = world.leader
        return node(
            world.node_id(name),
            group_id=world.disks[name],
            role="leader" if name == leader else "follower",
            term=1 if leader else 0,
            leader_id=world.node_id(leader) if leader else "",
            ready=bool(leader),
            members=tuple(self._row(disk) for disk in world.disks),
        )

    def _row(self, name: str) -> MemberStatus:
        world = self._world
        member_id, voter = world.membership.get(name, (world.node_id(name), True))
        is_up = bool(world.disks[name])
        return member(member_id, name, voter=voter, connected=is_up, lag=0 if is_up else 9999)


def _labelled(manifest: Manifest) -> bool:
    return names.GROUP_LABEL in manifest["metadata"].get("labels", {})


def _pod(name: str, ip: str) -> Manifest:
    labels = names.labels("orders")
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name, "labels": labels},
        "status": {"podIP": ip, "conditions": ready},
    }
