"""EXPIRE_GROUPS: who nobody used for long goes, on all nodes at the same place in the log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dledger.broker.commands import (
    Ack,
    ChangeInvisible,
    CreateGroup,
    ExpireGroups,
    LeaseRef,
    Release,
    Renew,
)
from dledger.broker.consumer_groups import MAX_GAP_MS
from dledger.broker.results import GroupsExpired
from dledger.broker.state import BrokerState
from dledger.errors import InvalidArgument, UnknownGroup
from tests.broker.log import Log, offsets

_TIME_MS = 600_000
_LEASE = LeaseRef(0, 0, 1)
_USES: list[Callable[[Log], object]] = [
    lambda log: log.append(CreateGroup(name="g").encode()),
    lambda log: log.receive(1),
    lambda log: log.append(Ack(group="g", topic="t", leases=(_LEASE,)).encode()),
    lambda log: log.append(
        ChangeInvisible(group="g", topic="t", lease=_LEASE, invisible_ms=1).encode()
    ),
    lambda log: log.append(
        Renew(group="g", topic="t", leases=(_LEASE,), invisible_ms=1, arrived=True).encode()
    ),
    lambda log: log.append(Release(group="g", client_id="c").encode()),
]


def _expire(log: Log, *, unused_ms: int) -> object:
    (result,) = log.append(ExpireGroups(before_ms=_active_ms(log) - unused_ms).encode())
    return result


def _active_ms(log: Log) -> int:
    """Return what the log's time without gaps is now."""
    log.retain(1)
    return log.state.groups.active_ms


def test_a_group_that_nobody_used_goes_and_comes_back_as_a_new_one() -> None:
    """It starts where new groups do: at the oldest message."""
    log = Log()
    log.create()
    log.produce("a", "b")
    log.ack(log.receive())
    log.now_ms += _TIME_MS + 1

    assert log.state.groups.any_unused(_active_ms(log) - _TIME_MS)
    assert _expire(log, unused_ms=_TIME_MS) == GroupsExpired(1)
    (refused,) = log.append(Ack(group="g", topic="t", leases=(_LEASE,)).encode())
    assert isinstance(refused, UnknownGroup)
    log.create()
    assert offsets(log.receive()) == [0, 1]


def test_who_waits_in_the_name_of_a_group_that_went_is_told() -> None:
    """By the changes, as of one that was deleted: else its poll ends with its time only."""
    log = Log()
    log.create()
    log.state.take_changes()
    log.now_ms += _TIME_MS + 1

    _expire(log, unused_ms=_TIME_MS)

    assert log.state.take_changes().groups_gone == {"g"}


@pytest.mark.parametrize("use", _USES)
def test_whatever_a_member_asks_for_is_a_use(use: Callable[[Log], object]) -> None:
    """To the millisecond: used just when the time begins, it stays; a moment later it goes."""
    log = Log()
    log.create()
    log.produce("a")
    log.receive(1, invisible_ms=1)
    log.now_ms += _TIME_MS
    use(log)
    log.now_ms += _TIME_MS

    assert _expire(log, unused_ms=_TIME_MS) == GroupsExpired(0)
    log.now_ms += 1
    assert _expire(log, unused_ms=_TIME_MS) == GroupsExpired(1)


def test_a_month_in_which_nobody_could_ask_is_none() -> None:
    """A group that was down, or has a new leader whose wall clock is ahead: its consumers stay."""
    log = Log()
    log.create()
    log.now_ms += 31 * 24 * 3_600_000

    assert _expire(log, unused_ms=MAX_GAP_MS) == GroupsExpired(0)


def test_retention_is_no_use() -> None:
    """What goes by age does not keep the groups that have not read it."""
    log = Log()
    log.create()
    log.produce("a")
    log.now_ms += _TIME_MS + 1
    log.retain(len(log.entries))

    assert _expire(log, unused_ms=_TIME_MS) == GroupsExpired(1)


def test_a_group_with_a_message_on_loan_stays() -> None:
    """Until the loan is over: its holder may yet ack it."""
    log = Log()
    log.create()
    log.produce("a")
    held = log.receive(1, invisible_ms=3 * _TIME_MS)
    log.now_ms += 2 * _TIME_MS

    assert _expire(log, unused_ms=_TIME_MS) == GroupsExpired(0)
    assert log.ack(held) == (True,)


def test_a_time_to_come_is_refused() -> None:
    """Nobody can have been unused since then."""
    log = Log()
    log.create()

    assert isinstance(_expire(log, unused_ms=-1), InvalidArgument)
    assert log.state.groups.exists("g")


def test_when_a_group_was_used_is_in_a_snapshot() -> None:
    """A node that was restarted lets the same groups go."""
    log = Log()
    log.create(group="old")
    log.now_ms += _TIME_MS
    log.create(group="new")
    twin = Log(BrokerState.decode(log.state.encode()), list(log.entries), log.now_ms)

    for each in (log, twin):
        assert _expire(each, unused_ms=_TIME_MS - 1) == GroupsExpired(1)

    assert twin.state.digest() == log.state.digest() == log.replay().digest()
    assert twin.state.groups.exists("new")
