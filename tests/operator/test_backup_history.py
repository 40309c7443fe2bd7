"""What a group's backups amount to: the part of its status, and BackupReady."""

from __future__ import annotations

import pytest

from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.status.backup_history import backup_ready, last_backup
from tests.operator.backup_samples import ENDED, RESULT, STORE, backup, completed, failed
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
    status, found, message = backup_ready(of, converged(of, backups=backups))

    assert (status, found) == (said, reason)
    assert message


def test_the_newest_completed_backup_is_recorded() -> None:
    """Whatever order they were made in."""
    backups = (completed("a"), completed("b", ended_at=LATER), failed("c"), backup(name="d"))

    assert last_backup(STORED, converged(STORED, backups=backups), now=NOW) == {
        "name": "b",
        "completedAt": LATER,
        "lastIndex": 4711,
        "manifest": RESULT["manifest"],
    }


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
