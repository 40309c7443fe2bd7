"""The task of one group, on an API server and nodes in memory: also interrupted at every call."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.controllers.member_keeper import MemberKeeper
from dledger_operator.controllers.reconcile import Clock, Reconciler
from dledger_operator.decisions.backoff import RETRY_S
from dledger_operator.decisions.disruptions import RestartPod
from dledger_operator.decisions.turns import RolloutTurns
from dledger_operator.metrics.metrics import Metrics
from dledger_operator.observed.observed import Observed, Ref
from dledger_operator.status.status import Event
from tests.operator.backup_samples import backup_body, completed
from tests.operator.fakes import FakeApi, FakeNodes, FakeWatched, Trouble, World
from tests.operator.samples import NOW, PLATFORM

SPEC = {"topics": [{"name": "demo"}]}


@dataclass
class Operator:
    """An operator process: what it remembers is gone when another takes its place."""

    world: World
    now_s: float = 0.0
    now: str = NOW
    ids: list[str] = field(default_factory=list)
    turns: asyncio.Semaphore = field(default_factory=asyncio.Semaphore)
    rollout_turns: RolloutTurns | None = None

    def __post_init__(self) -> None:
        self.reconciler = Reconciler(
            self.world.group,
            cluster=Cluster(FakeApi(self.world), Metrics().wrote),
            nodes=FakeNodes(self.world),
            watched=FakeWatched(self.world),
            platform=PLATFORM,
            metrics=Metrics(),
            lease_s=lambda: self.world.lease_s,
            turns=self.turns,
            rollout_turns=self.rollout_turns,
            clock=Clock(
                monotonic_s=lambda: self.now_s, now=lambda: self.now, fresh_id=self._fresh_id
            ),
        )

    async def rounds(self, count: int = 12) -> None:
        """Do some rounds, a second apart, as the group's task does them."""
        for _ in range(count):
            self.reconciler.update(self.world.group)
            await self.reconciler.reconcile()
            self.world.run_pods()
            self.now_s += 1

    def _fresh_id(self) -> str:
        self.ids.append(f"group-{id(self)}-{len(self.ids)}")
        return self.ids[-1]


def _world(spec: dict[str, Any] | None = None) -> World:
    world = World()
    world.put_group(SPEC if spec is None else spec)
    return world


def _condition(world: World, kind: str) -> tuple[str, str]:
    row = next(row for row in world.status["conditions"] if row["type"] == kind)
    return row["status"], row["reason"]


async def test_a_group_waits_for_its_turn_to_act_but_not_to_look() -> None:
    """A round that has nothing to do takes no turn: it is over before."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()
    await operator.turns.acquire()
    await operator.reconciler.reconcile()
    world.put_group({**SPEC, "replicas": 2})
    operator.reconciler.update(world.group)

    waiting = asyncio.create_task(operator.reconciler.reconcile())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not waiting.done()
    assert _condition(world, "SpecValid")[0] == "True"
    operator.turns.release()
    await waiting

    assert _condition(world, "SpecValid")[0] == "False"


async def test_a_new_group_is_built_founded_and_given_its_topics() -> None:
    """From nothing to available, with the Events on the way."""
    world = _world()

    await Operator(world).rounds()

    assert world.bootstraps == 1
    assert set(world.disks.values()) == {world.status["groupId"]}
    assert world.topics == {"demo": 8}
    assert _condition(world, "Available") == ("True", "LeaderElected")
    assert _condition(world, "Progressing") == ("False", "Complete")
    assert world.events == ["GroupIdRecorded", "Founded", "TopicCreated"]
    assert world.objects["Pod", "orders-0"]["metadata"]["labels"][names.ROLE_LABEL] == "leader"


async def test_a_converged_group_causes_no_write() -> None:
    """Not from the same operator, and not from one that has just started."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()
    world.writes.clear()

    await operator.rounds()
    await Operator(world).rounds()

    assert world.writes == []


async def test_a_backup_gets_old_without_anything_else_changing() -> None:
    """A group at rest is looked at again each minute, and its status is written once."""
    world = _world({"retention": {"hours": 8}})
    operator = Operator(world)
    await operator.rounds()
    status = {**completed().status, "groupId": world.status["groupId"]}
    world.put({**backup_body(), "status": status})
    await operator.rounds()
    assert _condition(world, "BackupReady") == ("True", "BackupCompleted")
    world.writes.clear()

    for minute in range(10, 20):
        operator.now = f"2031-05-06T20:{minute}:00Z"
        await operator.rounds(3)

    assert _condition(world, "BackupReady") == ("False", "RetentionNears")
    assert world.writes == [names.KIND]


async def _calls_to_converge() -> int:
    world = _world()
    await Operator(world).rounds()
    return world.trouble.calls


@pytest.mark.parametrize("after", [False, True], ids=["before-effect", "after-effect"])
async def test_founding_interrupted_at_any_call_ends_in_one_group(after: bool) -> None:
    """The operator dies there; the next one goes on with what is recorded, and founds once."""
    for at in range(1, await _calls_to_converge() + 1):
        world = _world()
        world.trouble = Trouble(at=at, after=after)
        try:
            await Operator(world).rounds()
        except ApiError:
            await Operator(world).rounds()

        assert world.bootstraps == 1, at
        assert set(world.disks.values()) == {world.status["groupId"]}, at
        assert _condition(world, "Available")[0] == "True", at


async def test_deleted_and_applied_again_the_group_is_adopted() -> None:
    """The status is gone, the volumes are not."""
    world = _world()
    await Operator(world).rounds()
    group_id = world.status["groupId"]

    world.delete_group()
    world.put_group(SPEC)
    world.leader = "orders-1"
    await Operator(world).rounds()

    assert world.status["groupId"] == group_id
    assert world.bootstraps == 1
    assert "Adopted" in world.events
    assert _condition(world, "GroupIDConsistent") == ("True", "OneGroupId")


async def test_emptied_disks_of_a_founded_group_are_not_founded_again() -> None:
    """It is told instead."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()

    world.disks = dict.fromkeys(world.disks, "")
    world.leader = ""
    await operator.rounds()
    await Operator(world).rounds()

    assert world.bootstraps == 1
    assert _condition(world, "Degraded") == ("True", "AllDisksEmpty")


async def test_an_object_that_changed_meanwhile_is_not_written_over() -> None:
    """The group id is recorded only on what the decision was drawn from."""
    world = _world()
    operator = Operator(world)
    await operator.rounds(1)
    other = Operator(world)
    await operator.reconciler.reconcile()
    stale = operator.reconciler.body

    await other.rounds()
    operator.reconciler.body = stale
    await operator.reconciler.reconcile()
    await operator.rounds()

    assert world.bootstraps == 1
    assert set(world.disks.values()) == {world.status["groupId"]}


async def test_a_name_that_someone_elses_object_has_is_not_taken() -> None:
    """It stays as it is; the condition says whose it is."""
    world = _world()
    service = {"kind": "Service", "metadata": {"namespace": "shop", "name": "orders"}}
    world.put(service)

    await Operator(world).rounds(3)

    assert "labels" not in world.objects["Service", "orders"]["metadata"]
    assert _condition(world, "Degraded") == ("True", "ApplyRefused")


async def test_children_of_the_deleted_predecessor_are_waited_for() -> None:
    """They are about to go; taking them over would save them from the garbage collector."""
    world = _world()
    await Operator(world).rounds()
    kept = dict(world.objects)
    world.delete_group()
    again = world.put_group(SPEC)
    again["metadata"]["uid"] = "uid-2"
    world.put(again)
    world.objects |= {ref: obj for ref, obj in kept.items() if ref[0] != names.KIND}

    await Operator(world).rounds(3)

    owner = world.objects["StatefulSet", "orders"]["metadata"]["ownerReferences"][0]
    assert owner["uid"] == "uid-1"
    assert _condition(world, "Degraded")[0] == "False"


async def test_orphans_of_an_earlier_group_are_taken_back() -> None:
    """Deleted with --cascade=orphan, the pods went on running."""
    world = _world()
    await Operator(world).rounds()
    for manifest in world.objects.values():
        manifest["metadata"].pop("ownerReferences", None)

    await Operator(world).rounds()

    owners = world.objects["StatefulSet", "orders"]["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in owners] == ["uid-1"]


async def test_a_refused_child_is_told_and_tried_again_later() -> None:
    """Not every second: the answer would be the same."""
    world = _world()
    world.refuse["StatefulSet"] = ApiError(422, "spec.template: is forbidden")
    operator = Operator(world)

    await operator.rounds(3)

    assert _condition(world, "Degraded") == ("True", "ApplyRefused")
    tried = world.trouble.calls
    await operator.rounds(3)
    assert world.trouble.calls == tried
    world.refuse.clear()
    operator.now_s += RETRY_S
    await operator.rounds()
    assert _condition(world, "Degraded") == ("False", "AsExpected")


@pytest.mark.found
async def test_nothing_that_comes_after_a_refused_child_is_made() -> None:
    """Found: K1. No pods without their policy, none with the ConfigMap of somebody else."""
    for kind, name in (("ConfigMap", "orders-config"), ("NetworkPolicy", "orders-jobs")):
        world = _world()
        world.put({"kind": kind, "metadata": {"namespace": "shop", "name": name}})

        await Operator(world).rounds(3)

        assert ("StatefulSet", "orders") not in world.objects
        row = next(row for row in world.status["conditions"] if row["type"] == "Degraded")
        assert f"{kind} {name}: the name is taken" in row["message"]


@pytest.mark.found
async def test_a_running_group_is_looked_after_while_a_child_is_refused() -> None:
    """Labels follow the leader, and topics are made."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()
    del world.objects["Service", "orders"]
    world.put({"kind": "Service", "metadata": {"namespace": "shop", "name": "orders"}})

    world.leader = "orders-2"
    await operator.rounds(2)

    assert _condition(world, "Degraded") == ("True", "ApplyRefused")
    assert world.objects["Pod", "orders-2"]["metadata"]["labels"][names.ROLE_LABEL] == "leader"


@pytest.mark.found
async def test_a_volume_claim_of_somebody_else_is_not_mounted() -> None:
    """A StatefulSet would take it for its own: `data-orders-0` may be a database's."""
    world = _world()
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "data-orders-1", "labels": {}}}
    world.put(claim)

    await Operator(world).rounds(3)

    assert ("StatefulSet", "orders") not in world.objects
    assert _condition(world, "Degraded") == ("True", "ApplyRefused")


async def test_a_refused_topic_is_told() -> None:
    """The group itself is not held up by it."""
    world = _world()
    world.bad_topics.add("demo")

    await Operator(world).rounds()

    assert _condition(world, "Degraded") == ("True", "TopicRefused")
    assert _condition(world, "Available")[0] == "True"


async def test_a_topic_is_grown_and_told_and_can_be_set_back() -> None:
    """More queues are made at once; fewer are refused with what there is, and nothing is held."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()

    world.put_group({"topics": [{"name": "demo", "queues": 16}]})
    await operator.rounds(2)
    assert world.topics == {"demo": 16}
    assert world.events[-1] == "TopicGrown"

    world.put_group(SPEC)
    await operator.rounds(2)
    assert _condition(world, "SpecValid") == ("False", "InvalidSpec")
    assert world.topics == {"demo": 16}

    world.put_group({"topics": [{"name": "demo", "queues": 16}]})
    await operator.rounds(2)
    assert _condition(world, "SpecValid") == ("True", "Accepted")
    assert _condition(world, "Progressing") == ("False", "Complete")


async def test_a_topic_is_kept_as_the_spec_says_and_left_alone_where_it_says_nothing() -> None:
    """Told once; a shorter one than the group's is refused, and changes nothing."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()

    world.put_group({"topics": [{"name": "demo", "retention": {"hours": 0}}]})
    await operator.rounds(3)
    assert world.retentions == {"demo": 0}
    assert world.events.count("TopicRetained") == 1

    world.put_group(SPEC)
    await operator.rounds(3)
    assert world.retentions == {"demo": 0}
    assert _condition(world, "Progressing") == ("False", "Complete")

    world.put_group({"topics": [{"name": "demo", "retention": {"hours": 5}}]})
    await operator.rounds(3)
    assert _condition(world, "SpecValid") == ("False", "InvalidSpec")
    assert world.retentions == {"demo": 0}


async def test_a_topic_that_is_taken_off_the_spec_is_deleted_once_that_is_asked_for() -> None:
    """Not while topicDeletion is Retain, and not later either; topics of others stay."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()
    world.topics["others"] = 8

    world.put_group({"topics": [{"name": "kept"}]})
    await operator.rounds(3)
    assert world.topics == {"demo": 8, "others": 8, "kept": 8}
    assert world.status["topics"] == ["kept"]

    world.put_group({"topics": [], "topicDeletion": "Delete"})
    await operator.rounds(5)
    assert world.topics == {"demo": 8, "others": 8}
    assert world.events[-1] == "TopicDeleted"
    assert "topics" not in world.status
    assert _condition(world, "Progressing") == ("False", "Complete")


async def test_a_member_that_holds_back_a_growth_is_told_and_it_is_done_later() -> None:
    """Nobody's fault in the spec: once the member is upgraded, it goes on by itself."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()
    world.older_member = "orders-1"
    world.put_group({"topics": [{"name": "demo", "queues": 16}]})
    await operator.rounds(3)

    told = next(row for row in world.status["conditions"] if row["type"] == "Degraded")
    assert (told["status"], told["reason"]) == ("True", "TopicRefused")
    assert "member orders-1 is of level 1" in told["message"]

    world.older_member = ""
    await operator.rounds(int(RETRY_S) + 2)
    assert world.topics == {"demo": 16}
    assert _condition(world, "Degraded")[0] == "False"


async def test_a_new_leader_is_labelled_and_recorded_within_one_round() -> None:
    """One second after it was elected, that is."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()

    world.leader = "orders-2"
    await operator.rounds(1)

    assert world.status["leader"] == "orders-2"
    assert world.objects["Pod", "orders-2"]["metadata"]["labels"][names.ROLE_LABEL] == "leader"
    assert world.objects["Pod", "orders-0"]["metadata"]["labels"][names.ROLE_LABEL] == "follower"


async def test_an_invalid_change_leaves_the_group_running_and_is_told() -> None:
    """No child is written."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()
    world.writes.clear()

    world.put_group({**SPEC, "replicas": 5, "tls": {"enabled": True}})
    await operator.rounds()

    assert set(world.writes) == {names.KIND, "Event"}
    assert _condition(world, "SpecValid") == ("False", "NotImplementedYet")
    assert _condition(world, "Available")[0] == "True"
    assert world.events[-1] == "SpecRefused"


async def test_a_paused_group_is_only_watched() -> None:
    """Its status is written, nothing else."""
    world = _world({"paused": True})

    await Operator(world).rounds()

    assert set(world.writes) == {names.KIND}
    assert _condition(world, "Paused") == ("True", "PausedByUser")


async def test_an_older_form_of_the_object_is_dropped() -> None:
    """A watch may deliver it after our own write."""
    world = _world()
    operator = Operator(world)
    old = world.group
    await operator.rounds()

    operator.reconciler.update(old)

    assert operator.reconciler.body["status"]["groupId"]


async def _running() -> tuple[World, Operator]:
    world = _world({})
    operator = Operator(world)
    await operator.rounds()
    world.events.clear()
    return world, operator


async def test_a_lost_disk_is_healed_and_told() -> None:
    """Degraded from the loss until the new disk votes; the Event names both nodes."""
    world, operator = await _running()
    world.lose_disk("orders-2")

    await operator.rounds(4)
    assert _condition(world, "Degraded") == ("True", "MemberReplacedByEmptyDisk")
    assert _condition(world, "Progressing") == ("True", "Joining")
    world.catch_up()
    await operator.rounds(2)

    assert world.replaced == [("orders-2", "id-of-orders-2")]
    assert world.events == ["Degraded", "MemberReplaced", "Recovered"]
    assert _condition(world, "Degraded") == ("False", "AsExpected")
    world.writes.clear()
    await operator.rounds(4)
    assert world.writes == []


async def test_a_member_is_replaced_only_while_the_lease_is_held() -> None:
    """A process that was frozen does nothing that cannot be undone; another may act by now."""
    world, operator = await _running()
    world.lose_disk("orders-2")
    world.lease_s = 10.0

    await operator.rounds(4)
    assert world.replaced == []
    world.lease_s = 2.0
    await operator.rounds(4)

    assert world.replaced == [("orders-2", "id-of-orders-2")]


@pytest.mark.parametrize("after", [False, True], ids=["before-effect", "after-effect"])
async def test_a_replacement_interrupted_at_any_call_goes_on(after: bool) -> None:
    """It is done once, whoever sees the end of it."""
    counted, operator = await _running()
    counted.trouble = Trouble()
    counted.lose_disk("orders-2")
    await operator.rounds(6)
    assert counted.trouble.calls > 0
    for at in range(1, counted.trouble.calls + 1):
        world, operator = await _running()
        world.lose_disk("orders-2")
        world.trouble = Trouble(at=at, after=after)
        try:
            await operator.rounds(6)
        except ApiError:
            operator = Operator(world)
            await operator.rounds(6)
        world.catch_up()
        await operator.rounds(3)

        assert world.replaced == [("orders-2", "id-of-orders-2")], at
        assert _condition(world, "Degraded") == ("False", "AsExpected"), at


async def test_a_pod_that_was_deleted_here_ends_before_the_watch_shows_it() -> None:
    """Else what comes next would go by a voter that is on its way out."""
    world = _world()
    await Operator(world).rounds()
    shown = {pod.name: pod for pod in FakeWatched(world).pods("shop", "orders")}
    keeper = MemberKeeper(
        Cluster(FakeApi(world), Metrics().wrote), FakeNodes(world), post=_told, refuse=_refused
    )
    gone = RestartPod(pod="orders-2", uid=shown["orders-2"].uid, reason="it is old")

    await keeper.act(PLATFORM.group(world.group), Observed(), gone)

    known = keeper.known_of(shown.values())
    assert [name for name, pod in known.items() if pod.terminating] == ["orders-2"]
    newer = replace(shown["orders-2"], uid="another")
    assert not keeper.known_of([newer])["orders-2"].terminating


async def _told(_group: BrokerGroup, _event: Event) -> None:
    """Nobody listens."""


def _refused(_group: BrokerGroup, _ref: Ref, error: str) -> None:
    raise AssertionError(error)


class _Elsewhere(World):
    """A group of the same name in another namespace."""

    @property
    def group(self) -> Manifest:
        found = super().group
        return {**found, "metadata": {**found["metadata"], "namespace": "sre-b"}}


def _of_each_template(world: World) -> list[int]:
    """Return how many pods are made from each template; none, once all are from one."""
    pods = [one["metadata"] for one in _pods(world)]
    made = Counter(one["annotations"][names.SPEC_ANNOTATION] for one in pods)
    return sorted(made.values()) if len(made) > 1 or len(pods) < 3 else []


async def test_two_groups_of_one_operator_are_rolled_out_one_after_the_other() -> None:
    """Whatever else is different between them; who waits says for whom."""
    worlds, clock = (_world(), _Elsewhere()), Operator(_world())
    worlds[1].put_group(SPEC)
    turns = RolloutTurns(lambda: clock.now_s, settles_s=0)
    operators = [Operator(world, rollout_turns=turns) for world in worlds]
    for each in operators:
        await each.rounds()
    before = {one["metadata"]["uid"] for world in worlds for one in _pods(world)}

    for world in worlds:
        world.put_group({**SPEC, "podLabels": {"team": "shop"}})
    waited: set[str] = set()
    for _ in range(60):
        for each in operators:
            await each.rounds(1)
        assert sum(bool(_of_each_template(world)) for world in worlds) <= 1
        rows = worlds[1].status["conditions"]
        waited |= {row["message"] for row in rows if row["reason"] == "WaitingForTurn"}

    said = "waits for shop/orders: one group is rolled out at a time"
    assert waited == {f"0 of 3 pods run the new template; {said}"}
    assert not before & {one["metadata"]["uid"] for world in worlds for one in _pods(world)}
    assert [_condition(world, "Progressing") for world in worlds] == [("False", "Complete")] * 2


def _pods(world: World) -> list[Manifest]:
    return [one for (kind, _), one in world.objects.items() if kind == "Pod"]
