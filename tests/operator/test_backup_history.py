"""What a group's backups amount to: the part of its status, and BackupReady."""

from __future__ import annotations

import pytest

from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.status.backup_history import backup_ready, last_backup
from tests.operator.backup_samples import AS_OF, ENDED, RESULT, STORE, backup, completed, failed
from tests.operator.samples import GROUP_ID, NOW, bootstrapped, converged

LATER = "2031-05-06T09:00:00Z"
STORED = bootstrapped({"backup": {"store": STORE}})
RECORD = {"name": "gone", "completedAt": ENDED, "lastIndex": 7, "manifest": "m"}
RECORDED = bootstrapped({"backup": {"store": STORE}}, backup=RECORD)
YOUNG = {"creationTimestamp": "2031-05-06T08:00:00Z"}

TABLE: list[tuple[BrokerGroup, tuple[BrokerBackup, ...], str, Reason]] = [
    (bootstrapped(), (), "Unknown", Reason.BACKUP_NOT_CONFIGURED),
    (STORED, (), "False", Reason.NO_BACKUP_YET),
    (bootstrapped(), (backup(),), "Unknown", Reason.BACKUP_NOT_CONFIGURED),
    (bootstrapped(), (backup({"store": STORE}),), "False", Reason.NO_BACKUP_YET),
    (STORED, (backup(),), "False", Reason.NO_BACKUP_YET),
    (STORED, (completed(),), "True", Reason.BACKUP_COMPLETED),
    (STORED, (completed(), backup(name="next")), "True", Reason.BACKUP_COMPLETED),
    (STORED, (completed(), failed("next", **YOUNG)), "False", Reason.BACKUP_FAILED),
    (STORED, (failed(), completed("next", **YOUNG)), "True", Reason.BACKUP_COMPLETED),
    (RECORDED, (), "True", Reason.BACKUP_COMPLETED),
    (RECORDED, (failed(),), "False", Reason.BACKUP_FAILED),
    (bootstrapped(groupId="another"), (completed(),), "False", Reason.NO_BACKUP_YET),
]


@pytest.mark.parametrize(("of", "backups", "said", "reason"), TABLE)
def test_each_situation_has_its_reason(
    of: BrokerGroup, backups: tuple[BrokerBackup, ...], said: str, reason: Reason
) -> None:
    """The newest finished backup decides; one that runs changes nothing yet."""
    status, found, message = backup_ready(of, converged(of, backups=backups), now=NOW)

    assert (status, found) == (said, reason)
    assert message


DAILY = bootstrapped({"backup": {"store": STORE, "schedule": "5 7 * * *"}})
RARELY = bootstrapped({"backup": {"store": STORE}, "retention": {"hours": 8}})
RARELY_RECORDED = bootstrapped(
    {"backup": {"store": STORE}, "retention": {"hours": 8}}, backup={**RECORD, "asOf": AS_OF}
)
LONG = {"retention": {"hours": 720}}
PATIENT = bootstrapped({"backup": {"store": STORE, "schedule": "5 7 * * *"}, **LONG})
UNREADABLE = bootstrapped({"backup": {"store": STORE, "schedule": "often"}, **LONG})
OLDER = completed(as_of="2031-05-06T06:00:00Z")
AGES: list[tuple[BrokerGroup, tuple[BrokerBackup, ...], str, str, Reason]] = [
    (PATIENT, (completed(),), "2031-05-08T08:01:00Z", "True", Reason.BACKUP_COMPLETED),
    (PATIENT, (completed(),), "2031-05-08T08:01:01Z", "False", Reason.BACKUP_STALE),
    (PATIENT, (completed(as_of=""),), "2031-05-08T08:05:00Z", "True", Reason.BACKUP_COMPLETED),
    (PATIENT, (completed(as_of=""),), "2031-05-08T08:05:01Z", "False", Reason.BACKUP_STALE),
    (PATIENT, (completed(as_of="2031-06-01T00:00:00Z"),), "2031-05-08T08:05:01Z", "False",
     Reason.BACKUP_STALE),
    (PATIENT, (completed(), backup(name="next")), "2031-05-09T00:00:00Z", "False",
     Reason.BACKUP_STALE),
    (PATIENT, (completed(), failed("next", **YOUNG)), "2031-05-09T00:00:00Z", "False",
     Reason.BACKUP_FAILED),
    (UNREADABLE, (completed(),), "2031-05-12T00:00:00Z", "True", Reason.BACKUP_COMPLETED),
    (STORED, (completed(),), "2031-05-08T13:01:00Z", "True", Reason.BACKUP_COMPLETED),
    (STORED, (completed(),), "2031-05-08T13:01:01Z", "False", Reason.RETENTION_NEARS),
    (DAILY, (completed(),), "2031-05-08T13:01:01Z", "False", Reason.RETENTION_NEARS),
    (RARELY, (completed(),), "2031-05-06T13:01:01Z", "False", Reason.RETENTION_NEARS),
    (RARELY, (OLDER,), "2031-05-06T12:00:01Z", "False", Reason.RETENTION_NEARS),
    (RARELY_RECORDED, (), "2031-05-06T13:01:01Z", "False", Reason.RETENTION_NEARS),
    (RARELY, (completed(), failed("next", **YOUNG)), "2031-05-06T13:01:01Z", "False",
     Reason.RETENTION_NEARS),
]  # fmt: skip


@pytest.mark.parametrize(("of", "backups", "now", "said", "reason"), AGES)
def test_a_backup_that_is_too_old_is_not_ready(
    of: BrokerGroup, backups: tuple[BrokerBackup, ...], now: str, said: str, reason: Reason
) -> None:
    """By the schedule, and by three quarters of the time that nodes keep entries."""
    status, found, _ = backup_ready(of, converged(of, backups=backups), now=now)

    assert (status, found) == (said, reason)


@pytest.mark.parametrize("of", [PATIENT, RARELY])
def test_what_is_said_of_an_old_backup_stays_the_same(of: BrokerGroup) -> None:
    """It names times and no ages: a status that changes each round is written each round."""
    seen = converged(of, backups=(completed(),))

    said = {backup_ready(of, seen, now=f"2031-05-09T0{hour}:00:00Z")[2] for hour in range(9)}

    (message,) = said
    assert f"the newest backup, first, is as of {AS_OF}" in message


def test_retention_names_the_failure_that_leads_there() -> None:
    """What is to be put right is what failed."""
    seen = converged(RARELY, backups=(completed(), failed("next", **YOUNG)))

    *_, message = backup_ready(RARELY, seen, now="2031-05-06T20:00:00Z")

    assert message.startswith("nodes drop what is older than 8 h")
    assert message.endswith("; next: StoreDenied: no")


def test_the_newest_completed_backup_is_recorded() -> None:
    """Whatever order they were made in."""
    backups = (completed("a"), completed("b", ended_at=LATER), failed("c"), backup(name="d"))

    assert last_backup(STORED, converged(STORED, backups=backups), now=NOW) == {
        "name": "b",
        "completedAt": LATER,
        "asOf": AS_OF,
        "lastIndex": 4711,
        "manifest": RESULT["manifest"],
    }


def test_a_record_has_no_time_of_the_one_before() -> None:
    """A backup by an older image tells none."""
    of = bootstrapped(backup={**RECORD, "asOf": AS_OF})
    newer = completed("newer", ended_at=LATER, as_of="")

    assert "asOf" not in last_backup(of, converged(of, backups=(newer,)), now=NOW)


def test_a_record_outlives_its_backup() -> None:
    """The objects in the store do."""
    assert last_backup(RECORDED, converged(RECORDED), now=NOW) == RECORD


def test_an_older_backup_does_not_replace_the_record() -> None:
    """It may be the only one that was not deleted."""
    older = completed("older", ended_at="2031-05-06T01:00:00Z")

    assert last_backup(RECORDED, converged(RECORDED, backups=(older,)), now=NOW) == RECORD


def test_the_time_of_the_schedule_is_recorded() -> None:
    """So that a deleted backup is not made again for it."""
    at = "2031-05-06T03:00:00Z"
    made = backup(scheduled_at=at)

    assert last_backup(STORED, converged(STORED, backups=(made,)), now=NOW) == {
        "lastScheduledAt": at
    }


def test_a_group_without_backups_records_nothing() -> None:
    """Its status stays as small as it was."""
    assert last_backup(bootstrapped(), converged(bootstrapped()), now=NOW) == {}


def test_backups_of_an_earlier_group_of_the_name_are_not_this_ones() -> None:
    """They hold another log."""
    assert completed().status["groupId"] == GROUP_ID
    of = bootstrapped(groupId="another")

    assert last_backup(of, converged(of, backups=(completed(),)), now=NOW) == {}
