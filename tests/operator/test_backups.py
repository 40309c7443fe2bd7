"""(backup, observed) -> actions and status: each situation of one BrokerBackup."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dledger_operator.api import names
from dledger_operator.api.brokerbackup import COMPLETED, BrokerBackup
from dledger_operator.api.reasons import EventReason, Reason
from dledger_operator.api.schedule_times import unix_minute
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.decisions.backups import (
    KEPT_COMPLETED,
    KEPT_FAILED,
    expired,
    first_index,
    in_turn,
    plan_backup,
)
from dledger_operator.decisions.log_jobs import LogJobObserved
from dledger_operator.observed.job_status import JobFailed, JobRunning, JobSucceeded
from dledger_operator.observed.observed import ref_of
from dledger_operator.resources.spark import access
from dledger_operator.status.backup_status import backup_events, backup_status, changed
from tests.operator.backup_samples import (
    ENDED,
    LARGE,
    RESULT,
    STARTED,
    STORE,
    SUCCEEDED,
    backup,
    backup_body,
    completed,
    failed,
    observed,
)
from tests.operator.documented import is_documented
from tests.operator.samples import GROUP_ID, NOW, body, bootstrapped

ACCESS = "dledger-uid-1-backup"
WORKING = JobRunning(started_at=STARTED)
BROKEN = JobFailed(error="StoreDenied: no", started_at=STARTED, ended_at=ENDED)


def _plan(of: BrokerBackup, seen: LogJobObserved) -> list[tuple[str, str, str]]:
    actions = plan_backup(of, seen)
    return [(type(action).__name__, *ref_of(action.manifest)) for action in actions]


def test_little_work_needs_a_job_and_nothing_else() -> None:
    """No account, no rights."""
    assert _plan(backup(), observed()) == [("Create", "Job", "first-backup")]


def test_much_work_needs_rights_first_and_the_job_last() -> None:
    """When everything that its pod needs was seen: made is not enough."""
    seen = observed(log=LARGE)

    first = plan_backup(backup(), seen)
    made = {ref_of(action.manifest): action.manifest for action in first}

    assert _plan(backup(), seen) == [
        ("Apply", "ServiceAccount", ACCESS),
        ("Apply", "RoleBinding", ACCESS),
        ("Apply", "NetworkPolicy", ACCESS),
        ("Create", "ConfigMap", "first-backup"),
    ]
    assert _plan(backup(), replace(seen, children=made)) == [("Create", "Job", "first-backup")]


@pytest.mark.found
@pytest.mark.parametrize("missing", ["ServiceAccount", "RoleBinding", "NetworkPolicy", "ConfigMap"])
def test_no_job_is_made_while_one_thing_that_it_stands_on_is_not_seen_as_ours(missing: str) -> None:
    """Found: K1. What belongs to somebody else is never among the children."""
    seen = observed(log=LARGE)
    made = {ref_of(a.manifest): a.manifest for a in plan_backup(backup(), seen)}
    others = {ref: manifest for ref, manifest in made.items() if ref[0] != missing}

    kinds = [kind for _, kind, _ in _plan(backup(), replace(seen, children=others))]

    assert kinds == [missing]


def test_rights_that_are_there_are_not_written_again() -> None:
    """Unless somebody edited them."""
    seen = observed(log=LARGE)
    assert seen.group is not None
    there = {ref_of(manifest): manifest for manifest in access(seen.group)}
    edited = {**there, ("RoleBinding", ACCESS): {"kind": "RoleBinding", "subjects": []}}

    kinds = [kind for _, kind, _ in _plan(backup(), replace(seen, children=there))]
    again = [kind for _, kind, _ in _plan(backup(), replace(seen, children=edited))]

    assert kinds == ["ConfigMap"]
    assert again == ["RoleBinding", "ConfigMap"]


@pytest.mark.parametrize("of_job", [WORKING, SUCCEEDED, BROKEN])
def test_a_backup_with_a_job_needs_nothing_more(of_job: Any) -> None:
    """A Job is never changed, nor made twice."""
    assert _plan(backup(), observed(job=of_job)) == []


@pytest.mark.parametrize("of", [completed(), failed()])
def test_a_finished_backup_is_never_done_again(of: BrokerBackup) -> None:
    """Its Job goes after a day; that is no reason to make another."""
    assert _plan(of, observed()) == []
    assert backup_status(of, observed(), now=NOW) == of.status


def _group(spec: dict[str, Any], image: str = "i") -> BrokerGroup:
    return BrokerGroup.parse(body(spec, groupId=GROUP_ID, term=1), spark_image=image)


NO_STORE = bootstrapped()
PAUSED = bootstrapped({"backup": {"store": STORE}, "paused": True})
BAD_GROUP = bootstrapped({"backup": {"store": {"url": "file:///backups"}}})  # no claim
UNREADABLE = bootstrapped({"backup": {"store": STORE}, "replicas": "three"})
NO_IMAGE = _group({"backup": {"store": STORE}}, image="")
BAD_MEMORY = _group({"backup": {"store": STORE}, "spark": {"executors": {"memory": "1Ki"}}})
OTHERWISE_WRONG = bootstrapped({"backup": {"store": STORE}, "tls": {"enabled": True}})
BAD_STORE = backup({"store": {"url": "gs://backups"}})
NO_CLAIM = backup({"store": {"url": "file:///backups"}})
NO_URL = backup({"store": {"secretName": "s3"}})
NO_NUMBER = BrokerBackup.parse(backup_body({"lastIndex": "many"}))
STRANGE = BrokerBackup.parse(backup_body({"colour": "red"}))
REFUSED = {("Job", "first-backup"): "exceeded quota"}

TABLE: list[tuple[BrokerBackup, LogJobObserved, str, str, Reason]] = [
    (backup(), observed(), "Pending", "Unknown", Reason.CREATING),
    (backup(), observed(group=None), "Pending", "Unknown", Reason.GROUP_MISSING),
    (backup(), observed(group=PAUSED), "Pending", "Unknown", Reason.PAUSED_BY_USER),
    (backup(), observed(group=NO_STORE), "Pending", "Unknown", Reason.NO_STORE),
    (backup(), observed(group=BAD_GROUP), "Pending", "Unknown", Reason.GROUP_SPEC_INVALID),
    (backup(), observed(group=UNREADABLE), "Pending", "Unknown", Reason.GROUP_SPEC_INVALID),
    (backup(), observed(group=NO_IMAGE), "Pending", "Unknown", Reason.GROUP_SPEC_INVALID),
    (backup(), observed(group=BAD_MEMORY), "Pending", "Unknown", Reason.GROUP_SPEC_INVALID),
    (backup(), observed(group=OTHERWISE_WRONG), "Pending", "Unknown", Reason.CREATING),
    (backup(), observed(predecessor="other"), "Pending", "Unknown", Reason.WAITING_FOR_TURN),
    (backup(), observed(log=None), "Pending", "Unknown", Reason.WAITING_FOR_GROUP),
    (backup(), observed(refusals=REFUSED), "Pending", "Unknown", Reason.APPLY_REFUSED),
    (backup(), observed(job=WORKING), "Running", "Unknown", Reason.BACKUP_RUNNING),
    (backup(), observed(job=SUCCEEDED), "Completed", "True", Reason.BACKUP_COMPLETED),
    (backup(), observed(job=BROKEN), "Failed", "False", Reason.BACKUP_FAILED),
    (
        backup(),
        observed(job=WORKING, group=None),
        "Running",
        "Unknown",
        Reason.BACKUP_RUNNING,
    ),
    (BAD_STORE, observed(), "Failed", "False", Reason.NOT_IMPLEMENTED_YET),
    (NO_CLAIM, observed(), "Failed", "False", Reason.INVALID_SPEC),
    (NO_URL, observed(), "Failed", "False", Reason.INVALID_SPEC),
    (NO_NUMBER, observed(), "Failed", "False", Reason.INVALID_SPEC),
    (STRANGE, observed(), "Failed", "False", Reason.INVALID_SPEC),
]


@pytest.mark.parametrize(("of", "seen", "phase", "said", "reason"), TABLE)
def test_each_situation_has_its_phase_and_reason(
    of: BrokerBackup, seen: LogJobObserved, phase: str, said: str, reason: Reason
) -> None:
    """The catalogue has each; only where nothing is in the way is a Job made."""
    status = backup_status(of, seen, now=NOW)
    (row,) = status["conditions"]

    assert (status["phase"], row["status"], row["reason"]) == (phase, said, str(reason))
    assert status["message"] == row["message"] != ""
    assert is_documented(f"Complete={said} of a BrokerBackup", reason)
    assert bool(_plan(of, seen)) == (reason is Reason.CREATING)


def test_what_is_missing_is_named() -> None:
    """Whose it is and what to write."""
    missing = backup_status(backup(), observed(group=None), now=NOW)["message"]
    silent = backup_status(backup(), observed(log=None, unavailable="10.0.0.1: no"), now=NOW)[
        "message"
    ]

    assert missing == ("there is no BrokerGroup orders in this namespace, or it is being deleted")
    assert silent == "10.0.0.1: no"


def test_a_store_of_its_own_wins_over_the_groups() -> None:
    """Also where the group has none, or a wrong one."""
    of = backup({"store": STORE})

    for group in (NO_STORE, bootstrapped({"backup": {"store": {"url": "s3://other/p"}}})):
        (way,) = plan_backup(of, observed(group=group))
        assert way.manifest["kind"] == "NetworkPolicy"

        found = observed(group=group, children={ref_of(way.manifest): way.manifest})
        (action,) = plan_backup(of, found)
        args = action.manifest["spec"]["template"]["spec"]["containers"][0]["args"]
        assert STORE["url"] in args


def test_a_completed_backup_tells_everything() -> None:
    """What the pipeline told, and when."""
    status = backup_status(backup(), observed(job=SUCCEEDED), now=NOW)

    assert status["range"] == {"first": 1, "last": 4711}
    assert status["records"] == 4711
    assert status["manifest"] == RESULT["manifest"]
    assert (status["startedAt"], status["completedAt"]) == (STARTED, ENDED)
    assert status["job"] == "first-backup"
    assert status["message"] == (
        f"entries 1 to 4711 of group {GROUP_ID}, 5000000 bytes; 2 of 2 objects are new"
    )


def test_a_new_base_is_told_with_its_reason() -> None:
    """In the message, and so in the Event: someone should know that a schedule was broken."""
    why = "nodes have dropped entries [24, 86], which were not backed up"
    done = JobSucceeded(result={**RESULT, "newBase": why}, started_at=STARTED, ended_at=ENDED)

    status = backup_status(backup(), observed(job=done), now=NOW)

    (event,) = backup_events({}, status)
    assert event.message == status["message"]
    assert status["message"].endswith(f"; a new base was begun, since {why}")


@pytest.mark.parametrize("value", [None, "many", True, 1.5, [], {}, -1, 1 << 63])
def test_a_result_of_another_kind_does_not_reach_the_status(value: Any) -> None:
    """The API server would refuse the whole of it."""
    odd = JobSucceeded(result={**RESULT, "records": value, "groupId": None})

    status = backup_status(backup(), observed(job=odd), now=NOW)

    assert status["records"] == 0
    assert status["groupId"] == ""


def test_the_condition_keeps_its_time_until_it_turns() -> None:
    """Pending and running are both unknown."""
    before = backup_status(backup(), observed(group=None), now=NOW)

    after = backup_status(backup(status=before), observed(job=WORKING), now="2031-05-06T08:00:00Z")

    assert after["conditions"][0]["lastTransitionTime"] == NOW


def test_an_unchanged_status_is_not_written() -> None:
    """The time alone is no change."""
    before = backup_status(backup(), observed(group=None), now=NOW)

    after = backup_status(backup(status=before), observed(group=None), now="2031-05-06T08:00:00Z")

    assert not changed(before, after)
    assert changed({}, before)


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        (observed(), observed(group=None), [EventReason.BACKUP_BLOCKED]),
        (observed(group=None), observed(group=None), []),
        (observed(group=None), observed(log=None), []),
        (observed(group=None), observed(job=WORKING), [EventReason.BACKUP_STARTED]),
        (
            observed(job=WORKING),
            observed(job=SUCCEEDED),
            [EventReason.BACKUP_COMPLETED],
        ),
        (observed(job=WORKING), observed(job=BROKEN), [EventReason.BACKUP_FAILED]),
        (observed(job=WORKING), observed(job=JobRunning(note="0/3 nodes")), []),
    ],
)
def test_each_turn_is_one_event(
    one: LogJobObserved, two: LogJobObserved, expected: list[EventReason]
) -> None:
    """A failure is a warning, and so is what only people can change."""
    before = backup_status(backup(), one, now=NOW)
    after = backup_status(backup(status=before), two, now=NOW)

    found = list(backup_events(before, after))

    assert [event.reason for event in found] == expected
    warnings = (EventReason.BACKUP_FAILED, EventReason.BACKUP_BLOCKED)
    assert all(event.warning == (event.reason in warnings) for event in found)


def test_a_backup_with_a_job_goes_first_then_the_oldest() -> None:
    """A finished one is not in the row any more."""
    young = backup(name="young", creationTimestamp="2031-05-06T09:00:00Z")
    old = backup(name="old", creationTimestamp="2031-05-06T08:00:00Z")
    working = backup(name="working", creationTimestamp="2031-05-06T10:00:00Z")

    row = in_turn([young, completed(), working, old], ["working"])

    assert [each.name for each in row] == ["working", "old", "young"]


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], 1),
        ([completed()], 4712),
        ([completed(spec={"store": {"url": "s3://elsewhere/p"}})], 1),
        ([failed()], 1),
    ],
)
def test_the_log_goes_on_behind_the_last_backup_to_the_same_store(
    others: list[BrokerBackup], expected: int
) -> None:
    """Only a guess of how much work there is: the pipeline looks at the store itself."""
    of = bootstrapped({"backup": {"store": STORE}})

    assert first_index(backup(name="next"), of, others) == expected


def test_backups_of_an_earlier_group_of_the_name_do_not_count() -> None:
    """Another group id is another log."""
    of = bootstrapped({"backup": {"store": STORE}}, groupId="another")

    assert first_index(backup(name="next"), of, [completed()]) == 1


DAILY = bootstrapped({"backup": {"store": STORE, "schedule": "0 3 * * *"}})


def _scheduled(at: str, *, well: bool = True, **more: Any) -> BrokerBackup:
    """Return the finished backup that the operator made for a time of the schedule."""
    name = names.scheduled_backup("orders", unix_minute(at))
    made = completed(name, ended_at=at, scheduled_at=at, **more)
    if well:
        return made
    return replace(made, status={"phase": "Failed", "message": "no", "completedAt": at})


def _left(of: BrokerGroup, backups: list[BrokerBackup], *, now: str = NOW) -> list[BrokerBackup]:
    """Return what stays when one after the other has gone, oldest first."""
    while (gone := expired(of, backups, now=now)) is not None:
        backups = [backup for backup in backups if backup is not gone]
    return backups


def test_a_schedule_keeps_its_newest_backups() -> None:
    """Ten that completed and three that failed, whatever order they are listed in."""
    well = [_scheduled(f"2031-05-05T{hour:02}:00:00Z") for hour in range(24)]
    badly = [_scheduled(f"2031-05-05T{hour:02}:30:00Z", well=False) for hour in range(24)]

    left = _left(DAILY, [*reversed(well), *badly])

    assert {backup.name for backup in left} == {
        backup.name for backup in (*well[-KEPT_COMPLETED:], *badly[-KEPT_FAILED:])
    }
    assert expired(DAILY, [*reversed(well), *badly], now=NOW) is well[0]


def test_what_is_older_than_retention_goes_but_for_the_newest_completed() -> None:
    """That one tells what there is, and where the log goes on."""
    of = bootstrapped({"backup": {"store": STORE, "retention": {"keepDays": 2}}})
    days = [1, 2, 3, 5]
    well = [_scheduled(f"2031-05-0{day}T03:00:00Z") for day in days]
    badly = [_scheduled(f"2031-05-0{day}T04:00:00Z", well=False) for day in days]

    assert _left(of, [*well, *badly]) == [well[-1], badly[-1]]
    assert _left(of, [*well, *badly], now="2031-06-06T00:00:00Z") == [well[-1]]


def test_only_finished_backups_that_the_operator_made_are_deleted() -> None:
    """An annotation can be copied, also to a backup that somebody keeps; a name tells its time."""
    others = [
        backup(name="runs", scheduled_at="2031-05-01T03:00:00Z"),
        completed("by-hand", ended_at="2020-01-01T00:00:00Z"),
        completed("copied", ended_at="2020-01-01T00:00:00Z", scheduled_at="2031-05-01T03:00:00Z"),
        completed("forged", ended_at="2020-01-01T00:00:00Z", scheduled_at="2031-99-99T03:00:00Z"),
    ]

    assert [backup.phase for backup in others].count(COMPLETED) == 3
    assert expired(DAILY, [*others, _scheduled(ENDED)], now=NOW) is None


@pytest.mark.parametrize(
    "spec", [{"paused": True}, {"backup": {"retention": {"keepDays": 0}}}, {"replicas": "three"}]
)
def test_without_a_word_on_retention_nothing_is_deleted(spec: dict[str, Any]) -> None:
    """A spec that cannot be read is the default, which nobody asked for."""
    backups = [_scheduled(f"2031-05-05T{hour:02}:00:00Z") for hour in range(24)]

    assert expired(DAILY, backups, now=NOW) is not None
    assert expired(bootstrapped(spec), backups, now=NOW) is None
