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
from dledger.broker.results import GroupsExpired
from dledger.broker.state import BrokerState
from dledger.errors import InvalidArgument, UnknownGroup
from tests.broker.log import Log, offsets

_HOUR_MS = 3_600_000
_LEASE = LeaseRef(0, 0, 1)
_USES: list[Callable[[Log], object]] = [
    lambda log: log.append(CreateGroup(name="g").encode()),
    lambda log: log.receive(1),
    lambda log: log.append(Ack(group="g", topic="t", leases=(_LEASE,)).encode()),
    lambda log: log.append(
        ChangeInvisible(group="g", topic="t", lease=_LEASE, invisible_ms=1).encode()
    ),
    lambda log: log.append(Renew(group="g", topic="t", leases=(_LEASE,), invisible_ms=1).encode()),
    lambda log: log.append(Release(group="g", client_id="c").encode()),
]


def _expire(log: Log, *, unused_ms: int) -> object:
    (result,) = log.append(ExpireGroups(before_ms=log.now_ms - unused_ms).encode())
    return result


def test_a_group_that_nobody_used_goes_and_comes_back_as_a_new_one() -> None:
    """It starts where new groups do: at the oldest message."""
    log = Log()
    log.create()
    log.produce("a", "b")
    log.ack(log.receive())
    log.now_ms += _HOUR_MS + 1

    assert log.state.groups.any_unused(log.now_ms - _HOUR_MS)
    assert _expire(log, unused_ms=_HOUR_MS) == GroupsExpired(1)
    (refused,) = log.append(Ack(group="g", topic="t", leases=(_LEASE,)).encode())
    assert isinstance(refused, UnknownGroup)
    log.create()
    assert offsets(log.receive()) == [0, 1]


@pytest.mark.parametrize("use", _USES)
def test_whatever_a_member_asks_for_is_a_use(use: Callable[[Log], object]) -> None:
    """To the millisecond: used just when the time begins, it stays; a moment later it goes."""
    log = Log()
    log.create()
    log.produce("a")
    log.receive(1, invisible_ms=1)
    log.now_ms += _HOUR_MS
    use(log)
    log.now_ms += _HOUR_MS

    assert _expire(log, unused_ms=_HOUR_MS) == GroupsExpired(0)
    log.now_ms += 1
    assert _expire(log, unused_ms=_HOUR_MS) == GroupsExpired(1)


def test_retention_is_no_use() -> None:
    """What goes by age does not keep the groups that have not read it."""
    log = Log()
    log.create()
    log.produce("a")
    log.now_ms += _HOUR_MS + 1
    log.retain(len(log.entries))

    assert _expire(log, unused_ms=_HOUR_MS) == GroupsExpired(1)


def test_a_group_with_a_message_on_loan_stays() -> None:
    """Until the loan is over: its holder may yet ack it."""
    log = Log()
    log.create()
    log.produce("a")
    held = log.receive(1, invisible_ms=3 * _HOUR_MS)
    log.now_ms += 2 * _HOUR_MS

    assert _expire(log, unused_ms=_HOUR_MS) == GroupsExpired(0)
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
    log.now_ms += _HOUR_MS
    log.create(group="new")
    twin = Log(BrokerState.decode(log.state.encode()), list(log.entries), log.now_ms)

    for each in (log, twin):
        assert _expire(each, unused_ms=_HOUR_MS - 1) == GroupsExpired(1)

    assert twin.state.digest() == log.state.digest() == log.replay().digest()
    assert twin.state.groups.exists("new")
