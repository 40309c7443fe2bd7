"""The BrokerBackups of a group, on an API server in memory: also interrupted at every call."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from dledger.errors import Unavailable
from dledger_operator.api import names
from dledger_operator.api.schedule_times import unix_minute
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.controllers.backup_reconcile import BackupReconciler
from dledger_operator.controllers.reconcile import Clock, Reconciler
from dledger_operator.decisions.backoff import RETRY_S
from dledger_operator.decisions.backups import KEPT_COMPLETED
from dledger_operator.metrics.metrics import Metrics
from dledger_operator.observed.observed import Pod
from dledger_operator.resources.log_job import LogRange
from dledger_operator.resources.recovery import DONE, PENDING
from tests.operator.backup_samples import ENDED, LARGE, RESULT, SMALL, STARTED, STORE, backup_body
from tests.operator.fakes import FakeApi, FakeNodes, FakeWatched, Trouble, World
from tests.operator.samples import GROUP_ID, NOW, PLATFORM

DENIED = {"error": {"type": "StoreDenied", "message": "s3://b denies access"}}


@dataclass
class Backups:
    """An operator process that looks after the backups of `orders`."""

    world: World
    log: LogRange | None = SMALL
    now_s: float = 0.0
    asked: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.reconciler = BackupReconciler(
            ("shop", "orders"),
            group=self._group,
            cluster=Cluster(FakeApi(self.world), self.metrics.wrote),
            watched=FakeWatched(self.world),
            metrics=self.metrics.backups,
            clock=Clock(monotonic_s=lambda: self.now_s, now=lambda: NOW),
            ahead=self._ahead,
        )

    async def rounds(self, count: int = 4) -> None:
        """Do some rounds, a second apart."""
        for _ in range(count):
            await self.reconciler.reconcile()
            self.now_s += 1

    def _group(self) -> BrokerGroup | None:
        body = self.world.objects.get((names.KIND, "orders"))
        return None if body is None else PLATFORM.group(body)

    async def _ahead(self, pods: Iterable[Pod], first_index: int) -> LogRange:
        self.asked.append(first_index)
        if self.log is None:
            raise Unavailable("no pod of the group has an address")
        return self.log


def _world(*backup_names: str, group: bool = True) -> World:
    world = World()
    if group:
        stored = world.put_group({"backup": {"store": STORE}})
        world.put({**stored, "status": {"groupId": GROUP_ID, "term": 1}})
    for name in backup_names:
        world.put(backup_body(name=name))
    return world


def _phase(world: World, name: str = "first") -> str:
    status = world.objects[names.BACKUP_KIND, name].get("status") or {}
    return str(status.get("phase") or "")


def _jobs(world: World) -> list[str]:
    return sorted(name for kind, name in world.objects if kind == "Job")


def _end(world: World, job: str, words: dict[str, Any]) -> None:
    """Do what the Job controller and the kubelet do when the pipeline ends with these *words*."""
    well = "error" not in words
    ended = {"exitCode": 0 if well else 1, "message": json.dumps(words)}
    labels = {
        **world.objects["Job", job]["metadata"]["labels"],
        names.JOB_LABEL: job,
    }
    world.put(
        {
            "kind": "Pod",
            "metadata": {"namespace": "shop", "name": f"{job}-x", "labels": labels},
            "status": {"containerStatuses": [{"state": {"terminated": ended}}]},
        }
    )
    row = {
        "type": "Complete" if well else "Failed",
        "status": "True",
        "lastTransitionTime": ENDED,
    }
    status = {"startTime": STARTED, "completionTime": ENDED, "conditions": [row]}
    world.put({**world.objects["Job", job], "status": status})


async def test_a_backup_becomes_a_job_and_tells_how_it_ended() -> None:
    """From Pending over Running to Completed, with its Events."""
    world = _world("first")
    operator = Backups(world)

    await operator.rounds(1)
    await operator.rounds(1)
    running = _phase(world)
    _end(world, "first-backup", RESULT)
    await operator.rounds()

    assert running == "Running"
    assert _phase(world) == "Completed"
    assert world.objects[names.BACKUP_KIND, "first"]["status"]["range"]["last"] == 4711
    assert world.events == ["BackupStarted", "BackupCompleted"]
    assert operator.asked[0] == 1
    assert not operator.reconciler.unfinished


async def test_a_finished_backup_causes_no_write() -> None:
    """Nor does a running one; not from an operator that has just started either."""
    world = _world("first")
    await Backups(world).rounds()
    world.writes.clear()

    await Backups(world).rounds()
    running = list(world.writes)
    _end(world, "first-backup", RESULT)
    await Backups(world).rounds()
    world.writes.clear()
    del world.objects["Job", "first-backup"]
    await Backups(world).rounds()

    assert (running, world.writes) == ([], [])
    assert _jobs(world) == []


async def _calls_to_complete() -> int:
    world = _world("first")
    await Backups(world, log=LARGE).rounds()
    return world.trouble.calls


@pytest.mark.parametrize("after", [False, True], ids=["before-effect", "after-effect"])
async def test_a_start_interrupted_at_any_call_ends_in_one_job(after: bool) -> None:
    """The operator dies there; the next one goes on."""
    for at in range(1, await _calls_to_complete() + 1):
        world = _world("first")
        world.trouble = Trouble(at=at, after=after)
        try:
            await Backups(world, log=LARGE).rounds()
        except ApiError:
            await Backups(world, log=LARGE).rounds()

        assert _jobs(world) == ["first-backup"], at
        assert world.writes.count("Job") == 1, at
        assert _phase(world) == "Running", at


async def test_backups_of_a_group_run_one_after_the_other() -> None:
    """The second begins when the first has ended, however that was."""
    world = _world("a", "b")
    operator = Backups(world)
    await operator.rounds()
    first = _jobs(world)

    _end(world, "a-backup", DENIED)
    await operator.rounds()

    assert first == ["a-backup"]
    assert _jobs(world) == ["a-backup", "b-backup"]
    assert (_phase(world, "a"), _phase(world, "b")) == ("Failed", "Running")


async def test_a_backup_that_cannot_start_is_in_nobodys_way() -> None:
    """The next one has a store of its own."""
    world = _world(group=False)
    stored = world.put_group({})
    world.put({**stored, "status": {"groupId": GROUP_ID, "term": 1}})
    world.put(backup_body(name="a"))
    world.put(backup_body({"store": STORE}, name="b"))

    await Backups(world).rounds()

    assert _jobs(world) == ["b-backup"]
    assert (_phase(world, "a"), _phase(world, "b")) == ("Pending", "Running")


async def test_a_failure_is_told_in_the_pipelines_words_and_counted_once() -> None:
    """By the metric that alerts look at."""
    world = _world("first")
    operator = Backups(world)
    await operator.rounds()

    _end(world, "first-backup", DENIED)
    await operator.rounds()

    status = world.objects[names.BACKUP_KIND, "first"]["status"]
    assert status["message"] == "StoreDenied: s3://b denies access"
    labels = {"namespace": "shop", "group": "orders"}
    value = operator.metrics.registry.get_sample_value
    assert value("dledger_backup_failures_total", labels) == 1


async def test_a_backup_waits_for_a_group_that_comes_later() -> None:
    """Objects may be applied in any order."""
    world = _world("first", group=False)
    operator = Backups(world)
    await operator.rounds()
    waiting = world.objects[names.BACKUP_KIND, "first"]["status"]["message"]

    stored = world.put_group({"backup": {"store": STORE}})
    world.put({**stored, "status": {"groupId": GROUP_ID, "term": 1}})
    await operator.rounds()

    assert waiting == ("there is no BrokerGroup orders in this namespace, or it is being deleted")
    assert _phase(world) == "Running"


async def test_a_backup_waits_for_a_node_that_answers() -> None:
    """What there is to copy decides how it is copied."""
    world = _world("first")
    operator = Backups(world, log=None)
    await operator.rounds()
    waiting = world.objects[names.BACKUP_KIND, "first"]["status"]["message"]

    operator.log = LARGE
    await operator.rounds()

    assert "no pod of the group has an address" in waiting
    assert ("RoleBinding", "dledger-uid-1-backup") in world.objects
    assert _phase(world) == "Running"


async def test_what_the_api_server_refuses_is_told_and_tried_again_later() -> None:
    """Not every second."""
    world = _world("first")
    world.refuse["Job"] = ApiError(403, "exceeded quota")
    operator = Backups(world)

    await operator.rounds(2)
    refused = world.objects[names.BACKUP_KIND, "first"]["status"]["message"]
    tried = world.trouble.calls
    await operator.rounds(3)
    again = world.trouble.calls
    world.refuse.clear()
    operator.now_s += RETRY_S
    await operator.rounds()

    assert refused == "Job first-backup: exceeded quota"
    assert again == tried
    assert _phase(world) == "Running"


async def test_a_job_of_that_name_that_is_someone_elses_is_not_taken() -> None:
    """Its end would be told as the backup's."""
    world = _world("first")
    world.put({"kind": "Job", "metadata": {"namespace": "shop", "name": "first-backup"}})

    await Backups(world).rounds()

    status = world.objects[names.BACKUP_KIND, "first"]["status"]
    assert status["phase"] == "Pending"
    assert "taken by a Job that this operator did not make" in status["message"]


@pytest.mark.found
@pytest.mark.parametrize("kind", ["ServiceAccount", "RoleBinding", "NetworkPolicy"])
async def test_a_job_does_not_run_as_an_account_that_is_someone_elses(kind: str) -> None:
    """Found: K1. Nothing that comes after the refusal is made, and the status says whose it is."""
    world = _world("first")
    name = names.backup_access(world.group["metadata"]["uid"])
    theirs = {"namespace": "shop", "name": name, "labels": names.labels("orders")}
    owner = {"kind": "Deployment", "name": "velero", "uid": "v", "controller": True}
    world.put({"kind": kind, "metadata": {**theirs, "ownerReferences": [owner]}})

    await Backups(world, log=LARGE).rounds()

    status = world.objects[names.BACKUP_KIND, "first"]["status"]
    assert _jobs(world) == []
    assert status["conditions"][0]["reason"] == "ApplyRefused"
    assert f"{kind} {name}: the name is taken by a {kind} of Deployment velero" in status["message"]
    assert world.objects[kind, name]["metadata"]["ownerReferences"] == [owner]
    later = {"ServiceAccount": "RoleBinding", "RoleBinding": "NetworkPolicy"}.get(kind, "Job")
    assert later not in world.writes


@pytest.mark.found
async def test_an_account_is_named_by_the_group_not_by_its_user() -> None:
    """Found: K1. `orders-backup` may well be somebody's account for backing up Secrets."""
    world = _world("first")
    account = {"namespace": "shop", "name": "orders-backup", "labels": {}}
    world.put({"kind": "ServiceAccount", "metadata": account})

    await Backups(world, log=LARGE).rounds()

    pod = world.objects["Job", "first-backup"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "dledger-uid-1-backup"
    assert "ownerReferences" not in world.objects["ServiceAccount", "orders-backup"]["metadata"]


async def test_a_backup_that_is_deleted_meanwhile_is_let_go() -> None:
    """Its status cannot be written any more."""
    world = _world("first")
    operator = Backups(world)
    await operator.rounds()

    del world.objects[names.BACKUP_KIND, "first"]
    await operator.rounds()

    assert not operator.reconciler.unfinished


# --- a group that starts from a backup ----------------------------------------------------------

RECOVERING: dict[str, Any] = {"bootstrap": {"recovery": {"store": STORE, "groupId": "old"}}}
CLAIM = "PersistentVolumeClaim", "data-orders-0"


@dataclass
class Group:
    """An operator process that looks after `orders`."""

    world: World
    now: str = NOW
    fresh_id: str = GROUP_ID

    def __post_init__(self) -> None:
        self.reconciler = Reconciler(
            self.world.group,
            cluster=Cluster(FakeApi(self.world), Metrics().wrote),
            nodes=FakeNodes(self.world),
            watched=FakeWatched(self.world),
            platform=PLATFORM,
            metrics=Metrics(),
            lease_s=lambda: 0.0,
            clock=Clock(
                monotonic_s=lambda: 0.0, now=lambda: self.now, fresh_id=lambda: self.fresh_id
            ),
        )

    async def rounds(self, count: int = 6) -> None:
        """Do some rounds, with Kubernetes at work between them."""
        for _ in range(count):
            self.reconciler.update(self.world.group)
            await self.reconciler.reconcile()
            self.world.run_pods()


def _recovering() -> World:
    world = World()
    world.put_group(RECOVERING)
    return world


def _restore(world: World, words: dict[str, Any] | None = None) -> None:
    """End the recovery Job, if there is one that has not ended."""
    job = world.objects.get(("Job", "orders-recovery"))
    if job and "status" not in job:
        _end(world, "orders-recovery", words or {**RESULT, "groupId": "old"})
        world.restored["orders-0"] = 0 if words else 4711


async def test_a_group_starts_from_a_backup_under_a_new_id() -> None:
    """Claim, Job, mark, nodes, and only then a group id."""
    world = _recovering()
    operator = Group(world)
    await operator.rounds()
    before = world.objects.keys()
    built_early = ("StatefulSet", "orders") in before

    _restore(world)
    await operator.rounds(8)

    assert not built_early
    assert world.objects[CLAIM]["metadata"]["annotations"][names.RECOVERY_ANNOTATION] == DONE
    assert world.bootstraps == 1
    assert world.status["groupId"] == GROUP_ID
    assert world.events == ["RecoveryStarted", "Restored", "GroupIdRecorded", "Founded"]


async def _calls_to_start() -> int:
    world = _recovering()
    await _start(world)
    return world.trouble.calls


async def _start(world: World) -> None:
    operator = Group(world)
    await operator.rounds()
    _restore(world)
    await operator.rounds(8)


@pytest.mark.parametrize("after", [False, True], ids=["before-effect", "after-effect"])
async def test_a_start_from_a_backup_interrupted_at_any_call_ends_in_one_group(
    after: bool,
) -> None:
    """One Job, one founding, by the first node."""
    for at in range(1, await _calls_to_start() + 1):
        world = _recovering()
        world.trouble = Trouble(at=at, after=after)
        try:
            await _start(world)
        except ApiError:
            await _start(world)

        assert world.writes.count("Job") == 1, at
        assert world.bootstraps == 1, at
        assert set(world.disks.values()) == {world.status["groupId"]}, at


async def test_a_failed_recovery_starts_no_node_and_is_made_again_when_its_job_is_deleted() -> None:
    """What the condition says to do works."""
    world = _recovering()
    operator = Group(world)
    await operator.rounds()
    _restore(world, DENIED)
    await operator.rounds()
    rows = {row["type"]: row for row in world.status["conditions"]}
    nodes_then = ("StatefulSet", "orders") in world.objects

    del world.objects["Job", "orders-recovery"], world.objects["Pod", "orders-recovery-x"]
    await operator.rounds()
    _restore(world)
    await operator.rounds(8)

    assert rows["Degraded"]["reason"] == "RecoveryFailed"
    assert "StoreDenied: s3://b denies access" in rows["Degraded"]["message"]
    assert not nodes_then
    assert world.bootstraps == 1


async def test_deleted_while_it_was_restored_and_applied_again_it_goes_on() -> None:
    """The claim remembers that what is on it does not count yet."""
    world = _recovering()
    await Group(world).rounds()
    claim = world.objects[CLAIM]
    world.delete_group()
    world.put(claim)
    world.put_group(RECOVERING)

    assert claim["metadata"]["annotations"][names.RECOVERY_ANNOTATION] == PENDING
    await _start(world)

    assert world.bootstraps == 1


async def test_deleted_after_it_was_founded_and_applied_again_it_is_adopted() -> None:
    """It is not restored a second time."""
    world = _recovering()
    await _start(world)
    claim = world.objects[CLAIM]
    world.delete_group()
    world.put(claim)
    world.put_group(RECOVERING)
    world.leader = "orders-1"

    await Group(world, fresh_id="another").rounds(9)

    assert world.writes.count("Job") == 1
    assert world.bootstraps == 1
    assert world.status["groupId"] == GROUP_ID
    assert "Adopted" in world.events


async def test_a_schedule_makes_one_backup_at_its_time() -> None:
    """However often it is looked at, and by however many operators."""
    world = World()
    world.put_group({"backup": {"store": STORE, "schedule": "8 7 * * *"}})
    await Group(world, now="2031-05-06T07:00:00Z").rounds()
    before = [name for kind, name in world.objects if kind == names.BACKUP_KIND]

    for _ in range(2):
        await Group(world, now=NOW).rounds()

    made = [name for kind, name in world.objects if kind == names.BACKUP_KIND]
    assert before == []
    assert made == ["orders-32263628"]
    assert world.events.count("BackupScheduled") == 1
    assert world.status["backup"] == {"lastScheduledAt": "2031-05-06T07:08:00Z"}


async def test_a_scheduled_backup_that_is_deleted_is_not_made_again() -> None:
    """The status knows that its time had one."""
    world = World()
    world.put_group({"backup": {"store": STORE, "schedule": "8 7 * * *"}})
    await Group(world, now=NOW).rounds()

    del world.objects[names.BACKUP_KIND, "orders-32263628"]
    await Group(world, now=NOW).rounds()

    assert not [name for kind, name in world.objects if kind == names.BACKUP_KIND]


def _with_old_backups(count: int) -> World:
    """Return a group with *count* completed backups of its schedule, a minute apart."""
    world = _world()
    for number in range(count):
        at = f"2031-05-06T07:{number:02}:00Z"
        old = backup_body(
            name=names.scheduled_backup("orders", unix_minute(at)),
            annotations={names.SCHEDULED_ANNOTATION: at},
        )
        status = {"phase": "Completed", "groupId": GROUP_ID, "completedAt": at}
        world.put({**old, "status": status})
    return world


def _backups(world: World) -> list[str]:
    return sorted(name for kind, name in world.objects if kind == names.BACKUP_KIND)


async def test_old_backups_of_a_schedule_go_one_a_round() -> None:
    """The oldest first; what was made by hand stays."""
    world = _with_old_backups(KEPT_COMPLETED + 2)
    world.put({**backup_body(name="by-hand"), "status": {"phase": "Completed"}})
    by_age = _backups(world)[1:]
    operator = Backups(world)

    await operator.rounds(1)
    after_one = _backups(world)
    await operator.rounds(4)

    assert after_one == ["by-hand", *by_age[1:]]
    assert _backups(world) == ["by-hand", *by_age[2:]]
    assert world.writes.count(names.BACKUP_KIND) == 2


async def test_another_backup_of_the_same_name_is_not_deleted() -> None:
    """The watch may lag behind: the uid decides."""
    world = _with_old_backups(KEPT_COMPLETED + 1)
    operator = Backups(world)
    oldest = _backups(world)[0]
    seen = operator.reconciler._watched.backups("shop", "orders")
    world.objects[names.BACKUP_KIND, oldest]["metadata"]["uid"] = "another"

    group = operator._group()
    assert group is not None
    await operator.reconciler._expire(group, seen)

    assert oldest in _backups(world)


async def test_an_account_that_may_not_delete_is_told_in_the_log_and_not_each_round() -> None:
    """The chart may be older than the operator's image."""
    world = _with_old_backups(KEPT_COMPLETED + 1)
    world.refuse[f"delete {names.BACKUP_KIND}"] = ApiError(403, "may not delete")
    operator = Backups(world)
    calls = []

    for _ in range(3):
        await operator.rounds(1)
        calls.append(world.trouble.calls)

    assert calls[1:] == [calls[0]] * 2
    assert len(_backups(world)) == KEPT_COMPLETED + 1


async def test_a_schedule_goes_on_while_something_else_is_refused() -> None:
    """A wish for TLS is no reason to be without backups."""
    world = World()
    spec = {"backup": {"store": STORE, "schedule": "8 7 * * *"}}
    world.put_group(spec)
    await Group(world, now="2031-05-06T07:00:00Z").rounds()

    world.put_group({**spec, "tls": {"enabled": True}})
    await Group(world, now=NOW).rounds()

    rows = {row["type"]: row for row in world.status["conditions"]}
    assert rows["SpecValid"]["reason"] == "NotImplementedYet"
    assert (names.BACKUP_KIND, "orders-32263628") in world.objects
