"""What a user notices when the operator is killed again and again in the middle of what it does.

Nothing, but that it takes longer: each operator that follows waits for the Lease first.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import pytest

from e2e.cluster.image import Image
from e2e.harness.pod_watch import Downtime, Watch
from e2e.harness.world import (
    BrokerGroup,
    Namespace,
    Workload,
    eventually,
    kill_operator,
    wait_operator,
)
from e2e.stories.traffic import SDK, end

pytestmark = pytest.mark.long

REMOVED = "dledger.io/removed-member"
DEADLINE_S = 600.0
"""For one change: after each kill, 15 s until the Lease is free, and a pod that has to start."""
_BEGIN_S = 30.0


class Interruptions:
    """Kills the operator again and again: each time that an act of it shows.

    A pod of the group goes, a claim is marked as that of a member that leaves, and the status has
    another leader or another member.

    Args:
        group: The group, whose pods are all there.
        counted: Those of its pods of which there may not be two down at once.

    Attributes:
        at: What the operator was killed at, in order.
        downtime: Which pods went, and which were down at once.
    """

    def __init__(self, group: BrokerGroup, counted: Collection[str]) -> None:
        self.at: list[str] = []
        self.downtime = Downtime(counted, self._kill)
        self._cluster = group.namespace.cluster
        self._group = group.name
        self._pods = frozenset(group.pods())
        self._leader = ""
        self._members: set[tuple[str, str]] = set()
        self._marked: set[str] = set()
        self._one_at_a_time = threading.Lock()

    @property
    def has_begun(self) -> bool:
        """Whether all that was there has been told."""
        return self.downtime.seen == self._pods and bool(self._members)

    def hear_pod(self, kind: str, pod: dict[str, Any]) -> None:
        """Take note of a change of a pod of the namespace."""
        if pod["metadata"]["name"] in self._pods:
            self.downtime.hear(kind, pod)

    def hear_claim(self, kind: str, claim: dict[str, Any]) -> None:  # noqa: ARG002 - all are alike
        """Take note of a change of a claim of the namespace."""
        name, marks = claim["metadata"]["name"], claim["metadata"].get("annotations", {})
        if REMOVED in marks and name not in self._marked:
            self._marked.add(name)
            self._kill(f"{name} is marked")

    def hear_group(self, kind: str, group: dict[str, Any]) -> None:  # noqa: ARG002 - all are alike
        """Take note of a change of a group of the namespace; what is not known now is no change."""
        if group["metadata"]["name"] != self._group:
            return
        status = group.get("status", {})
        before, self._leader = self._leader, status.get("leader") or self._leader
        if before not in ("", self._leader):
            self._kill(f"{self._leader} leads")
        were, self._members = self._members, _members(status) or self._members
        if were and were != self._members:
            self._kill(f"members {', '.join(sorted(name for name, _ in self._members))}")

    def _kill(self, at: str) -> None:
        with self._one_at_a_time:
            self.at.append(at)
            kill_operator(self._cluster)


@contextlib.contextmanager
def _interrupted(group: BrokerGroup, counted: Collection[str]) -> Iterator[Interruptions]:
    """Interrupt what is done to a group in the block; an operator runs when it has ended."""
    cluster, where = group.namespace.cluster, f"namespaces/{group.namespace.name}"
    found = Interruptions(group, counted)
    watch = partial(Watch, cluster.kubeconfig)
    with (
        watch(f"/api/v1/{where}/pods", found.hear_pod),
        watch(f"/api/v1/{where}/persistentvolumeclaims", found.hear_claim),
        watch(f"/apis/dledger.io/v1/{where}/brokergroups", found.hear_group),
    ):
        eventually("the watches tell what is there", lambda: found.has_begun or None, _BEGIN_S)
        yield found
    wait_operator(cluster)


def _members(status: dict[str, Any]) -> set[tuple[str, str]]:
    """Return name and node id of each member and of each pod with a node, as the status has it."""
    return {(row["name"], row["id"]) for row in status.get("members", ()) if row["id"]}


def _conditions(status: dict[str, Any]) -> dict[str, str]:
    """Return each condition without its reason, in which machines may have a say."""
    return {row["type"]: row["status"] for row in status["conditions"]}


def _generation(group: BrokerGroup) -> int:
    found = group.namespace.get("brokergroup", group.name) or {}
    return int(found["metadata"]["generation"])


@pytest.fixture
def traffic(namespace: Namespace, workload_image: Image) -> Workload:
    """Return writes that end when they are told to."""
    return Workload(namespace, workload_image, "traffic", *SDK, "--seconds", "1800")


def _begin(group: BrokerGroup, traffic: Workload) -> dict[str, Any]:
    """Have a group written to; return its status, with nothing left to do for it."""
    traffic.start()
    traffic.wait_acked(300)
    return group.wait_settled(_generation(group))


def _end(traffic: Workload) -> dict[str, Any]:
    """End the writes once they were seen to go on, and check that none is missing."""
    traffic.wait_acked(traffic.acked() + 100)
    return end(traffic)


def test_a_rollout_is_finished_by_the_operators_that_follow(
    namespace: Namespace, traffic: Workload, figures: dict[str, float]
) -> None:
    """Each pod goes once, and only when the one before is back."""
    group = namespace.run_group()
    before = _begin(group, traffic)
    uids, members = group.uids(), _members(before)

    with _interrupted(group, uids) as interrupted:
        requests = {"cpu": "20m", "memory": "64Mi"}
        generation = group.change(resources={"requests": requests})
        group.wait_settled(generation, DEADLINE_S)
    after = group.wait_settled(generation, DEADLINE_S)
    summary = _end(traffic)

    figures["operators killed"] = len(interrupted.at)
    figures["longest silence of a client, ms"] = summary["gapMs"]
    assert sorted(interrupted.downtime.gone) == sorted(uids), interrupted.at
    assert len(interrupted.downtime.worst) == 1, interrupted.downtime.worst
    assert len(interrupted.at) > len(uids), "at each pod, and when another one leads"
    assert not set(uids.values()) & set(group.uids().values())
    containers = [each["spec"]["containers"][0] for each in group.nodes().values()]
    assert [each["resources"]["requests"] for each in containers] == [requests] * len(uids)
    assert (_members(after), _conditions(after)) == (members, _conditions(before))


def test_scaling_in_is_finished_by_the_operators_that_follow(
    namespace: Namespace, traffic: Workload, figures: dict[str, float]
) -> None:
    """From three to one, past two; the leader is one of those that leave."""
    group = namespace.run_group()
    before = _begin(group, traffic)
    if group.leader() != "orders-2":
        namespace.operate("lead-there", "TransferLeader", to="orders-2")
        namespace.wait_operated("lead-there")
    uids, members = group.uids(), _members(before)

    with _interrupted(group, {"orders-0"}) as interrupted:
        namespace.kubectl("scale", "brokergroup/orders", "--replicas=1")
        generation = _generation(group)
        group.wait_settled(generation, DEADLINE_S)
        eventually("one pod is left", lambda: group.pods() == ["orders-0"] or None, DEADLINE_S)
    after = group.wait_settled(generation, DEADLINE_S)
    summary = _end(traffic)

    figures["operators killed"] = len(interrupted.at)
    figures["longest silence of a client, ms"] = summary["gapMs"]
    assert sorted(interrupted.downtime.gone) == ["orders-1", "orders-2"], interrupted.at
    assert interrupted.downtime.worst == (), "the pod of the member that stays"
    assert len(interrupted.at) >= 4, "at each claim, and at each pod"
    assert group.uids() == {"orders-0": uids["orders-0"]}
    assert _members(after) == {one for one in members if one[0] == "orders-0"}
    assert _marked(namespace) == {
        f"data-{name}": own for name, own in members if name != "orders-0"
    }


def _marked(namespace: Namespace) -> dict[str, str]:
    """Return the claims whose disks are of members that left, and the node id of each."""
    listed = json.loads(namespace.kubectl("get", "pvc", "-o", "json"))["items"]
    told = {one["metadata"]["name"]: one["metadata"].get("annotations", {}) for one in listed}
    return {name: marks[REMOVED] for name, marks in told.items() if REMOVED in marks}


def test_a_lost_disk_is_replaced_by_the_operators_that_follow(
    namespace: Namespace, traffic: Workload, figures: dict[str, float]
) -> None:
    """Killed when the pod goes, and again when the empty disk has been let in."""
    group = namespace.run_group()
    before = _begin(group, traffic)
    uids, members = group.uids(), _members(before)
    lost = next(name for name in group.pods() if name != group.leader())
    others = {one for one in members if one[0] != lost}

    def is_replaced() -> bool | None:
        new = _members(group.status()) - members
        return [name for name, _ in new] == [lost] or None

    with _interrupted(group, uids) as interrupted:
        namespace.kubectl("delete", "pvc", f"data-{lost}", "--wait=false")
        group.kill_pod(lost)
        eventually("the disk is replaced", is_replaced, DEADLINE_S)
        group.wait_settled(_generation(group), DEADLINE_S)
    after = group.wait_settled(_generation(group), DEADLINE_S)
    summary = _end(traffic)

    figures["operators killed"] = len(interrupted.at)
    figures["longest silence of a client, ms"] = summary["gapMs"]
    assert interrupted.downtime.gone == [lost], interrupted.at
    assert interrupted.downtime.worst == (lost,)
    assert len(interrupted.at) >= 2, "when the pod went, and when the empty disk was let in"
    assert len(_members(after)) == len(members)
    assert _members(after) & members == others, "one change of the members, and no other"
    assert {name for name, uid in group.uids().items() if uids[name] != uid} == {lost}
    assert _conditions(after) == _conditions(before)
    assert len(group.told("MemberReplaced")) <= 1
